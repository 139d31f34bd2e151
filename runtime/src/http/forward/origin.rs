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
    /// Its verified name; empty without TLS.
    principal: String,
    /// Its address and port.
    remote: Option<RemoteAddress>,
    /// Where the request arrived at the follower.
    listener: Listener,
}

impl Origin {
    pub(super) fn of(app: &App) -> Origin {
        Origin { principal: app.principal.as_str().to_owned(), remote: app.remote, listener: app.listener }
    }

    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let text = serde_json::to_string(self).expect("texts and numbers have a form in JSON");
        let value = HeaderValue::try_from(text).expect("JSON has no control characters");
        headers.insert(HEADER, value);
    }

    /// What the header of a forwarded request says.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Origin> {
        serde_json::from_slice(headers.remove(HEADER)?.as_bytes()).ok()
    }

    /// The same client without a name.
    pub(super) fn anonymous(self) -> Origin {
        Origin { principal: String::new(), ..self }
    }
}

impl App {
    /// The state of the handlers of a forwarded request: its client's identity, limits and listener are
    /// those of the client, wherever it is connected.
    pub(in crate::http) fn for_origin(&self, origin: &Origin) -> App {
        let principal: Arc<str> = origin.principal.as_str().into();
        let address = || origin.remote.map(|remote| AccountName::Address(ClientAddress::from(remote)));
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
        let origin = Origin { principal, remote, listener: Listener::Administration };
        origin.write(&mut headers);
        assert_eq!(headers.get_all(HEADER).iter().count(), 1);
        assert_eq!(Origin::take(&mut headers), Some(origin));
        assert_eq!(Origin::take(&mut headers), None);
    }
}
