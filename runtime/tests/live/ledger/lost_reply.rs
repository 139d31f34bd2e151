//! A contender asks for a lock, is granted it or queued, and never receives the answer
//! (go-zookeeper 229), because the leader dies before it answers. The contender finds its claim
//! again when it asks again, or the claim ends with its session; it blocks no other client.

use std::time::Duration;

use palisade_client::wire::SessionId;
use serde_json::{Value, json};

use super::{KEY, LONG, await_queue, connect};
use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, release};

/// The request that a contender sends, and sends again.
fn ask(session: SessionId, number: u64) -> Value {
    let options = json!({ "session": session, "wait_ms": LONG.as_millis() });
    json!({ "acquire": { "key": KEY, "options": options, "number": number } })
}

/// Goal: a contender that asks again, as the same operation or as a new one, is in the queue once,
/// at its old position. In the end the queue is empty.
#[test]
fn a_contender_that_asks_again_stands_in_the_queue_once() {
    let mut cluster = Cluster::start_calm(3);
    let [holder, contender, next] = ["holder", "contender", "next"].map(|owner| open_session(&cluster, owner, LONG));
    let held = acquire(&cluster, KEY, holder);
    let leader = cluster.wait_ready();
    let mut lost = connect(&cluster);
    lost.send(1, &ask(contender, 1));
    await_queue(&cluster, &[contender]);
    cluster.kill(leader);

    let mut socket = connect(&cluster);
    socket.send(1, &ask(next, 1));
    await_queue(&cluster, &[contender, next]);
    socket.send(2, &ask(contender, 1));
    // It gives that up for lost, too, and asks for the lock once more.
    socket.send(3, &ask(contender, 2));
    let shown = socket.ask(4, &json!({ "show_lock": { "key": KEY } }));
    assert_eq!(shown["ok"]["lock"]["queue"].as_array().map(Vec::len), Some(2), "each stands there once: {shown}");
    release(&cluster, KEY, holder, held.token);

    let answer = socket.receive().expect("the connection stays");
    let grant = &answer["result"]["ok"]["acquired"];
    assert_eq!((&answer["id"], &grant["session"]), (&json!(3), &json!(contender)), "the last request is answered");
    assert_eq!(grant["token"], held.token + 1, "it was granted the lock once");
    assert_eq!(
        holder_and_queue(&lock(&cluster, KEY)),
        (Some((contender.number(), held.token + 1)), vec![next.number()]),
        "and waits at no second queue position"
    );
    release(&cluster, KEY, contender, held.token + 1);
    let answer = socket.receive().expect("the connection stays");
    assert_eq!((&answer["id"], &answer["result"]["ok"]["acquired"]["token"]), (&json!(1), &json!(held.token + 2)));
    release(&cluster, KEY, next, held.token + 2);
    assert_eq!(holder_and_queue(&lock(&cluster, KEY)), (None, vec![]), "no session is left");
}

/// Goal: the lock was granted and the answer lost. A contender that asks again has the lock
/// already, under the same token.
#[test]
fn a_grant_that_was_never_heard_of_is_found_again() {
    let mut cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "contender", LONG);
    let leader = cluster.wait_ready();
    let mut lost = connect(&cluster);
    lost.send(1, &ask(session, 1));
    let granted = eventually("it is granted the lock", || holder_and_queue(&lock(&cluster, KEY)).0);
    cluster.kill(leader);

    let answer = connect(&cluster).ask(1, &ask(session, 1));
    assert_eq!(answer["ok"]["acquired"]["token"], granted.1, "{answer}");
    let other = acquire(&cluster, "other", session);
    assert_eq!(other.token, granted.1 + 1, "there was no second grant");
}

/// Goal: a contender that opened no session before cannot ask again with it: no client knows the
/// claim that it left in the queue. That claim ends with its time-to-live although it is the first
/// in the queue, and the queue goes on.
#[test]
fn a_claim_that_no_client_knows_of_ends_with_its_session() {
    let mut cluster = Cluster::start_calm(3);
    let [holder, next] = ["holder", "next"].map(|owner| open_session(&cluster, owner, LONG));
    let held = acquire(&cluster, KEY, holder);
    let leader = cluster.wait_ready();
    let mut lost = connect(&cluster);
    let ttl = Duration::from_secs(10);
    let options = json!({ "ttl_ms": ttl.as_millis(), "wait_ms": LONG.as_millis(), "owner": "orphan" });
    lost.send(1, &json!({ "acquire": { "key": KEY, "options": options } }));
    eventually("it stands in the queue", || (lock(&cluster, KEY).queue.len() == 1).then_some(()));
    cluster.kill(leader);

    let mut socket = connect(&cluster);
    socket.send(1, &ask(next, 1));
    let queue = eventually("the next stands behind it", || {
        let queue = lock(&cluster, KEY).queue;
        queue.iter().any(|waiter| waiter.session == next.number()).then_some(queue)
    });
    assert_eq!(queue[0].owner, "orphan", "it was still there: this machine stood still otherwise");
    await_queue(&cluster, &[next]);
    release(&cluster, KEY, holder, held.token);
    let answer = socket.receive().expect("the connection stays");
    assert_eq!(answer["result"]["ok"]["acquired"]["token"], held.token + 1, "no session was granted it in between");
}
