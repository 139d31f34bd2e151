//! An unlock whose answer was lost is sent again, when its sender has taken the lock anew (etcd
//! 22082). It means the hold that is over, and must leave the new one alone: the session is the
//! same, so only token or number can tell.

use serde_json::{Value, json};

use super::{KEY, LONG, connect};
use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, post_to_leader, release};

/// Goal: over plain HTTP, where the token says which hold is meant.
#[test]
fn an_unlock_that_is_sent_again_frees_no_newer_lock() {
    let cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "worker", LONG);
    let first = acquire(&cluster, KEY, session);
    release(&cluster, KEY, session, first.token);
    let second = acquire(&cluster, KEY, session);

    let again = json!({ "session": session, "token": first.token });
    let path = format!("/v1/locks/{KEY}/release");
    post_to_leader(&cluster.endpoints(), &path, &again).refused(409, "not_holder");
    assert_eq!(holder_and_queue(&lock(&cluster, KEY)), (Some((session.number(), second.token)), vec![]));
}

/// Goal: with a number, at another leader, and in the form that names no token and drops whatever
/// there is. Its sender is told that it was done, and it is not done again.
#[test]
fn a_numbered_unlock_is_not_done_again_by_another_leader() {
    let mut cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "worker", LONG);
    let take = |number: u64| json!({ "acquire": { "key": KEY, "options": { "session": session }, "number": number } });
    let give_up = |number: u64| json!({ "withdraw": { "key": KEY, "session": session, "number": number } });
    let token = |answer: &Value| answer["ok"]["acquired"]["token"].as_u64().expect("a grant");

    let leader = cluster.wait_ready();
    let mut socket = connect(&cluster);
    let first = token(&socket.ask(1, &take(1)));
    assert_eq!(socket.ask(2, &give_up(2))["ok"], "withdrawn");
    let second = token(&socket.ask(3, &take(3)));
    assert!(second > first);

    cluster.kill(leader);
    let mut socket = connect(&cluster);
    assert_eq!(socket.ask(4, &give_up(2))["ok"], "withdrawn", "it was done, and its sender hears so");
    assert_eq!(
        holder_and_queue(&lock(&cluster, KEY)),
        (Some((session.number(), second)), vec![]),
        "and it was not done again"
    );
    assert_eq!(token(&socket.ask(5, &take(3))), second, "the hold is still that of the third operation");
}
