//! The end of a token ends the connections and requests that it began.

use std::thread;
use std::time::{Duration, Instant};

use palisade_client::{Client, LockOptions, Options};
use tokio::time::timeout;

use super::clients::token;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{eventually, https};

/// Goal: when the line of a token is removed, or gets another name, a request over HTTP that waits in
/// a lock's queue is answered with 401 and leaves the queue, and the WebSockets of the token end.
#[test]
fn removed_and_renamed_tokens_end_what_they_began() {
    let ours = Certificates::of("billing", 1);
    let [(removed, gone), (renamed, before)] = ["removed", "before"].map(|name| token(&ours, name));
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, format!("{gone}\n{before}\n")).unwrap();
    let cluster = Cluster::start_secured(1, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let (address, certified) = (cluster.client_addr(1), ours.client("test"));
    https::post(&address, &certified, "/v1/locks/k/acquire", r#"{"ttl_ms": 600000}"#).unwrap().ok();
    let waiting = [removed, renamed.clone()].map(|security| {
        let address = address.clone();
        thread::spawn(move || https::post(&address, &security, "/v1/locks/k/acquire", r#"{"wait_ms": 600000}"#))
    });
    let queue = || https::get(&address, &certified, "/v1/locks/k").unwrap().ok()["queue"].as_array().unwrap().len();
    eventually("both wait", || (queue() == 2).then_some(()));

    let after = before.replace("before:", "after:");
    let begin = https::block_on(async {
        let options = Options { security: renamed, ..Options::default() };
        let client = Client::connect(&cluster.endpoints(), options).await.unwrap();
        let guard = client.lock("held", LockOptions::default().ttl(Duration::from_secs(2))).await.unwrap();
        std::fs::write(&tokens, &after).unwrap();
        let begin = Instant::now();
        // The session is that of the old name, as which the client cannot connect again.
        timeout(Duration::from_secs(60), guard.lost()).await.expect("the lock of the old name is lost");
        begin
    });
    for (waiting, why) in waiting.into_iter().zip(["`removed` was revoked", "`before` is now that of `after`"]) {
        let answer = waiting.join().unwrap().expect("it is answered");
        let message = answer.refused(401, "unauthenticated")["message"].to_string();
        assert!(message.contains(why), "{message}");
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "they waited for {:?}", begin.elapsed());
    eventually("the queue is empty", || (queue() == 0).then_some(()));
}
