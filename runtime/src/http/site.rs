//! The `Host` and `Origin` headers: which requests are meant for this node.
//!
//! A web page may not read the answers of another site, and a browser enforces that by the *name*
//! of the site. A hostile page gets around it by DNS rebinding: the name of its own site comes to
//! mean the address of a node, and the browser then lets the page read all that the node answers.
//! Such a request still carries the page's own name in `Host`, so a node answers only requests
//! under names that it knows. An IP address needs no list: no DNS server can make it mean another
//! host.
//!
//! A browser states the site of the page that makes a request in `Origin`, at least whenever that is
//! another site than the request's, or the request may change something. A node serves one page, its
//! [own](super::ui). So it refuses a request of any other page: one whose `Origin` is not the scheme of
//! the connection and the request's own `Host`, which by then is known to name the node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::Response;
use palisade_client::wire::{Code, Failure};

use super::{App, reply};
use crate::addresses::{host_name, host_of};
use crate::tls::Access;

/// Number of characters of an unknown host that a refusal repeats.
const SHOWN: usize = 100;

/// The names under which a node answers, beside IP addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub struct HostNames(Arc<BTreeSet<String>>);

impl HostNames {
    /// The hosts of these addresses (`HOST:PORT` or `HOST`).
    pub fn of<'a>(addresses: impl IntoIterator<Item = &'a str>) -> HostNames {
        HostNames(Arc::new(addresses.into_iter().filter_map(host_of).collect()))
    }

    fn include(&self, host: &str) -> bool {
        host == "localhost" || host.parse::<IpAddr>().is_ok() || self.0.contains(host)
    }

    /// Refuses a request that names no host, several hosts, or a host that is not this node.
    fn check_host<'a>(&self, uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a [u8], Failure> {
        let wrong = |message: String| Err(Failure::new(Code::WrongHost, message));
        // A request that was made for a proxy has the host in its target, too.
        let in_target = uri.authority().map(|authority| authority.as_str().as_bytes());
        let mut named = headers.get_all(HOST).iter().map(|value| value.as_bytes()).chain(in_target);
        let Some(first) = named.next() else {
            return wrong("the request has no Host header: send the name or address of the node in it".into());
        };
        if named.any(|other| !other.eq_ignore_ascii_case(first)) {
            return wrong("the request names two different hosts: send one Host header".into());
        }
        let text = String::from_utf8_lossy(first);
        let host = host_of(&text);
        if host.as_deref().is_some_and(|host| self.include(host)) {
            return Ok(first);
        }
        let shown: String = text.chars().take(SHOWN).collect();
        let advice = match host.and_then(|host| host_name(&host).ok()) {
            Some(host) => format!("; if clients are to use this name, start the node with --allow-host {host}"),
            None => String::new(),
        };
        wrong(format!(
            "the request is for the host `{shown}`, which is no name of this node: use an IP address, localhost, or the \
             host name in --client-addr or --advertise-client-addr{advice}"
        ))
    }

    /// Refuses a request that is not meant for this node, or that another site's page has made.
    fn check(&self, uri: &Uri, headers: &HeaderMap, scheme: Scheme) -> Result<(), Failure> {
        let host = self.check_host(uri, headers)?;
        check_origin(headers, scheme, host)
    }
}

/// How a browser names the kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn of(request: &Request) -> Scheme {
        let is_tls = request.extensions().get::<Access>().is_some_and(Access::is_tls);
        if is_tls { Scheme::Https } else { Scheme::Http }
    }

    /// What stands before the host.
    fn start(self) -> &'static str {
        match self {
            Scheme::Http => "http://",
            Scheme::Https => "https://",
        }
    }
}

/// Refuses a request that a page has made which did not come from this node by this scheme and host. A
/// browser writes the host of a page and that of a request in one way, so they need no interpretation.
fn check_origin(headers: &HeaderMap, scheme: Scheme, host: &[u8]) -> Result<(), Failure> {
    let own = [scheme.start().as_bytes(), host].concat();
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(first) = origins.next() else { return Ok(()) };
    if origins.next().is_none() && first.as_bytes().eq_ignore_ascii_case(&own) {
        return Ok(());
    }
    let shown: String = String::from_utf8_lossy(first.as_bytes()).chars().take(SHOWN).collect();
    let message = format!(
        "the request has the Origin header `{shown}`, so it comes from a web page that is not this node's own, {}: requests \
         of other pages are refused",
        String::from_utf8_lossy(&own)
    );
    Err(Failure::new(Code::WrongOrigin, message))
}

/// Passes on only requests that are meant for this node, and that no other site's page has made. A
/// browser takes no answer for something else than it is: a record must not become a script of the page.
pub(super) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let checked = app.host_names.check(request.uri(), request.headers(), Scheme::of(&request));
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(failure) => {
            app.metrics.frames_rejected.inc();
            reply::response(Err(failure), request.uri())
        }
    };
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(target: &str, hosts: &[&str]) -> Option<String> {
        let names = HostNames::of(["Node-1.example:7400", "0.0.0.0:7400", "locks.example"]);
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        let refused = names.check(&target.parse().unwrap(), &headers, Scheme::Http).err()?;
        assert_eq!(refused.error, Code::WrongHost);
        Some(refused.message)
    }

    #[test]
    fn known_names_and_addresses_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7401",
            "10.9.8.7:1",
            "[::1]:7400",
            "[2001:db8::1]",
            "localhost",
            "LOCALHOST:7400",
            "localhost.:80",
            "node-1.example",
            "NODE-1.EXAMPLE.:8443",
            "locks.example:443",
        ] {
            assert_eq!(refusal("/v1/status", &[host]), None, "{host}");
        }
        assert_eq!(refusal("http://127.0.0.1:7401/v1/status", &["127.0.0.1:7401"]), None);
        assert_eq!(refusal("/v1/status", &["127.0.0.1:1", "127.0.0.1:1"]), None);
    }

    #[test]
    fn other_hosts_are_refused_with_the_option_that_allows_them() {
        for host in ["evil.example", "evil.example:7400", "node-1.example.evil", "localhost.evil", "xlocks.example"] {
            let message = refusal("/v1/status", &[host]).expect(host);
            let name = host.split(':').next().unwrap();
            assert!(message.contains(&format!("`{host}`")) && message.contains(&format!("--allow-host {name}")));
        }
        for odd in ["", ":80", "127.0.0.1@evil", "a b", "127.0.0.1:80:80", "[::1", "[::1]x", "127.0.0.1:x", "*"] {
            let message = refusal("/v1/status", &[odd]).expect(odd);
            assert!(!message.contains("--allow-host"), "{message}");
        }
        assert!(refusal("/v1/status", &[&"x".repeat(5000)]).unwrap().len() < 500);
        assert!(refusal("/v1/status", &[]).unwrap().contains("no Host header"));
        for two in [["127.0.0.1", "evil.example"], ["localhost", "127.0.0.1"]] {
            assert!(refusal("/v1/status", &two).unwrap().contains("two different hosts"));
        }
        let proxied = refusal("http://evil.example/v1/status", &["127.0.0.1"]);
        assert!(proxied.unwrap().contains("two different hosts"));
        assert!(refusal("http://evil.example/v1/status", &[]).is_some());
    }

    /// Whether a request with these `Origin` headers is answered.
    fn accepts(scheme: Scheme, host: &str, origins: &[&str]) -> bool {
        let names = HostNames::of(["node-1.example:7400"]);
        let mut headers = HeaderMap::new();
        headers.append(HOST, HeaderValue::from_str(host).unwrap());
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        match names.check(&"/v1/locks/k/break".parse().unwrap(), &headers, scheme) {
            Ok(()) => true,
            Err(failure) => {
                assert_eq!(failure.error, Code::WrongOrigin, "{failure:?}");
                false
            }
        }
    }

    #[test]
    fn own_page_is_answered() {
        for host in ["127.0.0.1:7401", "localhost", "LOCALHOST:7400", "[::1]:7400", "node-1.example:7400"] {
            for (scheme, start) in [(Scheme::Http, "http://"), (Scheme::Https, "https://")] {
                assert!(accepts(scheme, host, &[]), "{host}");
                assert!(accepts(scheme, host, &[&format!("{start}{host}")]), "{start}{host}");
                assert!(accepts(scheme, host, &[&format!("{start}{}", host.to_lowercase())]), "{start}{host}");
            }
        }
    }

    #[test]
    fn every_other_page_is_refused() {
        let own = "http://127.0.0.1:7401";
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://evil.example:7401",
            // Another program of the same machine, another name of it, and the same node by another scheme.
            "http://127.0.0.1:7402",
            "http://127.0.0.1",
            "http://localhost:7401",
            "https://127.0.0.1:7401",
            "127.0.0.1:7401",
            "http://127.0.0.1:7401/",
            "http://127.0.0.1:7401.evil.example",
            "http://evil.example@127.0.0.1:7401",
            "http://127.0.0.1:74010",
            " http://127.0.0.1:7401",
            "http://127.0.0.1:7401 http://evil.example",
        ] {
            assert!(!accepts(Scheme::Http, "127.0.0.1:7401", &[origin]), "{origin}");
            assert!(!accepts(Scheme::Http, "127.0.0.1:7401", &[own, origin]), "{own} and {origin}");
        }
        assert!(!accepts(Scheme::Https, "127.0.0.1:7401", &[own]), "a page without TLS, that a network can change");
        assert!(!accepts(Scheme::Http, "127.0.0.1:7401", &[own, own]), "two headers");
    }

    /// Goal: a page whose own name was made to mean the node (DNS rebinding) has the same origin and
    /// host, and is refused by its name.
    #[test]
    fn own_origin_does_not_excuse_an_unknown_host() {
        let names = HostNames::of([]);
        let headers = [(HOST, "evil.example:7400"), (ORIGIN, "http://evil.example:7400")];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value))).into_iter().collect();
        let refused = names.check(&"/v1/locks".parse().unwrap(), &headers, Scheme::Http).unwrap_err();
        assert_eq!(refused.error, Code::WrongHost);
    }
}
