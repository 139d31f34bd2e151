//! A session that goes on over another connection.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Client, lock, node, queue, session_path};
use crate::support::{http, metrics};

fn resume(grant: &Value, fields: Value) -> Value {
    let mut resume = json!({ "key": "k", "session": grant["session"], "token": grant["token"] });
    resume.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "resume": resume })
}

/// Goal: neither a cut connection nor a Close frame releases: the client comes back with its session, and has
/// the lock with the same token.
#[test]
fn connection_that_ends_leaves_the_lock_to_be_resumed() {
    let (_cluster, address) = node();
    for wait_ms in [0, 60_000] {
        let acquire = json!({ "key": "k", "ttl_ms": 20_000, "wait_ms": wait_ms });
        let (client, grant) = Client::granted(&address, acquire);
        client.close();
        assert_eq!(lock(&address, "k")["holder"]["token"], grant["token"], "a Close frame does not release");
        let mut resumed = Client::begin(&address, &resume(&grant, json!({})));
        assert_eq!(resumed.next("granted"), grant);
        drop(resumed);
        let mut resumed = Client::begin(&address, &resume(&grant, json!({ "ttl_ms": 20_000 })));
        assert_eq!(resumed.next("granted"), grant);
        resumed.be_renewed(1);
        resumed.release();
        assert_eq!(lock(&address, "k")["held"], false);
    }
    let rejected = metrics::value(&address, "palisade_frames_rejected_total");
    assert_eq!(rejected, 0.0, "the end of a connection without a Close frame violates nothing");
}

/// Goal: no node renews a session whose connection has ended.
#[test]
fn session_without_a_connection_ends_with_its_ttl() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 1_500 }));
    client.be_renewed(1);
    client.close();
    let mut next = Client::begin(&address, &json!({ "acquire": { "key": "k", "wait_ms": 600_000 } }));
    next.waiting();
    assert!(next.next("granted")["token"].as_u64() > grant["token"].as_u64());
    let mut late = Client::begin(&address, &resume(&grant, json!({})));
    assert_eq!(late.last("lost")["error"], "no_session");
    next.release();
}

/// Goal: the newer connection takes the session over, and the older one renews nothing any more.
#[test]
fn resume_interrupts_the_older_connection() {
    let (_cluster, address) = node();
    let (mut older, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 3_000 }));
    older.be_renewed(1);
    let mut newer = Client::begin(&address, &resume(&grant, json!({})));
    assert_eq!(newer.next("granted"), grant);
    let interrupted = older.last("interrupted");
    assert_eq!((&interrupted["error"], &interrupted["leader"]), (&json!("taken_over"), &Value::Null));
    newer.be_renewed(4);
    newer.release();
}

/// Goal: a session is resumed by the client that has its secret, and a grant by its token: another one is told
/// that it holds nothing, and changes nothing.
#[test]
fn resume_with_a_wrong_secret_or_token_is_lost() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 20_000 }));
    let credential = grant["session"].as_str().unwrap();
    let last = if credential.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &credential[..credential.len() - 1]);
    for token in [grant["token"].clone(), Value::Null] {
        let mut fields = json!({ "key": "k", "session": wrong, "token": token });
        let expected = if token.is_null() {
            fields.as_object_mut().unwrap().remove("token");
            "error"
        } else {
            "lost"
        };
        let mut guess = Client::begin(&address, &json!({ "resume": fields }));
        assert_eq!(guess.last(expected)["error"], "no_session");
    }
    client.be_renewed(1);

    let token = grant["token"].as_u64().unwrap() + 1;
    let mut confused = Client::begin(&address, &resume(&grant, json!({ "token": token })));
    let lost = confused.last("lost");
    assert!(lost["message"].as_str().unwrap().contains(&format!("not {token}")), "{lost}");
    let mut elsewhere = Client::begin(&address, &resume(&grant, json!({ "key": "other" })));
    assert_eq!(elsewhere.last("lost")["error"], "not_holder");
    let mut right = Client::begin(&address, &resume(&grant, json!({})));
    assert_eq!(right.next("granted"), grant);
    right.release();
}

/// Goal: a waiter keeps its queue position, whether its connection has ended or is still open when it resumes; and
/// a client that missed its grant finds it.
#[test]
fn waiter_resumes_at_its_position() {
    let (_cluster, address) = node();
    let (holder, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let wait = |owner| json!({ "key": "k", "ttl_ms": 20_000, "wait_ms": 600_000, "owner": owner });
    let (first, session) = Client::waits(&address, wait("first"));
    queue(&address, "k", 1);
    let (second, _) = Client::waits(&address, wait("second"));
    queue(&address, "k", 2);

    first.close();
    assert_eq!(queue(&address, "k", 2), ["first", "second"], "the wait stays as long as the session");
    let again = json!({ "resume": { "key": "k", "session": session, "wait_ms": 600_000 } });
    let mut resumed = Client::begin(&address, &again);
    assert_eq!(resumed.waiting(), session);
    let mut newest = Client::begin(&address, &again);
    assert_eq!(newest.waiting(), session);
    assert_eq!(resumed.last("interrupted")["error"], "taken_over");
    newest.be_renewed(1);
    assert_eq!(queue(&address, "k", 2), ["first", "second"]);

    newest.close();
    holder.release();
    let mut found = Client::begin(&address, &again);
    assert_eq!(found.waiting(), session);
    let grant = found.next("granted");
    assert_eq!(lock(&address, "k")["holder"]["token"], grant["token"]);
    assert_eq!(queue(&address, "k", 1), ["second"]);
    found.release();
    let mut second = second;
    second.next("granted");
    second.release();
}

/// Goal: a wait whose connection is lost ends with its own time, and leaves no session behind.
#[test]
fn deserted_wait_ends_with_its_time() {
    let (_cluster, address) = node();
    let (holder, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let (waiter, session) = Client::waits(&address, json!({ "key": "k", "ttl_ms": 86_400_000, "wait_ms": 1_500 }));
    queue(&address, "k", 1);
    waiter.close();
    queue(&address, "k", 0);
    crate::support::eventually("the session is closed", || {
        let shown = http::get(&address, &session_path(&session)).unwrap();
        (shown.status == 404).then_some(())
    });
    holder.release();
}

/// How long the waits of the next test last.
const WAIT: Duration = Duration::from_millis(1_500);

/// Lets 40 waits run out, and resumes their sessions within 40 ms, from so long `after` the acquires on. Returns how many
/// sessions were kept: the other resumes were refused.
fn resume_beside_the_end(address: &str, after: Duration) -> usize {
    let begin = &Barrier::new(40);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..40)
            .map(|number: u32| {
                scope.spawn(move || {
                    begin.wait();
                    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap();
                    let acquire = json!({ "key": "k", "ttl_ms": 9_000, "wait_ms": wait_ms });
                    let sent = Instant::now();
                    let (waiter, session) = Client::waits(address, acquire);
                    let resumes = after + number * Duration::from_millis(1);
                    thread::sleep(resumes.saturating_sub(sent.elapsed()));
                    let again = json!({ "resume": { "key": "k", "session": session, "wait_ms": 600_000 } });
                    let mut resumed = Client::begin(address, &again);
                    let kept = match resumed.receive() {
                        (kind, _) if kind == "waiting" => true,
                        (kind, refused) if kind == "error" => {
                            assert_eq!(refused["error"], "no_session", "{refused}");
                            false
                        }
                        other => panic!("neither `waiting` nor an error: {other:?}"),
                    };
                    drop(waiter);
                    if kept {
                        resumed.be_renewed(1);
                        resumed.release();
                    }
                    kept
                })
            })
            .collect();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).filter(|kept| *kept).count()
    })
}

/// Goal: a waiter that resumes while its wait runs out goes on, or is refused: a session that the node has renewed for it
/// is not closed behind it. The resumes come earlier or later until some of them were kept and some refused at once.
#[test]
fn resume_beside_the_end_of_a_wait_keeps_its_session() {
    const STEP: Duration = Duration::from_millis(20);
    let (_cluster, address) = node();
    let (holder, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 86_400_000 }));
    let mut after = WAIT - STEP;
    let mut seen = Vec::new();
    let beside = (0..30).any(|_| {
        let kept = resume_beside_the_end(&address, after);
        seen.push((after, kept));
        after = if kept == 0 { after.saturating_sub(STEP) } else { after + STEP };
        (1..40).contains(&kept)
    });
    assert!(beside, "no resumes came beside the ends of the waits; after the acquires, and kept: {seen:?}");
    drop(holder);
}
