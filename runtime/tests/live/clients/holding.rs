//! A client takes locks, keeps them, and releases them.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use super::adapter::{Adapter, acquire};
use super::clusters::{KEPT, LONG, NOW, WAIT, await_free, calm_cluster, follower, holder, key};
use super::program::Program;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::locks::lock;

/// Goal: a grant has the token that the replicated state has; a release frees the lock at once, and
/// the next grant has a greater token.
pub fn a_lock_is_granted_shown_and_released(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "release"));
    let (one, other) = (Adapter::start(program, &cluster.endpoints()), Adapter::start(program, &cluster.endpoints()));
    let granted = one.acquire("one", &key, LONG, NOW);
    let state = one.state("one");
    assert!(state.valid && state.token == Some(granted.token), "{state:?} after {granted:?}");
    assert!(state.remaining_ms <= LONG.as_secs_f64() * 1000.0, "a lease ends within its TTL: {state:?}");
    assert_eq!(holder(&cluster, &key), Some(granted.token));
    one.release("one").ok();
    assert_eq!(holder(&cluster, &key), None, "a release that is answered is done");
    let state = one.state("one");
    assert!(!state.valid && state.remaining_ms == 0.0, "a lock that was released is not held: {state:?}");
    let next = other.acquire("other", &key, LONG, NOW);
    assert!(next.token > granted.token, "tokens grow: {next:?} came after {granted:?}");
    other.release("other").ok();
    assert_eq!(one.losses("one") + other.losses("other"), 0, "a release is no loss");
    one.quit();
    other.quit();
}

/// Goal: a client that does not wait is answered at once that the lock is held, and leaves nothing in
/// the queue.
pub fn a_held_lock_is_refused_at_once_without_a_wait(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "held"));
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("holder", &key, LONG, NOW);
    client.ask("other", &key, LONG, NOW).refused("held");
    let lock = lock(&cluster, &key);
    assert_eq!((lock.holder.map(|holder| holder.token), lock.queue.len()), (Some(granted.token), 0));
    client.release("holder").ok();
}

/// Goal: a client renews its lease by itself: the lock is kept while its user does nothing for more
/// than two TTLs.
pub fn a_lock_is_kept_while_its_holder_is_idle(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "idle"));
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("idle", &key, KEPT, NOW);
    sleep(KEPT * 5 / 2);
    let state = client.state("idle");
    assert!(state.valid && state.remaining_ms > 0.0, "{state:?}");
    assert_eq!(holder(&cluster, &key), Some(granted.token));
    assert_eq!(client.losses("idle"), 0);
    client.release("idle").ok();
}

/// Goal: several keys are granted together under one token, or not at all, and are released together.
pub fn several_keys_are_one_grant(program: &Program) {
    let (cluster, one, two) = (calm_cluster(), key(program, "keys-1"), key(program, "keys-2"));
    let client = Adapter::start(program, &cluster.endpoints());
    let both = |name: &str| json!({"do": "acquire", "name": name, "keys": [one, two], "ttl_ms": 600_000});
    let granted = client.send(both("both")).granted();
    assert_eq!((holder(&cluster, &one), holder(&cluster, &two)), (Some(granted.token), Some(granted.token)));
    client.ask("second", &two, LONG, NOW).refused("held");
    client.release("both").ok();
    assert_eq!((holder(&cluster, &one), holder(&cluster, &two)), (None, None));
    client.acquire("second", &two, LONG, NOW);
    client.send(both("both again")).refused("held");
    assert_eq!(holder(&cluster, &one), None, "of several keys, all are granted or none");
    client.release("second").ok();
}

/// Goal: readers share a lock and exclude a writer; a semaphore has as many permits as its holders
/// say.
pub fn readers_share_a_lock(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "shared"));
    let client = Adapter::start(program, &cluster.endpoints());
    let with = |name: &str, options: serde_json::Value| {
        let mut command = acquire(name, &key, LONG, NOW);
        command.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        client.send(command)
    };
    let shared = json!({"mode": "shared"});
    with("reader 1", shared.clone()).granted();
    with("reader 2", shared).granted();
    assert_eq!(lock(&cluster, &key).holders.len(), 2);
    with("writer", json!({"mode": "exclusive"})).refused("held");
    client.release("reader 1").ok();
    client.release("reader 2").ok();
    with("one of two", json!({"permits": 1, "of": 2})).granted();
    with("two of two", json!({"permits": 2, "of": 2})).refused("held");
    with("another of two", json!({"permits": 1, "of": 2})).granted();
    client.release("one of two").ok();
    client.release("another of two").ok();
    await_free(&cluster, &key);
}

/// Goal: other clients read the value of a grant, and what its holder replaces it with.
pub fn a_value_is_shown_and_replaced(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "value"));
    let client = Adapter::start(program, &cluster.endpoints());
    let mut command = acquire("leader", &key, LONG, NOW);
    command["value"] = "10.0.0.7:8080".into();
    client.send(command).granted();
    let value = || lock(&cluster, &key).holder.and_then(|holder| holder.value);
    assert_eq!(value().as_deref(), Some("10.0.0.7:8080"));
    client.send(json!({"do": "value", "name": "leader", "value": "10.0.0.8:8080"})).ok();
    assert_eq!(value().as_deref(), Some("10.0.0.8:8080"));
    client.release("leader").ok();
}

/// Goal: a client that knows one node only, which does not lead, finds the leader through it, to wait
/// and to release.
pub fn one_endpoint_that_is_a_follower_is_enough(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "follower"));
    let client = Adapter::start(program, &[follower(&cluster)]);
    let first = client.acquire("first", &key, LONG, NOW);
    let second = client.ask("second", &key, LONG, WAIT);
    client.release("first").ok();
    assert!(second.granted().token > first.token);
    client.release("second").ok();
    await_free(&cluster, &key);
}

/// Goal: a client proves who it is by its certificate, and verifies the nodes; without the CA it
/// gets no lock.
pub fn a_client_with_a_certificate_speaks_tls(program: &Program) {
    let certificates = Certificates::of("secured", 3);
    let cluster = Cluster::start_secured(3, &[], &certificates);
    let options = Certificates::arguments(&certificates.client("test"));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let client = Adapter::start_with(program, &cluster.endpoints(), &options);
    let granted = client.acquire("secured", "secured", KEPT, Duration::from_secs(10));
    assert!(client.state("secured").valid, "{granted:?}");
    client.release("secured").ok();
    let plain = Adapter::start(program, &cluster.endpoints());
    let answer = plain.ask("plain", "secured", KEPT, Duration::from_secs(2)).answer();
    assert!(answer["error"].is_string(), "a client without TLS was answered {answer}");
}
