//! A lock that is held: renewals, the end of the lease, release, values, and how a lock is taken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Client, get, lock, node, post, session_path};

/// Goal: a client whose process answers the checks holds the lock far beyond its TTL, with one token, and
/// without a timer of its own.
#[test]
fn process_that_answers_holds_the_lock_beyond_its_ttl() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 3_000, "owner": "worker-7" }));
    assert_eq!((&grant["key"], &grant["ttl_ms"]), (&json!("k"), &json!(3_000)));
    // Three renewals come in a TTL.
    client.be_renewed(8);
    let held = lock(&address, "k");
    assert_eq!((&held["holder"]["token"], &held["holder"]["owner"]), (&grant["token"], &json!("worker-7")));
    client.release();
}

/// Goal: a process that stands still loses the lock when the TTL is over, although its connection is open and
/// answers pings; and neither an answer to an earlier check nor a repeated one renews the session.
#[test]
fn process_that_does_not_answer_loses_the_lock() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 1_000 }));
    let mut checks = 0;
    let lost = loop {
        match client.receive() {
            (kind, check) if kind == "check" => {
                checks += 1;
                assert_eq!(check["n"], checks);
                if checks == 2 {
                    client.send(&json!({ "here": 1 }));
                }
            }
            (kind, lost) if kind == "lost" => break lost,
            renewed => panic!("the session was renewed: {renewed:?}"),
        }
    };
    assert_eq!(lost["error"], "no_session", "{lost}");
    assert!(checks >= 2, "{checks} checks");
    assert_eq!(client.0.receive(), None);
    get(&address, &session_path(&grant["session"])).refused(404, "no_session");
    let (next, later) = Client::granted(&address, json!({ "key": "k" }));
    assert!(later["token"].as_u64() > grant["token"].as_u64());
    next.release();
}

/// Goal: a release frees the lock before it is answered, and closes the session: of an acquire without a wait,
/// and of one with a wait.
#[test]
fn release_frees_the_lock_at_once() {
    let (_cluster, address) = node();
    for wait_ms in [0, 60_000] {
        let acquire = json!({ "key": "k", "ttl_ms": 86_400_000, "wait_ms": wait_ms });
        let (client, grant) = Client::granted(&address, acquire);
        assert_eq!(lock(&address, "k")["holder"]["token"], grant["token"]);
        client.release();
        assert_eq!(lock(&address, "k")["held"], false);
        get(&address, &session_path(&grant["session"])).refused(404, "no_session");
    }
}

/// Goal: the release of a lock that is held no longer says so.
#[test]
fn release_of_a_lost_lock_says_that_it_was_lost() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let release = json!({ "session": grant["session"], "token": grant["token"] });
    post(&address, "/v1/locks/k/release", &release).ok();
    client.send(&json!({ "release": {} }));
    assert_eq!(client.last("lost")["error"], "not_holder");
}

/// Goal: a holder whose lock another request with its credential has released is told at its next renewal, although its
/// process answers and its session lives; the other holders are renewed.
#[test]
fn release_by_another_request_is_reported_at_the_next_renewal() {
    let (_cluster, address) = node();
    // The first one and the third answer nothing while the second is told, and must not expire.
    let semaphore = json!({ "key": "s", "permits": 1, "of": 3, "ttl_ms": 9_000, "wait_ms": 60_000 });
    let several = json!({ "keys": ["b", "a"], "ttl_ms": 9_000, "wait_ms": 60_000 });
    let (mut first, _) = Client::granted(&address, semaphore.clone());
    let (mut second, grant) = Client::granted(&address, semaphore.clone());
    let (mut third, _) = Client::granted(&address, semaphore);
    let release = json!({ "session": grant["session"], "token": grant["token"] });
    post(&address, "/v1/locks/s/release", &release).ok();
    let lost = second.lost_at_the_next_renewal();
    let token = &grant["token"];
    assert!(lost["message"].as_str().unwrap().contains(&format!("no longer holds s with token {token}")), "{lost}");
    first.be_renewed(1);
    third.be_renewed(1);
    [first, third].into_iter().for_each(Client::release);

    let (mut client, grant) = Client::granted(&address, several);
    client.be_renewed(1);
    let release = json!({ "keys": ["a", "b"], "session": grant["session"], "token": grant["token"] });
    post(&address, "/v1/release", &release).ok();
    let (next, _) = Client::granted(&address, json!({ "key": "a" }));
    client.lost_at_the_next_renewal();
    next.release();
}

/// Goal: a holder that answers nothing loses the lock with its token, although other requests with its credential keep
/// the session alive and have acquired the lock again: that grant has another token.
#[test]
fn later_grant_of_the_session_is_not_that_of_the_connection() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 9_000, "wait_ms": 60_000 }));
    let (session, token) = (&grant["session"], &grant["token"]);
    post(&address, "/v1/locks/k/release", &json!({ "session": session, "token": token })).ok();
    let later = post(&address, "/v1/locks/k/acquire", &json!({ "session": session })).ok();
    assert_ne!(&later["token"], token);
    let is_over = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                post(&address, &format!("{}/keepalive", session_path(session)), &json!({})).ok();
                thread::sleep(Duration::from_millis(200));
            }
        });
        let begin = Instant::now();
        let message = loop {
            match client.receive() {
                (kind, _) if kind == "check" && begin.elapsed() < Duration::from_secs(40) => {}
                message => break message,
            }
        };
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(message.0, "lost", "{}", message.1);
        message.1
    });
    assert_eq!(lost["error"], "not_holder");
    let message = lost["message"].as_str().unwrap();
    assert!(message.contains(&format!("with token {}, not {token}", later["token"])), "{message}");
    assert_eq!(lock(&address, "k")["holder"]["token"], later["token"]);
}

/// Goal: a broken grant is told to its holder at once, with a TTL of a day.
#[test]
fn broken_grant_is_reported_at_once() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "keys": ["a", "b"], "ttl_ms": 86_400_000 }));
    let (other, _) = Client::granted(&address, json!({ "key": "other", "ttl_ms": 86_400_000 }));
    post(&address, "/v1/locks/b/break", &json!({ "token": grant["token"], "reason": "it hangs" })).ok();
    let lost = client.last("lost");
    assert_eq!(lost["error"], "not_holder");
    assert!(lost["message"].as_str().unwrap().starts_with("an operator broke the grant of a, b"), "{lost}");
    assert_eq!(lock(&address, "a")["held"], false);
    other.release();
}

/// Goal: several keys are one claim, with one token, and are released together.
#[test]
fn several_keys_are_held_together() {
    let (_cluster, address) = node();
    let (client, grant) = Client::granted(&address, json!({ "keys": ["b", "a"], "wait_ms": 1_000 }));
    assert_eq!(grant["keys"], json!(["a", "b"]));
    for key in ["a", "b"] {
        assert_eq!(lock(&address, key)["holder"]["token"], grant["token"], "{key}");
    }
    client.release();
    assert!(["a", "b"].iter().all(|key| lock(&address, key)["held"] == false));
}

/// Goal: a lock is shared, and a semaphore's permits are taken, as by the acquire over HTTP.
#[test]
fn locks_are_held_in_every_mode() {
    let (_cluster, address) = node();
    let reader = || Client::granted(&address, json!({ "key": "k", "mode": "shared" })).0;
    let readers = [reader(), reader()];
    let mut writer = Client::begin(&address, &json!({ "acquire": { "key": "k" } }));
    assert_eq!(writer.last("error")["error"], "held");
    readers.into_iter().for_each(Client::release);

    let take = |permits: u32| json!({ "key": "s", "permits": permits, "of": 3 });
    let (first, _) = Client::granted(&address, take(2));
    let mut too_many = Client::begin(&address, &json!({ "acquire": take(2) }));
    assert_eq!(too_many.last("error")["error"], "held");
    let (second, _) = Client::granted(&address, take(1));
    [first, second].into_iter().for_each(Client::release);
}

/// Goal: a grant has the value of its acquire, and then the values that its holder proclaims, in their order;
/// one that is refused leaves the lock as it is.
#[test]
fn values_are_proclaimed_in_their_order() {
    let (_cluster, address) = node();
    let (mut client, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000, "value": "first" }));
    assert_eq!(lock(&address, "k")["holder"]["value"], "first");
    for n in 1..=4 {
        client.send(&json!({ "value": { "n": n, "value": format!("value {n}") } }));
    }
    for n in 1..=4 {
        assert_eq!(client.next("proclaimed"), json!({ "n": n }));
    }
    assert_eq!(lock(&address, "k")["holder"]["value"], "value 4");
    client.send(&json!({ "value": { "n": 5, "value": "v".repeat(4_097) } }));
    let refused = client.next("error");
    assert_eq!((&refused["n"], &refused["error"]), (&json!(5), &json!("invalid")));
    assert_eq!(lock(&address, "k")["holder"]["value"], "value 4");
    client.release();
}
