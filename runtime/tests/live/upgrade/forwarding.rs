//! A follower of one version forwards to a leader of the other.

use std::time::Duration;

use palisade_client::Security;
use serde_json::json;

use super::{make_leader, previous, this};
use crate::support::cluster::Cluster;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, locks, metrics};

/// Goal: a client that knows one follower alone takes and releases locks over HTTP and over a WebSocket, whichever of the
/// two nodes runs the version before.
#[test]
fn followers_forward_to_leaders_of_the_other_version() {
    let Some(previous) = previous() else { return };
    let programs = [previous.clone(), this(), previous];
    let cluster = Cluster::start_programs(&["--election-timeout", "750ms"], &programs, |_, _| {}, Security::plain());
    cluster.wait_connected();
    // With a session, a request that is repeated finds its own grant.
    let session = locks::open_session(&cluster, "o", Duration::from_secs(3600));
    for (follower, leader) in [(1, 2), (2, 1)] {
        // Another node may become the leader at any moment.
        eventually(&format!("node {follower} forwards to node {leader}"), || {
            make_leader(&cluster, leader);
            let address = cluster.client_addr(follower);
            let before = metrics::value(&address, "palisade_requests_forwarded_total");
            let (key, body) = (format!("from-{follower}"), json!({ "session": session }).to_string());
            let path = format!("/v1/locks/{key}");
            let ok = |answer: std::io::Result<http::Response>| {
                answer.ok().filter(|answer| answer.status == 200).map(|answer| answer.ok())
            };
            let grant = ok(http::post(&address, &format!("{path}/acquire"), &body))?;
            assert_eq!(ok(http::get(&address, &path))?["holder"]["token"], grant["token"]);
            let mut socket = WebSocket::try_open_forwarded(&address).ok()?;
            let grant = json!({ "session": session, "token": grant["token"] });
            socket.send(1, &json!({ "release": { "key": key, "grant": grant } }));
            let released = socket.receive()?["result"]["ok"] == "released";
            let is_forwarded = metrics::value(&address, "palisade_requests_forwarded_total") > before;
            (released && is_forwarded && cluster.agreed_leader() == Some(leader)).then_some(())
        });
    }
}
