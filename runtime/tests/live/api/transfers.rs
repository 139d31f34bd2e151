//! A leader that an operator asks again and again to transfer leadership to a dead voter refuses nearly everything
//! that is proposed, its own proposals included. It answers waits that end meanwhile all the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::{eventually, http, locks};

/// How many clients wait, and how long each: they run out of time one after the other.
const WAITS: u64 = 40;

/// Goal: every wait is answered that it is over, and the queue is empty in the end, also of waiters
/// whose connections are gone.
#[test]
fn waits_end_while_the_leader_transfers_to_a_dead_voter() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let holder = locks::open_session(&cluster, "holder", Duration::from_secs(3600));
    locks::acquire(&cluster, "k", holder);
    let dead = cluster.others(leader)[0];
    cluster.kill(dead);

    let wait = |number: u64| {
        // Sessions that outlive the test: a wait is to end by itself, and not with its session.
        let body = json!({"wait_ms": 15_000 + 25 * number, "ttl_ms": 3_600_000}).to_string();
        http::post(&address, "/v1/locks/k/acquire", &body).map(|response| (response.status, response.body))
    };
    let is_over = AtomicBool::new(false);
    let (answers, failed) = thread::scope(|scope| {
        let waits: Vec<_> = (1..=WAITS).map(|number| scope.spawn(move || wait(number))).collect();
        eventually("all stand in the queue", || (queue(&cluster, leader) as u64 == WAITS).then_some(()));
        // The connection of this one ends in the middle of a transfer.
        let leaves = std::net::TcpStream::connect(&address).unwrap();
        let body = r#"{"wait_ms":3600000,"ttl_ms":3600000}"#;
        let head =
            format!("POST /v1/locks/k/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        std::io::Write::write_all(&mut &leaves, format!("{head}{body}").as_bytes()).unwrap();
        eventually("one more", || (queue(&cluster, leader) as u64 == WAITS + 1).then_some(()));
        let operator = scope.spawn(|| {
            let transfer = json!({"to": dead}).to_string();
            let mut failed = 0;
            while !is_over.load(Ordering::SeqCst) {
                let response = http::post(&address, "/v1/leader/transfer", &transfer).unwrap();
                response.refused(503, "not_transferred");
                failed += 1;
            }
            failed
        });
        thread::sleep(Duration::from_millis(300));
        drop(leaves);
        let answers: Vec<_> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
        is_over.store(true, Ordering::SeqCst);
        (answers, operator.join().unwrap())
    });
    assert!(failed > 1, "the leader was transferring meanwhile");
    for answer in answers {
        let (status, body) = answer.expect("every wait is answered");
        assert_eq!(status, 408, "{body}");
        assert!(body.contains("timeout"), "{body}");
    }
    eventually("an empty queue", || (queue(&cluster, leader) == 0).then_some(()));
    assert_eq!(cluster.agreed_leader(), Some(leader));
}

/// How many wait, as this node has it.
fn queue(cluster: &Cluster, id: u16) -> usize {
    locks::lock_at(cluster, id, "k").map_or(0, |lock| lock.queue.len())
}
