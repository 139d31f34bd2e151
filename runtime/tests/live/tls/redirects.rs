//! A client that follows a redirect to the leader is there the same client.

use palisade_client::Security;
use serde_json::{Value, json};

use super::clients::token;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{eventually, http, https};

/// Goal: a redirect has no identity, and needs none: the client proves its own to the leader again, by its certificate
/// or its token. The leader knows it by the same name, its session is its own at both nodes, and neither a client
/// without an identity nor one that claims another name gets further at the leader than at the follower.
#[test]
fn redirected_client_keeps_its_identity() {
    let ours = Certificates::of("billing", 3);
    ours.issue_client("worker", &[]);
    let (ci, line) = token(&ours, "ci");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, line).unwrap();
    let cluster = Cluster::start_secured(3, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let (leader, follower) = cluster.roles();
    let (leader, follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    let alice = ours.administrator("alice");
    let rules = json!([
        { "subject": "worker", "prefix": "worker/", "rights": ["acquire"] },
        { "subject": "ci", "prefix": "ci/", "rights": ["acquire"] },
    ]);
    let rules = json!({ "revision": 0, "rules": rules }).to_string();
    https::send(&follower, &alice, "PUT", "/v1/access", &rules).unwrap().ok();

    // Sends a request to the follower, and then to the node and the path to which the follower redirects it.
    let redirected = |security: &Security, path: &str, headers: &str, body: &Value| -> http::Response {
        let never = format!("X-Forward: never\r\n{headers}");
        let body = body.to_string();
        let redirect = https::send_with(&follower, security, "POST", path, &never, &body).unwrap();
        redirect.refused(307, "not_leader");
        let location = redirect.header("location").expect("a redirect says where to").to_owned();
        let there = location.strip_prefix("https://").expect("a redirect keeps to TLS");
        assert_eq!(there, format!("{leader}{path}"));
        https::send_with(&leader, security, "POST", path, &never, &body).unwrap()
    };
    eventually("the follower knows the leader", || {
        (https::get_unforwarded(&follower, &alice, "/v1/locks").ok()?.status == 307).then_some(())
    });
    let (worker, nobody) = (ours.client("worker"), ours.anonymous());
    for (own, security, other, stranger) in [("worker", &worker, "ci", &ci), ("ci", &ci, "worker", &worker)] {
        let path = |of: &str| format!("/v1/locks/{of}%2Fnightly/acquire");
        let grant = redirected(security, &path(own), "", &json!({ "ttl_ms": 600_000 })).ok();
        let claimed = json!({ "principal": other, "remote": "127.0.0.9:1", "listener": "Only" });
        for headers in [String::new(), format!("X-Palisade-Origin: {claimed}\r\n")] {
            let denied = redirected(security, &path(other), &headers, &json!({})).refused(403, "denied");
            let sentence = format!("{own} may not acquire {other}/nightly: no rule for this key applies to it");
            assert_eq!(denied["message"], sentence);
        }
        let anonymous = |address: &str| https::post(address, &nobody, &path(own), "{}").unwrap();
        for address in [&follower, &leader] {
            anonymous(address).refused(401, "unauthenticated");
        }

        // What the client was granted behind the redirect is its own through the follower, and no other client's.
        let keepalive = format!("/v1/sessions/{}/keepalive", grant["session"].as_str().unwrap());
        https::post(&follower, security, &keepalive, "").unwrap().ok();
        redirected(security, &keepalive, "", &json!({})).ok();
        redirected(stranger, &keepalive, "", &json!({})).refused(404, "no_session");
        let release = json!({ "session": grant["session"], "token": grant["token"] }).to_string();
        https::post(&follower, security, &format!("/v1/locks/{own}%2Fnightly/release"), &release).unwrap().ok();
    }
}
