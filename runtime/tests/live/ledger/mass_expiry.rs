//! Very many leases expire at the same moment (etcd 12105, 9360). Ending them takes every replica a
//! while; meanwhile other clients are served, and a client that wants one of their locks does not
//! wait behind the expired sessions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use palisade_client::codec;
use palisade_client::wire::{self, Answer, Op, Outcome, Request, Response};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::connect;
use crate::support::cluster::Cluster;
use crate::support::{eventually, http};

/// How many sessions there are at the most: a slow machine has fewer.
const SESSIONS: u64 = 20_000;
/// When all of them end, from the first acquire on. The test opens sessions during the first half of this time.
const END: Duration = Duration::from_secs(20);
/// How many acquires are on their way at a time.
const BATCH: u64 = 500;

/// Takes many locks, each with a session of its own, and such a time-to-live that all
/// end at the same moment. Returns that moment, and the number of the locks.
fn acquire_all(cluster: &Cluster) -> (Instant, u64) {
    let mut socket = connect(cluster).0;
    let end = Instant::now() + END;
    let mut taken = 0;
    while taken < SESSIONS {
        let left = end.saturating_duration_since(Instant::now());
        if left < END / 2 {
            break;
        }
        let ttl_ms = u64::try_from(left.as_millis()).unwrap();
        for id in taken..taken + BATCH {
            let options = wire::Acquire { ttl_ms, owner: "expiring".to_owned(), ..wire::Acquire::default() };
            let request =
                Request { id, op: Op::Acquire { keys: format!("expiring-{id}").into(), options, number: None } };
            let mut frame = Vec::new();
            codec::encode_into(&request, &mut frame);
            socket.write(Message::Binary(frame.into())).expect("the node reads");
        }
        socket.flush().expect("the node reads");
        let mut answered = 0;
        while answered < BATCH {
            let Message::Binary(frame) = socket.read().expect("the node answers") else { continue };
            let response: Response = codec::decode(&frame).expect("the node speaks the protocol");
            assert!(matches!(response.result, Outcome::Ok(Answer::Acquired(_))), "{response:?}");
            answered += 1;
        }
        taken += BATCH;
    }
    (end, taken)
}

/// Goal: while very many leases end at once, a client that takes and gives back a lock of its
/// own is always served, a newcomer gets the lock of a dead holder without waiting for the others'
/// end, and the leader leads on.
#[test]
fn sessions_that_end_at_once_delay_no_request() {
    let cluster = Cluster::start_with(3, &["--election-timeout", "3s"]);
    let leader = cluster.wait_ready();
    let (address, term) = (cluster.client_addr(leader), cluster.status(leader).unwrap().term);
    let (end, taken) = acquire_all(&cluster);
    let sessions = || http::get(&address, "/v1/status").unwrap().ok()["sessions"].as_u64().unwrap();
    assert!(sessions() >= taken, "all of them are there");

    let over = AtomicBool::new(false);
    let (pairs, longest) = std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let (mut pairs, mut longest) = (0, Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let grant = http::post(&address, "/v1/locks/honest/acquire", "{}").expect("the node answers").ok();
                let body = json!({ "session": grant["session"], "token": grant["token"] }).to_string();
                http::post(&address, "/v1/locks/honest/release", &body).expect("the node answers").ok();
                (pairs, longest) = (pairs + 1, longest.max(begin.elapsed()));
            }
            (pairs, longest)
        });
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        // The last of them would be the last to be swept. Its deadline has passed when it is
        // asked for; how many others there still are does not matter.
        let key = format!("/v1/locks/expiring-{}/acquire", taken - 1);
        let late = eventually("the lock of a dead holder is granted", || {
            let answer = http::post(&address, &key, r#"{"ttl_ms":600000}"#).expect("the node answers");
            (answer.status == 200).then(&sessions)
        });
        println!("{late} of {taken} sessions were left when a dead holder's lock was granted");
        eventually("all of them are gone", || (sessions() <= 2).then_some(()));
        over.store(true, Ordering::Relaxed);
        honest.join().expect("it was served")
    });
    println!("{pairs} pairs meanwhile, the longest took {longest:?}");
    assert_eq!(cluster.wait_ready(), leader, "the leader was unseated");
    assert_eq!(cluster.status(leader).unwrap().term, term);
}
