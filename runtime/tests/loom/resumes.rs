//! The close of a session whose wait has ended, beside a resume of the session.

#[allow(clippy::module_inception, reason = "the server's file, under its name")]
#[path = "../../src/http/hold/resumes.rs"]
mod resumes;

use std::collections::BTreeSet;

use loom::sync::Arc;
use loom::thread;
use palisade_spec::lock::SessionId;
use resumes::Resumes;

use crate::sync;

/// What connections of one session send to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    Close,
    KeepAlive,
    Acquire,
}

/// Goal: a wait ends while its client resumes the session over another connection, in every order there is. The core gets
/// the close before all that the resume sends, or not at all: no session is closed behind a resume that was answered.
#[test]
fn close_is_sent_before_a_resume_or_not_at_all() {
    let orders = std::sync::Arc::new(parking_lot::Mutex::new(BTreeSet::new()));
    let seen = std::sync::Arc::clone(&orders);
    loom::model(move || {
        let session = SessionId { number: 7, proof: 1_u128.into() };
        let resumes = Resumes::new();
        let core = Arc::new(sync::Mutex::new(Vec::new()));
        let is_taken_over = Arc::new(sync::Mutex::new(false));
        let resume = {
            let (resumes, core, is_taken_over) =
                (std::sync::Arc::clone(&resumes), Arc::clone(&core), Arc::clone(&is_taken_over));
            thread::spawn(move || {
                let resuming = resumes.begin(session);
                core.lock().push(Sent::KeepAlive);
                core.lock().push(Sent::Acquire);
                *is_taken_over.lock() = true;
                drop(resuming);
            })
        };
        resumes.unless_under_way(session, || {
            if !*is_taken_over.lock() {
                core.lock().push(Sent::Close);
            }
        });
        resume.join().unwrap();
        let sent = core.lock().clone();
        let requests: Vec<Sent> = sent.iter().copied().filter(|sent| *sent != Sent::Close).collect();
        assert_eq!(requests, [Sent::KeepAlive, Sent::Acquire]);
        assert!(!sent[1..].contains(&Sent::Close), "the session was closed behind its resume: {sent:?}");
        seen.lock().insert(sent);
    });
    let count = orders.lock().len();
    assert_eq!(count, 2, "with the close, and without it");
}
