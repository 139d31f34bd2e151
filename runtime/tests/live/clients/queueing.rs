//! A client waits for a lock that is held.

use std::time::Duration;

use super::adapter::{Adapter, Pending};
use super::clusters::{LONG, NOW, WAIT, await_free, await_queue, calm_cluster, holder, key};
use super::program::Program;
use crate::support::locks::lock;

/// Goal: first come, first served: waiters of two clients are granted the lock in the order in which
/// they came, with growing tokens, and none of them before the holder releases.
pub fn waiters_are_granted_in_order_of_arrival(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "queue"));
    let clients = [0, 1].map(|_| Adapter::start(program, &cluster.endpoints()));
    let names = ["first", "second", "third"];
    let mut token = clients[0].acquire("holder", &key, LONG, NOW).token;
    let mut waiters: Vec<(&Adapter, &str, Pending<'_>)> = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        let client = &clients[(number + 1) % 2];
        waiters.push((client, name, client.ask(name, &key, LONG, WAIT)));
        await_queue(&cluster, &key, number + 1);
    }
    let owners: Vec<String> = lock(&cluster, &key).queue.into_iter().map(|waiter| waiter.owner).collect();
    assert_eq!(owners, names);
    let mut holder = (&clients[0], "holder");
    for (number, (client, name, pending)) in waiters.iter().enumerate() {
        let early = waiters[number..].iter().find(|(_, _, pending)| pending.is_answered());
        assert!(early.is_none(), "{:?} was granted the lock before its turn", early.map(|(_, name, _)| name));
        holder.0.release(holder.1).ok();
        let granted = pending.granted();
        assert!(granted.token > token, "tokens grow: {granted:?} came after {token}");
        (token, holder) = (granted.token, (*client, *name));
    }
    holder.0.release(holder.1).ok();
    await_free(&cluster, &key);
}

/// Goal: a wait that ends without a grant is answered `timeout`, and its queue position is gone.
pub fn a_wait_ends_with_timeout(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "timeout"));
    let client = Adapter::start(program, &cluster.endpoints());
    let granted = client.acquire("holder", &key, LONG, NOW);
    client.ask("waiter", &key, LONG, Duration::from_millis(700)).refused("timeout");
    await_queue(&cluster, &key, 0);
    assert_eq!(holder(&cluster, &key), Some(granted.token));
    client.release("holder").ok();
    await_free(&cluster, &key);
}

/// Goal: a wait that its user gives up leaves the queue at once, not after its TTL, and the waiter
/// behind it moves up.
pub fn a_cancelled_wait_leaves_the_queue(program: &Program) {
    let (cluster, key) = (calm_cluster(), key(program, "cancel"));
    let client = Adapter::start(program, &cluster.endpoints());
    client.acquire("holder", &key, LONG, NOW);
    let given_up = client.ask("given up", &key, LONG, WAIT);
    await_queue(&cluster, &key, 1);
    let patient = client.ask("patient", &key, LONG, WAIT);
    await_queue(&cluster, &key, 2);
    client.send(serde_json::json!({"do": "cancel", "name": "given up"})).ok();
    given_up.refused("cancelled");
    await_queue(&cluster, &key, 1);
    client.release("holder").ok();
    patient.granted();
    client.release("patient").ok();
    await_free(&cluster, &key);
    assert_eq!(client.losses("given up"), 0, "a wait is no lock that could be lost");
}
