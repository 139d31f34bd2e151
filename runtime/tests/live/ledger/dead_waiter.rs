//! A waiter dies in the queue: its session ends while another client holds the lock. It must be
//! answered then, not when its turn would have come (etcd 19597); must never be granted the lock
//! (etcd 11456); and must not delay the waiters behind it.

use std::time::Duration;

use serde_json::json;

use super::{KEY, LONG, await_queue, wait_for_lock};
use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, post_to_leader, release};

/// Long enough to get into the queue on a slow machine.
const TTL: Duration = Duration::from_secs(4);

#[test]
fn a_waiter_that_dies_leaves_the_queue_at_once() {
    let cluster = Cluster::start_calm(3);
    let [holder, next] = ["holder", "next"].map(|owner| open_session(&cluster, owner, LONG));
    let held = acquire(&cluster, KEY, holder);
    let dead = open_session(&cluster, "dead", TTL);
    let waits = wait_for_lock(&cluster, dead);
    await_queue(&cluster, &[dead]);
    let behind = wait_for_lock(&cluster, next);

    waits.join().unwrap().refused(404, "no_session");
    assert_eq!(
        holder_and_queue(&lock(&cluster, KEY)).0,
        Some((holder.number(), held.token)),
        "the lock is still held when it hears of it"
    );
    await_queue(&cluster, &[next]);

    release(&cluster, KEY, holder, held.token);
    let grant = behind.join().unwrap().ok();
    assert_eq!(
        (&grant["session"], &grant["token"]),
        (&json!(next), &json!(held.token + 1)),
        "no session had it in between"
    );
    let keepalive = format!("/v1/sessions/{dead}/keepalive");
    post_to_leader(&cluster.endpoints(), &keepalive, &json!({})).refused(404, "no_session");
}
