//! Waiting in the queue: through failures, until the grant, the end of the wait, or without limit.

use std::time::Duration;

use palisade_client::wire::{Code, Op, SessionId};
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use tokio::task::JoinHandle;

use crate::support::{Cluster, options};

/// A wait that outlasts every test.
const LONG: Duration = Duration::from_secs(60);

fn wait_for(client: &Client, key: &'static str, options: LockOptions) -> JoinHandle<Result<Guard, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.lock(key, options).await })
}

fn acquires(cluster: &Cluster) -> Vec<(SessionId, u64)> {
    cluster.seen(|op| match op {
        Op::Acquire { options, number, .. } => Some((options.session.unwrap(), number.unwrap())),
        _ => None,
    })
}

/// Goal: a change of leader in the middle of a wait costs neither the number nor the queue
/// position.
#[tokio::test]
async fn a_new_leader_finds_the_queue_position() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    let first = wait_for(&client, "key", LockOptions::default().wait(LONG));
    cluster.until("the first waits", |state| state.table.queue("key") == 1).await;
    let second = wait_for(&client, "key", LockOptions::default().wait_forever());
    cluster.until("the second waits", |state| state.table.queue("key") == 2).await;

    let queue = |cluster: &Cluster| cluster.state().table.locks["key"].queue.clone();
    let (before, asked) = (queue(&cluster), acquires(&cluster).len());
    cluster.elect(Some(1));
    cluster.until("both asked again", |state| state.seen.iter().filter(is_acquire).count() >= asked + 2).await;
    assert_eq!(queue(&cluster), before);
    let repeated = acquires(&cluster).split_off(asked);
    assert!(repeated.iter().all(|again| before.contains(again)), "{repeated:?} are {before:?}");

    holder.release().await.unwrap();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.session(), before[0].0);
    drop(first);
    assert_eq!(second.await.unwrap().unwrap().session(), before[1].0);
}

fn is_acquire((_, op): &&(usize, Op)) -> bool {
    matches!(op, Op::Acquire { .. })
}

/// Goal: if the queue position is lost, because the connection broke while the leader lives, the
/// client takes a new one.
#[tokio::test]
async fn a_lost_queue_position_is_replaced() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    let waiter = wait_for(&client, "key", LockOptions::default().wait(LONG));
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;
    cluster.cut();
    assert_eq!(cluster.state().table.queue("key"), 0);
    cluster.until("it waits again", |state| state.table.queue("key") == 1).await;
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// Goal: a grant whose answer was lost on a living connection is noticed.
#[tokio::test]
async fn a_lost_grant_is_asked_for_again() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    let waiter = wait_for(&client, "key", LockOptions::default().wait(LONG));
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;
    // One for each request that is open for the same claim: the grant answers all of them.
    cluster.state().faults.lose_grants = 1;
    let connections = cluster.state().connections;
    holder.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert_eq!(guard.token(), 2);
    assert_eq!(cluster.state().connections, connections);
}

/// Goal: an overloaded node costs no waiter its queue position or its wait.
#[tokio::test]
async fn a_wait_outlasts_an_overloaded_node() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    cluster.state().faults.refuse_acquires = vec![Code::Overloaded; 3];
    let first = wait_for(&client, "key", LockOptions::default().wait_forever());
    cluster.until("it waits, at the fourth attempt", |state| state.table.queue("key") == 1).await;
    let _second = wait_for(&client, "key", LockOptions::default().wait(LONG));
    cluster.until("another waits", |state| state.table.queue("key") == 2).await;
    let queue = cluster.state().table.locks["key"].queue.clone();

    // From now on the node refuses the request's repetitions.
    cluster.state().faults.refuse_acquires = vec![Code::Overloaded; 6];
    cluster.until("they are asked again", |state| state.faults.refuse_acquires.is_empty()).await;
    assert_eq!(cluster.state().table.locks["key"].queue, queue);
    holder.release().await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().session(), queue[0].0);
}

/// Goal: a caller that waits for a lock waits for disk space too, and until the node takes more of its
/// requests, whether its session is open or not, and gets the lock then.
#[tokio::test]
async fn a_wait_outlasts_what_is_for_the_moment() {
    for code in [Code::NoSpace, Code::TooSoon, Code::Overloaded] {
        let cluster = Cluster::start(1).await;
        let client = cluster.client().await;
        cluster.state().faults.refuse_all = Some(code);
        let opening = wait_for(&client, "first", LockOptions::default().wait_forever());
        cluster.until("it asks again for a session", |state| opens(state) >= 3).await;
        cluster.state().faults.refuse_all = None;
        let guard = opening.await.unwrap().unwrap();

        client.lock("warm", LockOptions::default()).await.unwrap().release().await.unwrap();
        cluster.state().faults.refuse_all = Some(code);
        let opened = opens(&cluster.state());
        let acquiring = wait_for(&client, "second", LockOptions::default().wait(LONG));
        let before = acquires(&cluster).len();
        cluster
            .until("it asks again for the lock", |state| state.seen.iter().filter(is_acquire).count() >= before + 3)
            .await;
        assert_eq!(opens(&cluster.state()), opened, "it had a session");
        // Holders go on meanwhile.
        guard.release().await.unwrap();
        cluster.state().faults.refuse_all = None;
        acquiring.await.unwrap().unwrap().release().await.unwrap();
    }
}

fn opens(state: &crate::support::State) -> usize {
    state.seen.iter().filter(|(_, op)| matches!(op, Op::OpenSession(_))).count()
}

/// The requests that a full disk refuses.
fn asked(state: &crate::support::State) -> usize {
    state.seen.iter().filter(|(_, op)| matches!(op, Op::OpenSession(_) | Op::Acquire { .. })).count()
}

/// Goal: a full disk is an error that says so: at once to a caller that does not wait, and at the
/// end of its wait to any other. The client repeats no request after that.
#[tokio::test]
async fn a_full_disk_is_named_in_the_error() {
    let cluster = Cluster::start(1).await;
    // So patient that the last answer is in time on any machine.
    let patient = Options { attempt_timeout: LONG, ..options() };
    let client = Client::connect(&cluster.endpoints, patient).await.unwrap();
    for session_is_open in [false, true] {
        for wait in [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(1500)] {
            if session_is_open {
                client.lock("warm", LockOptions::default()).await.unwrap().release().await.unwrap();
            }
            cluster.state().faults.refuse_all = Some(Code::NoSpace);
            let before = asked(&cluster.state());
            let error = client.lock("key", LockOptions::default().wait(wait)).await.unwrap_err();
            assert_eq!(error.to_string(), "the server refused: refused for the moment");
            assert!(matches!(&error, Error::Refused(failure) if failure.error == Code::NoSpace));
            if wait.is_zero() {
                assert_eq!(asked(&cluster.state()) - before, 1, "a caller that does not wait is told at once");
            }
            cluster.state().faults.refuse_all = None;
        }
    }
    client.lock("key", LockOptions::default()).await.unwrap().release().await.unwrap();
}

/// Goal: a caller whose last attempt got no answer learns why the attempts before it were refused.
#[tokio::test]
async fn an_answer_that_is_lost_does_not_hide_the_refusals_before() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    cluster.state().faults.refuse_all = Some(Code::NoSpace);
    let waiter = wait_for(&client, "key", LockOptions::default().wait(Duration::from_millis(2500)));
    cluster.until("it was refused once", |state| opens(state) >= 2).await;
    cluster.state().faults.mute = true;
    let error = waiter.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Refused(failure) if failure.error == Code::NoSpace), "{error}");
}

/// Goal: without a wait, a held lock is an error that names the holder.
#[tokio::test]
async fn a_held_lock_is_an_error_without_a_wait() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    let error = client.lock("key", LockOptions::default()).await.unwrap_err();
    let Error::Held { holder, queue: 0 } = &error else { panic!("{error}") };
    assert_eq!(holder.as_ref().unwrap().token, guard.token());
    assert_eq!(error.to_string(), "the lock is held by an unnamed session with token 1; no session waits for it");
}

/// Goal: a wait ends in time, and leaves no queue position behind, even if the server's answer is
/// lost.
#[tokio::test]
async fn a_wait_ends_in_time() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let _guard = client.lock("key", LockOptions::default()).await.unwrap();
    let short = LockOptions::default().wait(Duration::from_millis(100));
    let error = client.lock("key", short.clone()).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert_eq!(cluster.state().table.queue("key"), 0);

    let waiter = wait_for(&client, "key", short);
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;
    cluster.state().faults.mute = true;
    let error = waiter.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

/// Goal: without a leader, a wait also ends in time, with the reason.
#[tokio::test]
async fn a_wait_without_a_leader_ends_in_time() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    cluster.elect(None);
    let error = client.lock("key", LockOptions::default().wait(Duration::from_millis(100))).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// Goal: a refusal is final and returned to the caller, and the client works as before after it.
#[tokio::test]
async fn a_refusal_is_final() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    for code in [Code::Limit, Code::Overloaded, Code::Invalid] {
        cluster.state().faults.refuse_acquires = vec![code];
        let error = client.lock("key", LockOptions::default()).await.unwrap_err();
        let Error::Refused(failure) = error else { panic!("{error}") };
        assert_eq!(failure.error, code);
        client.lock("key", LockOptions::default()).await.unwrap().release().await.unwrap();
    }
}

/// Goal: the client withdraws an acquire that it sent twice and that was refused once: the other
/// attempt may have been executed.
#[tokio::test]
async fn a_refused_acquire_that_was_repeated_is_withdrawn() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    client.lock("warm", LockOptions::default()).await.unwrap().release().await.unwrap();
    cluster.state().faults.lose_grants = 1;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", LockOptions::default()).await }
    });
    cluster.until("it is granted, unheard", |state| state.table.locks.contains_key("key")).await;
    cluster.state().faults.refuse_acquires = vec![Code::Overloaded];
    assert!(matches!(asked.await.unwrap(), Err(Error::Refused(_))));
    cluster.until("it is given back", |state| state.table.locks.is_empty()).await;
}
