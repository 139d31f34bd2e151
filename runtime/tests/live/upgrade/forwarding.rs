//! A follower of one version forwards to a leader of the other.

use palisade_client::Security;
use serde_json::json;

use super::{make_leader, previous, this, wait_connected};
use crate::support::cluster::Cluster;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, metrics};

/// Goal: a client that knows one follower alone takes and releases locks over HTTP and over a WebSocket, whichever of the
/// two nodes runs the version before.
#[test]
fn followers_forward_to_leaders_of_the_other_version() {
    let Some(previous) = previous() else { return };
    let programs = [previous.clone(), this(), previous];
    let cluster = Cluster::start_programs(&["--election-timeout", "750ms"], &programs, |_, _| {}, Security::plain());
    wait_connected(&cluster);
    for (follower, leader) in [(1, 2), (2, 1)] {
        make_leader(&cluster, leader);
        let address = cluster.client_addr(follower);
        let before = metrics::value(&address, "palisade_requests_forwarded_total");
        let path = format!("/v1/locks/from-{follower}");
        let grant = eventually("the follower forwards", || {
            let answer = http::post(&address, &format!("{path}/acquire"), r#"{"ttl_ms":60000,"owner":"o"}"#).ok()?;
            (answer.status == 200).then(|| answer.ok())
        });
        assert_eq!(http::get(&address, &path).unwrap().ok()["holder"]["token"], grant["token"]);
        let mut socket = WebSocket::open_forwarded(&address);
        let release = json!({ "release": {
            "key": format!("from-{follower}"), "grant": { "session": grant["session"], "token": grant["token"] }
        } });
        assert_eq!(socket.ask(1, &release)["ok"], "released");
        assert!(metrics::value(&address, "palisade_requests_forwarded_total") > before, "it was forwarded");
    }
}
