//! Who sent a forwarded request: what the follower has verified, in a header that only nodes read.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use palisade_spec::lock::Principal;
use serde::{Deserialize, Serialize};

use super::super::admin::Listener;
use super::App;
use crate::accounts::AccountName;
use crate::addresses::{ClientAddress, RemoteAddress};

/// A follower replaces what a client sends in it, and a leader reads it on connections of nodes only.
const HEADER: HeaderName = HeaderName::from_static("x-palisade-origin");

/// The client of a forwarded request, as the follower knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::http) struct Origin {
    /// Its verified name; empty without TLS, and if the follower has not proved its own.
    principal: String,
    /// Its address and port.
    remote: Option<RemoteAddress>,
    /// Where the request arrived at the follower.
    listener: Listener,
    /// The follower's address, at the leader.
    #[serde(skip)]
    follower: Option<ClientAddress>,
}

impl Origin {
    pub(super) fn of(app: &App) -> Origin {
        Origin {
            principal: app.principal.as_str().to_owned(),
            remote: app.remote,
            listener: app.listener,
            follower: None,
        }
    }

    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let text = serde_json::to_string(self).expect("texts and numbers have a form in JSON");
        // The one control character that JSON does not escape.
        let text = text.replace('\u{7f}', "\\u007f");
        let value = HeaderValue::try_from(text).expect("there are no control characters left");
        headers.insert(HEADER, value);
    }

    /// What the header of a forwarded request says.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Origin> {
        serde_json::from_slice(headers.remove(HEADER)?.as_bytes()).ok()
    }

    /// The same client, through the follower at this address. Its name counts only if a certificate has proved which
    /// node the follower is.
    pub(super) fn through(self, follower: ClientAddress, is_certified: bool) -> Origin {
        let principal = if is_certified { self.principal } else { String::new() };
        Origin { principal, follower: Some(follower), ..self }
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
        let principal: Arc<str> = origin.principal.as_str().into();
        let address = || origin.address().map(AccountName::Address);
        let name = if principal.is_empty() { address() } else { Some(AccountName::Principal(Arc::clone(&principal))) };
        App {
            principal: Principal::from(principal),
            account: name.map(|name| self.accounts.of(name)),
            remote: origin.remote,
            listener: origin.listener,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_replaces_what_a_client_sends() {
        let mut headers = HeaderMap::new();
        headers.append(HEADER, HeaderValue::from_static("{\"principal\":\"admin/eve\"}"));
        headers.append(HEADER, HeaderValue::from_static("more"));
        let principal = "wörker \u{7f}\n\"1\"".to_owned();
        let remote = Some("[2001:db8::1]:7".parse().unwrap());
        let origin = Origin { principal, remote, listener: Listener::Administration, follower: None };
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
            listener: Listener::Only,
            follower: None,
        };
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|text| ClientAddress::of(text.parse().unwrap()));
        let at = |remote: &str, follower| origin(remote).through(follower, true).address().unwrap();
        assert_eq!((at("127.0.0.1:7", one), at("127.0.0.1:7", two)), (one, two));
        assert_eq!(at("10.0.0.9:7", one), at("10.0.0.9:8", two));
        assert_eq!(origin("10.0.0.9:7").through(one, true).principal, "worker");
        assert_eq!(origin("10.0.0.9:7").through(one, false).principal, "");
    }
}
