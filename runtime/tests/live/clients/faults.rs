//! Faults that a client must survive without losing its lock or its queue position.

use std::thread::sleep;
use std::time::Duration;

use super::adapter::{Adapter, Granted};
use super::clusters::{KEPT, LONG, NOW, WAIT, await_free, await_queue, holder};
use super::links::{Links, Reply};
use super::program::Program;
use crate::support::cluster::Cluster;
use crate::support::eventually;

const KEY: &str = "nightly";
/// A TTL within which a client finds that a leader is silent, and another one.
const FROZEN_LEADER: Duration = Duration::from_secs(10);

/// The client and the replicated state agree that the lock is held by this grant, and its user was
/// never told anything else.
#[track_caller]
fn assert_kept(client: &Adapter, name: &str, cluster: &Cluster, granted: Granted) {
    let state = client.state(name);
    assert!(state.valid && state.token == Some(granted.token), "{state:?} after {granted:?}");
    assert_eq!(holder(cluster, KEY), Some(granted.token));
    assert_eq!(client.losses(name), 0);
}

/// Goal: a leader that is killed costs no lock: the client renews its lease at the next leader, with
/// the same token, and releases there.
pub fn a_killed_leader_costs_no_lock(program: &Program) {
    let mut cluster = Cluster::start(3);
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("holder", KEY, KEPT, NOW);
    for _ in 0..2 {
        let leader = cluster.wait_ready();
        cluster.kill(leader);
        cluster.wait_ready();
        sleep(KEPT);
        assert_kept(&client, "holder", &cluster, granted);
        cluster.restart(leader);
    }
    client.release("holder").ok();
    assert_eq!(holder(&cluster, KEY), None);
    assert_eq!(client.losses("holder"), 0);
}

/// Goal: a leader that stops in an orderly way (SIGTERM) transfers leadership, and costs no lock either.
pub fn a_stopped_leader_costs_no_lock(program: &Program) {
    let mut cluster = Cluster::start(3);
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("holder", KEY, KEPT, NOW);
    let waiting = client.ask("waiter", KEY, KEPT, WAIT);
    await_queue(&cluster, KEY, 1);
    let leader = cluster.wait_ready();
    cluster.stop(leader);
    cluster.wait_ready();
    sleep(KEPT);
    assert_kept(&client, "holder", &cluster, granted);
    await_queue(&cluster, KEY, 1);
    client.release("holder").ok();
    assert!(waiting.granted().token > granted.token);
    client.release("waiter").ok();
}

/// Goal: a leader that stands still keeps its connections open and says nothing: the client gives it
/// up in time, and goes on at the next leader with the same grant.
pub fn a_frozen_leader_costs_no_lock(program: &Program) {
    let cluster = Cluster::start(3);
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("holder", KEY, FROZEN_LEADER, NOW);
    let waiting = client.ask("waiter", KEY, FROZEN_LEADER, WAIT);
    await_queue(&cluster, KEY, 1);
    let frozen = cluster.wait_ready();
    cluster.freeze(frozen);
    sleep(FROZEN_LEADER * 5 / 4);
    let state = client.state("holder");
    assert!(state.valid && state.token == Some(granted.token), "{state:?} after {granted:?}");
    cluster.thaw(frozen);
    cluster.wait_ready();
    await_queue(&cluster, KEY, 1);
    assert_kept(&client, "holder", &cluster, granted);
    client.release("holder").ok();
    assert!(waiting.granted().token > granted.token);
    client.release("waiter").ok();
    await_free(&cluster, KEY);
}

/// Goal: a leader that is killed costs no queue position: one call of acquire waits at one leader
/// after the other, and is granted the lock in its turn.
pub fn a_killed_leader_costs_no_queue_position(program: &Program) {
    let mut cluster = Cluster::start(3);
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("holder", KEY, KEPT, NOW);
    let first = client.ask("first", KEY, KEPT, WAIT);
    await_queue(&cluster, KEY, 1);
    let second = client.ask("second", KEY, KEPT, WAIT);
    await_queue(&cluster, KEY, 2);
    let leader = cluster.wait_ready();
    cluster.kill(leader);
    cluster.wait_ready();
    await_queue(&cluster, KEY, 2);
    assert!(!first.is_answered() && !second.is_answered(), "the lock is held");
    sleep(KEPT);
    await_queue(&cluster, KEY, 2);
    assert_kept(&client, "holder", &cluster, granted);
    client.release("holder").ok();
    let next = first.granted();
    assert!(next.token > granted.token, "tokens grow: {next:?} came after {granted:?}");
    assert!(!second.is_answered(), "the first waiter is granted the lock first");
    client.release("first").ok();
    assert!(second.granted().token > next.token);
    client.release("second").ok();
    await_free(&cluster, KEY);
}

/// Goal: a connection that is reset is no loss: the client comes back within its TTL and goes on with
/// the same grant.
pub fn a_cut_connection_is_resumed(program: &Program) {
    let (links, cluster) = Links::before_cluster();
    let client = Adapter::start(program, links.endpoints());
    let granted = client.acquire("holder", KEY, KEPT, NOW);
    let waiting = client.ask("waiter", KEY, KEPT, WAIT);
    await_queue(&cluster, KEY, 1);
    for _ in 0..3 {
        eventually("the client is connected", || (links.carried() > 0).then_some(()));
        links.cut();
        sleep(KEPT / 2);
    }
    await_queue(&cluster, KEY, 1);
    assert_kept(&client, "holder", &cluster, granted);
    client.release("holder").ok();
    assert!(waiting.granted().token > granted.token);
    client.release("waiter").ok();
    await_free(&cluster, KEY);
}

/// Goal: an acquire whose answer is lost with its connection is in effect once: the client finds its
/// own grant, and one release frees the lock.
pub fn a_lost_answer_to_an_acquire_is_one_grant(program: &Program) {
    let (links, cluster) = Links::before_cluster();
    let client = Adapter::start(program, links.endpoints());
    links.lose(Reply::Granted);
    let granted = client.acquire("holder", KEY, KEPT, Duration::from_secs(30));
    assert_eq!(links.lost(), 1, "the answer was not lost");
    assert_kept(&client, "holder", &cluster, granted);
    client.release("holder").ok();
    await_free(&cluster, KEY);
    assert_eq!(client.losses("holder"), 0, "a release is no loss");
}

/// Goal: the same for a grant after a wait. No session expires while the scenario runs, so what is
/// free in the end was released.
pub fn a_lost_answer_to_a_grant_after_a_wait_is_one_grant(program: &Program) {
    let (links, cluster) = Links::before_cluster();
    let client = Adapter::start(program, links.endpoints());
    let first = client.acquire("first", KEY, LONG, NOW);
    let second = client.ask("second", KEY, LONG, WAIT);
    await_queue(&cluster, KEY, 1);
    links.lose(Reply::Granted);
    client.release("first").ok();
    let granted = second.granted();
    assert_eq!(links.lost(), 1, "the answer was not lost");
    assert!(granted.token > first.token, "tokens grow: {granted:?} came after {first:?}");
    assert_kept(&client, "second", &cluster, granted);
    client.release("second").ok();
    await_free(&cluster, KEY);
}

/// Goal: a release whose answer is lost with its connection is a release: the client repeats it, and
/// does not take the answer to the repetition for a loss.
pub fn a_lost_answer_to_a_release_is_a_release(program: &Program) {
    let (links, cluster) = Links::before_cluster();
    let client = Adapter::start(program, links.endpoints());
    let granted = client.acquire("holder", KEY, LONG, NOW);
    links.lose(Reply::Released);
    client.release("holder").ok();
    assert_eq!(links.lost(), 1, "the answer was not lost");
    assert_eq!(holder(&cluster, KEY), None);
    assert_eq!(client.losses("holder"), 0, "a release is no loss");
    let next = client.acquire("next", KEY, LONG, NOW);
    assert!(next.token > granted.token, "tokens grow: {next:?} came after {granted:?}");
    client.release("next").ok();
}
