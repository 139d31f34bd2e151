//! A leader is paused for longer than the leases last, and resumes (etcd 15247). By its own clock
//! every lease has expired, but other leaders have renewed them meanwhile: it must end none. Nor
//! may it renew any for clients that asked it meanwhile.

use std::thread::sleep;
use std::time::Duration;

use palisade_client::{Client, Guard, LockOptions, Options};

use crate::support::cluster::Cluster;
use crate::support::locks::{holder_and_queue, lock, open_session};
use crate::support::{eventually, http};

const HOLDERS: usize = 20;

/// A client that gives up a node that does not answer in a fraction of [`TTL`].
fn options() -> Options {
    let moment = Duration::from_secs(1);
    Options { attempt_timeout: moment, dial_timeout: moment, probe_after: moment, ..Options::default() }
}

const TTL: Duration = Duration::from_secs(12);

/// Goal: the leader's successor keeps twenty holders alive; when the old leader resumes, they hold
/// what they held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_wakes_up_ends_no_lease() {
    let cluster = Cluster::start(3);
    let client = Client::connect(&cluster.endpoints(), options()).await.expect("a leader answers");
    let mut guards: Vec<(String, Guard)> = Vec::new();
    for number in 0..HOLDERS {
        let key = format!("job-{number}");
        let guard = client.lock(&key, LockOptions::default().ttl(TTL)).await.expect("the lock is free");
        guards.push((key, guard));
    }
    let sleeper = cluster.wait_ready();
    cluster.freeze(sleeper);
    tokio::time::sleep(TTL * 3 / 2).await;
    assert!(guards.iter().all(|(_, guard)| guard.is_valid()), "its successor keeps them alive");
    cluster.thaw(sleeper);
    let leader = cluster.wait_ready();
    eventually("it has applied what its successor has", || {
        (cluster.status(sleeper)?.applied >= cluster.status(leader)?.applied).then_some(())
    });
    for (key, guard) in &guards {
        assert!(guard.is_valid(), "{key} was lost");
        assert_eq!(holder_and_queue(&lock(&cluster, key)).0, Some((guard.session().number(), guard.token())), "{key}");
    }
}

/// Goal: a keepalive that waits at the paused leader's socket is not answered with a lease, for the
/// session has ended under its successor.
#[test]
fn a_leader_that_wakes_up_renews_no_lease() {
    let cluster = Cluster::start(3);
    let session = open_session(&cluster, "late", Duration::from_secs(2));
    let sleeper = cluster.wait_ready();
    cluster.freeze(sleeper);
    let address = cluster.client_addr(sleeper);
    let asked = std::thread::spawn(move || http::post(&address, &format!("/v1/sessions/{session}/keepalive"), ""));
    let path = format!("/v1/sessions/{session}");
    let awake: Vec<String> = cluster.others(sleeper).into_iter().map(|id| cluster.client_addr(id)).collect();
    eventually("the session has ended", || {
        awake.iter().any(|node| http::get(node, &path).is_ok_and(|answer| answer.status == 404)).then_some(())
    });
    // The paused leader's socket has taken the request long ago.
    sleep(Duration::from_millis(100));
    cluster.thaw(sleeper);
    let answer = asked.join().unwrap().expect("it wakes up, and answers");
    assert!([307, 404, 503].contains(&answer.status), "a lease that is none: {} {}", answer.status, answer.body);
}
