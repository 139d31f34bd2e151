//! The sender of a forwarded request: what the follower has verified, in a header that only nodes read.

use std::future::pending;

use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use palisade_spec::lock::Principal;
use serde::{Deserialize, Serialize};

use super::super::admin::Listener;
use super::App;
use crate::accounts::AccountName;
use crate::addresses::{ClientAddress, RemoteAddress};
use crate::tls::{Access, TokenHash, VerifiedBy};

/// A follower replaces what a client sends in it, and a leader reads it on connections of nodes only.
const HEADER: HeaderName = HeaderName::from_static("x-palisade-origin");

/// The client of a forwarded request, as the follower knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its verified name; empty without TLS, and if the follower has not proved its own.
    principal: String,
    /// Its address and port.
    remote: Option<RemoteAddress>,
    /// The hash of the bearer token that has proved its name, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<TokenHash>,
    /// Where the request arrived at the follower.
    listener: Listener,
    /// The follower's address, at the leader.
    #[serde(skip)]
    follower: Option<ClientAddress>,
}

impl Origin {
    /// The client of a request at this node.
    pub(super) fn of(app: &App, parts: &Parts) -> Origin {
        let authorization = parts.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        Origin {
            principal: app.principal.as_str().to_owned(),
            remote: app.remote,
            token: parts.extensions.get::<Access>().and_then(|access| access.token(authorization)),
            listener: app.listener,
            follower: None,
        }
    }

    /// A node that asks for itself: it has no name and no limits of a client.
    pub(super) fn of_this_node() -> Origin {
        Origin { principal: String::new(), remote: None, token: None, listener: Listener::Clients, follower: None }
    }

    pub(super) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(HEADER, self.header());
    }

    /// What the header of a forwarded request says.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Origin> {
        Origin::parse(headers.remove(HEADER)?.as_bytes())
    }

    /// The value of the header.
    pub fn header(&self) -> HeaderValue {
        let text = serde_json::to_string(self).expect("texts and numbers have a form in JSON");
        // The one control character that JSON does not escape.
        let text = text.replace('\u{7f}', "\\u007f");
        HeaderValue::try_from(text).expect("there are no control characters left")
    }

    /// Reads a value of the header; `None` if it is none.
    pub fn parse(header: &[u8]) -> Option<Origin> {
        serde_json::from_slice(header).ok()
    }

    /// The same client, through the follower at this address. Its name counts only if a certificate has proved which
    /// node the follower is.
    pub(super) fn through(self, follower: ClientAddress, is_certified: bool) -> Origin {
        let (principal, token) = if is_certified { (self.principal, self.token) } else { Default::default() };
        Origin { principal, token, follower: Some(follower), ..self }
    }

    /// Resolves when the client's bearer token no longer counts for its name at this node, with the reason. The
    /// follower may know it before.
    pub(in crate::http) fn credential_ended(&self, app: &App) -> impl Future<Output = String> + Send + use<> {
        let (tls, token, principal) = (app.peers.roster().tls.clone(), self.token, self.principal.clone());
        async move {
            match (tls, token) {
                (Some(tls), Some(token)) => tls.token_ended(token, &principal, VerifiedBy::Follower).await,
                _ => pending().await,
            }
        }
    }

    /// The account whose limits the request counts towards.
    pub(super) fn account(&self) -> Option<AccountName> {
        if self.principal.is_empty() {
            return self.address().map(AccountName::Address);
        }
        Some(AccountName::Principal(self.principal.as_str().into()))
    }

    /// Where the client is, for its limits. A loopback address is one of the follower's machine.
    fn address(&self) -> Option<ClientAddress> {
        let address = ClientAddress::from(self.remote?);
        Some(if address.is_loopback() { self.follower.unwrap_or(address) } else { address })
    }
}

impl App {
    /// The state of the handlers of a forwarded request: its client's identity, limits and listener are
    /// those of the client, wherever it is connected.
    pub(in crate::http) fn for_origin(&self, origin: &Origin) -> App {
        App {
            principal: Principal::from(origin.principal.as_str()),
            account: origin.account().map(|name| self.accounts.of(name)),
            remote: origin.remote,
            listener: origin.listener,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;

    use super::super::head;
    use super::*;

    /// Goal: what is of the client's connection does not reach the leader: its bearer token, and what it says of its
    /// own identity, least of all.
    #[test]
    fn leader_gets_the_request_without_what_is_of_the_connection() {
        let lines = [
            ("authorization", "Bearer secret"),
            ("connection", "close, x-other"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-palisade-origin", "{}"),
            ("host", "node-2"),
            ("x-fence-token", "7"),
        ];
        let request = lines.into_iter().fold(Request::builder(), |request, (name, value)| request.header(name, value));
        let request = request.method("PUT").uri("http://node-2/v1/kv/k?lock=l").body(()).unwrap();
        let client =
            Origin { principal: "worker".into(), remote: None, token: None, listener: Listener::Only, follower: None };
        let mut head = head(&request.into_parts().0, &client);
        assert_eq!((head.method().as_str(), head.uri().to_string()), ("PUT", "/v1/kv/k?lock=l".to_owned()));
        assert_eq!(Origin::take(head.headers_mut()), Some(client));
        let mut left: Vec<&str> = head.headers().keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "x-fence-token"]);
    }

    #[test]
    fn origin_replaces_what_a_client_sends() {
        let mut headers = HeaderMap::new();
        headers.append(HEADER, HeaderValue::from_static("{\"principal\":\"admin/eve\"}"));
        headers.append(HEADER, HeaderValue::from_static("more"));
        let principal = "wörker \u{7f}\n\"1\"".to_owned();
        let remote = Some("[2001:db8::1]:7".parse().unwrap());
        let token = Some(TokenHash::try_from("ab".repeat(32)).unwrap());
        let origin = Origin { principal, remote, token, listener: Listener::Administration, follower: None };
        origin.write(&mut headers);
        assert_eq!(headers.get_all(HEADER).iter().count(), 1);
        assert_eq!(Origin::take(&mut headers), Some(origin));
        assert_eq!(Origin::take(&mut headers), None);
    }

    /// Goal: programs on the machines of two followers are two clients, and one that is elsewhere is one client at all
    /// nodes; a follower that has not proved which node it is names no client.
    #[test]
    fn client_is_the_same_through_every_follower() {
        let origin = |remote: &str| Origin {
            principal: "worker".into(),
            remote: Some(remote.parse().unwrap()),
            token: Some(TokenHash::try_from("ab".repeat(32)).unwrap()),
            listener: Listener::Only,
            follower: None,
        };
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|text| ClientAddress::of(text.parse().unwrap()));
        let at = |remote: &str, follower| origin(remote).through(follower, true).address().unwrap();
        assert_eq!((at("127.0.0.1:7", one), at("127.0.0.1:7", two)), (one, two));
        assert_eq!(at("10.0.0.9:7", one), at("10.0.0.9:8", two));
        let named = |is_certified| {
            let origin = origin("10.0.0.9:7").through(one, is_certified);
            (origin.principal, origin.token.is_some())
        };
        assert_eq!((named(true), named(false)), (("worker".into(), true), (String::new(), false)));
    }
}
