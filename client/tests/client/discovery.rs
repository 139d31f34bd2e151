//! A client finds the leader from any node, and finds it again.

use std::time::Duration;

use futures_util::future::join_all;
use palisade_client::wire::{Code, Consistency, ListLocks, Op};
use palisade_client::{Client, Error, LockOptions, Options, Security};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Cluster, options};

/// An endpoint where no node listens.
async fn dead_endpoint() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

/// An endpoint whose node refuses every client.
async fn refusing_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    endpoint
}

/// Goal: if every node refuses the client, that is the error, at once. A node that cannot be reached may still accept the
/// client, which therefore asks on until its time is over; then it names the refusal.
#[tokio::test]
async fn dead_nodes_do_not_hide_that_the_others_refuse() {
    let refusing = [refusing_endpoint().await, refusing_endpoint().await];
    let error = Client::connect(&refusing, options()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthenticated { .. }), "{error}");

    let endpoints = [refusing_endpoint().await, dead_endpoint().await, dead_endpoint().await, dead_endpoint().await];
    let options = Options { connect_timeout: Duration::from_millis(800), ..options() };
    // Each begins at a random node, and so ends at one.
    let clients = (0..8).map(|_| Client::connect(&endpoints, options.clone()));
    for connected in join_all(clients).await {
        let error = connected.unwrap_err();
        let Error::Unreachable { trouble, .. } = &error else { panic!("{error}") };
        assert!(trouble.contains("401"), "{trouble}");
    }
}

/// Goal: one follower's address is enough, because a follower names the leader.
#[tokio::test]
async fn a_follower_names_the_leader() {
    let cluster = Cluster::start(3).await;
    let client = Client::connect(&cluster.endpoints[2..], options()).await.unwrap();
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    assert_eq!(guard.key(), "key");
    guard.release().await.unwrap();
    let first_at_leader = cluster.state().seen.iter().position(|(node, _)| *node == 0).unwrap();
    assert_eq!(first_at_leader, 1, "one question at the follower, everything else at the leader");
}

/// Goal: the search for the leader costs little, however many locks and waiters there are.
#[tokio::test]
async fn connecting_reads_no_queue() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut guards = Vec::new();
    for key in ["key", "\u{10ffff}", &"\u{10ffff}".repeat(128)] {
        guards.push(client.lock(key, LockOptions::default()).await.unwrap());
    }
    Client::connect(&cluster.endpoints, options()).await.unwrap();
    assert_eq!(cluster.state().listed, 0);
}

/// Goal: a program that gives something back is no less able to at a node that refuses its other requests for the moment;
/// a node that does not serve it is reported.
#[tokio::test]
async fn a_refusal_for_the_moment_is_a_sign_of_life() {
    let cluster = Cluster::start(1).await;
    for code in [Code::TooSoon, Code::Overloaded] {
        let guard = cluster.client().await.lock("key", LockOptions::default()).await.unwrap();
        cluster.state().faults.refuse_lists = Some(code);
        let client = Client::connect(&cluster.endpoints, options()).await.unwrap();
        client.close_session(guard.into_session()).await.unwrap();
        assert!(cluster.state().table.locks.is_empty());
        cluster.state().faults.refuse_lists = None;
    }
    cluster.state().faults.refuse_lists = Some(Code::Denied);
    let error = Client::connect(&cluster.endpoints, options()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(failure) if failure.error == Code::Denied), "{error}");
}

/// Goal: nodes that are down or know no leader are passed over, until one leads.
#[tokio::test]
async fn endpoints_are_tried_in_turn() {
    let cluster = Cluster::start(3).await;
    cluster.state().faults.nameless = true;
    let mut endpoints = vec![dead_endpoint().await];
    endpoints.extend(cluster.endpoints.iter().rev().cloned());
    drop(Client::connect(&endpoints, options()).await.unwrap().lock("key", LockOptions::default()).await.unwrap());
}

/// Goal: while there is no leader, a request waits for one.
#[tokio::test]
async fn a_request_waits_for_an_election() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    cluster.elect(None);
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", LockOptions::default()).await }
    });
    cluster.until("the client has asked around", |state| state.connections > 4).await;
    cluster.state().leader = Some(2);
    drop(asked.await.unwrap().unwrap());
}

/// Goal: a client that is connected to a leader follows a change of leader.
#[tokio::test]
async fn the_client_follows_a_change_of_leader() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    for leader in [1, 2, 0, 2, 1] {
        cluster.elect(Some(leader));
        client.lock("key", LockOptions::default()).await.unwrap().release().await.unwrap();
        assert_eq!(cluster.state().seen.last().unwrap().0, leader);
    }
}

/// Goal: the client leaves a leader that does not answer, although its connection is open, for
/// another one.
#[tokio::test]
async fn a_leader_that_does_not_answer_is_left() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    cluster.state().faults.mute = true;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", LockOptions::default()).await }
    });
    let before = cluster.state().connections;
    cluster.until("the client has tried elsewhere", |state| state.connections > before + 1).await;
    cluster.state().faults.mute = false;
    drop(asked.await.unwrap().unwrap());
}

/// Goal: if no node can be reached, the caller gets an error in time, with the reason.
#[tokio::test]
async fn an_unreachable_cluster_is_an_error_in_time() {
    let options = Options {
        request_timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_millis(200),
        ..options()
    };
    let endpoint = dead_endpoint().await;
    let error = Client::connect(&[&endpoint], options.clone()).await.unwrap_err();
    let Error::Unreachable { trouble, .. } = &error else { panic!("{error}") };
    assert!(trouble.contains(&endpoint), "{trouble}");
    assert!(error.to_string().starts_with("no leader answered within "), "{error}");

    let none: [&str; 0] = [];
    assert!(matches!(Client::connect(&none, options.clone()).await, Err(Error::BadEndpoint { .. })));
    assert!(matches!(Client::connect(&["nowhere"], options).await, Err(Error::BadEndpoint { .. })));
}

/// Goal: the client sends reads to the leader; a request to one node goes to that node.
#[tokio::test]
async fn reads_go_to_the_leader() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let guard = client.lock("a", LockOptions::default()).await.unwrap();
    let lock = client.show_lock("a", Consistency::Linearizable).await.unwrap();
    assert_eq!(
        lock.holder.map(|holder| (holder.session, holder.token)),
        Some((guard.session().number(), guard.token()))
    );
    assert!(!client.show_lock("b", Consistency::Stale).await.unwrap().held);
    assert_eq!(client.list_locks(ListLocks::default()).await.unwrap().locks.len(), 1);

    let patience = Duration::from_secs(5);
    assert_eq!(Security::plain().status(&cluster.endpoints[1], patience).await.unwrap().role, "follower");
    assert_eq!(Security::plain().status(&cluster.endpoints[0], patience).await.unwrap().role, "leader");
    let refusal =
        Security::plain().ask(&cluster.endpoints[1], Op::ListLocks(ListLocks::default()), patience).await.unwrap_err();
    let Error::Refused(failure) = refusal else { panic!("{refusal}") };
    assert_eq!(failure.error, Code::NotLeader);
    assert!(matches!(Security::plain().status(&dead_endpoint().await, patience).await, Err(Error::Unreachable { .. })));
}
