//! A client loses its lock, and says so: before another client can be granted it, wherever that is
//! in its power.

use std::time::{Duration, Instant};

use palisade_client::margin;
use serde_json::json;

use super::adapter::Adapter;
use super::clusters::{KEPT, LONG, LOST, NOW, WAIT, await_free, await_queue, break_lock, calm_cluster, holder, key};
use super::links::{Links, Reply};
use super::program::Program;

const KEY: &str = "nightly";

/// Goal: a process that was paused for longer than its TTL says at its first instruction that its
/// lock is not held, and tells that it is lost; another client has the lock, with a greater token.
pub fn a_paused_client_says_that_its_lock_is_lost(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "pause"));
    let (paused, other) =
        (Adapter::start(program, &cluster.endpoints()), Adapter::start(program, &cluster.endpoints()));
    let first = paused.acquire("paused", &key, LOST, NOW);
    let waiting = other.ask("other", &key, LONG, WAIT);
    await_queue(&cluster, &key, 1);
    paused.freeze();
    let second = waiting.granted();
    assert!(second.token > first.token, "tokens grow: {second:?} came after {first:?}");
    // It lies in the pipe when the process goes on.
    let state = paused.send(json!({"do": "state", "name": "paused"}));
    paused.thaw();
    let state = state.state();
    assert!(!state.valid && state.remaining_ms == 0.0, "another client holds the lock: {state:?}");
    paused.lost("paused");
    paused.release("paused").refused("lost");
    assert_eq!(paused.losses("paused"), 1, "it is told once");
    assert_eq!(holder(&cluster, &key), Some(second.token), "the release of a lost lock frees no newer one");
    assert!(other.state("other").valid);
    other.release("other").ok();
}

/// Goal: a client whose network swallows everything, while its connections stay open, tells that its
/// lock is lost before another client is granted it. It never promises more of the TTL than the margin
/// leaves, so that its user has time to stop.
pub fn loss_is_reported_before_another_client_is_granted(program: &Program) {
    assert_lost_in_time(program, LOST, Duration::ZERO);
}

/// Goal: the same where each answer is under way for a good part of the lease: that lasts from the
/// moment at which the request was sent, not from the answer.
pub fn loss_is_reported_in_time_on_a_slow_network(program: &Program) {
    assert_lost_in_time(program, LOST * 3 / 2, LOST / 4);
}

fn assert_lost_in_time(program: &Program, ttl: Duration, delay: Duration) {
    let (links, cluster) = Links::before_cluster();
    links.delay_answers(delay);
    let leader = cluster.client_addr(cluster.wait_ready());
    let (frozen, other) = (Adapter::start(program, links.endpoints()), Adapter::start(program, &[leader]));
    let first = frozen.acquire("frozen", KEY, ttl, WAIT);
    let state = frozen.state("frozen");
    let trusted = (ttl - margin(ttl)).as_secs_f64() * 1_000.0;
    assert!(state.valid && state.remaining_ms <= trusted, "it is held for {trusted} ms more at the most: {state:?}");
    let waiting = other.ask("other", KEY, LONG, WAIT);
    await_queue(&cluster, KEY, 1);
    links.freeze_after(Reply::Renewed);
    let second = waiting.granted();
    let lost = frozen.lost("frozen");
    assert!(lost <= second.at_us, "the loss was told {} us after the next grant", lost - second.at_us);
    assert!(second.token > first.token, "tokens grow: {second:?} came after {first:?}");
    assert!(!frozen.state("frozen").valid);
    links.thaw();
    frozen.release("frozen").refused("lost");
    assert_eq!(frozen.losses("frozen"), 1, "it is told once");
    assert_eq!(holder(&cluster, KEY), Some(second.token));
    other.release("other").ok();
}

/// Goal: a client whose lock an operator breaks tells that it is lost, long before its TTL ends.
pub fn broken_lock_is_reported_lost(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "break"));
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("broken", &key, LONG, NOW);
    let waiting = client.ask("next", &key, LONG, WAIT);
    await_queue(&cluster, &key, 1);
    break_lock(&cluster.endpoints(), &key, granted.token);
    client.lost("broken");
    let state = client.state("broken");
    assert!(!state.valid && state.remaining_ms == 0.0, "the lock is another's: {state:?}");
    let next = waiting.granted();
    assert!(next.token > granted.token, "tokens grow: {next:?} came after {granted:?}");
    client.release("broken").refused("lost");
    assert_eq!(client.losses("broken"), 1, "it is told once");
    assert_eq!(holder(&cluster, &key), Some(next.token));
    client.release("next").ok();
}

/// Goal: a client that was cut off while an operator broke its lock is told when it comes back, or at
/// its next renewal, and does not queue for the lock again.
pub fn a_lock_that_is_broken_while_its_client_is_cut_off_is_lost(program: &Program) {
    let (links, cluster) = Links::before_cluster();
    let leader = cluster.client_addr(cluster.wait_ready());
    let (frozen, other) =
        (Adapter::start(program, links.endpoints()), Adapter::start(program, std::slice::from_ref(&leader)));
    let first = frozen.acquire("broken", KEY, KEPT, NOW);
    let waiting = other.ask("next", KEY, LONG, WAIT);
    await_queue(&cluster, KEY, 1);
    links.freeze();
    break_lock(&[leader], KEY, first.token);
    let second = waiting.granted();
    links.thaw();
    frozen.lost("broken");
    assert!(!frozen.state("broken").valid);
    frozen.release("broken").refused("lost");
    assert_eq!(frozen.losses("broken"), 1, "it is told once");
    await_queue(&cluster, KEY, 0);
    assert_eq!(holder(&cluster, KEY), Some(second.token));
    other.release("next").ok();
    await_free(&cluster, KEY);
}

/// Goal: a release that comes after the end of the lease is answered `lost`, not done, although
/// no other client has asked for the lock.
pub fn a_release_after_the_lease_is_lost(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "late"));
    let client = Adapter::start(program, &cluster.endpoints());
    client.acquire("late", &key, LOST, NOW);
    client.freeze();
    await_free(&cluster, &key);
    let release = client.release("late");
    client.thaw();
    release.refused("lost");
    assert!(!client.state("late").valid);
    assert!(client.losses("late") <= 1, "it is told once at the most");
}

/// Goal: a client that is killed leaves its lock to its TTL: another client that waits is granted it,
/// and not before the TTL is over.
pub fn a_killed_client_frees_its_lock_after_its_ttl(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "kill"));
    let (mut killed, other) =
        (Adapter::start(program, &cluster.endpoints()), Adapter::start(program, &cluster.endpoints()));
    let begin = Instant::now();
    let first = killed.acquire("killed", &key, LOST, NOW);
    let waiting = other.ask("other", &key, LONG, WAIT);
    await_queue(&cluster, &key, 1);
    killed.kill();
    let second = waiting.granted();
    assert!(second.token > first.token, "tokens grow: {second:?} came after {first:?}");
    // The lease began later. One hundredth is for the rate of the server's clock.
    let lasted = begin.elapsed();
    assert!(lasted >= LOST * 99 / 100, "the lock was free after {lasted:?}");
    assert!(other.state("other").valid);
    other.release("other").ok();
}
