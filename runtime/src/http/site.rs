//! The `Host` and `Origin` headers: which requests are meant for this node.
//!
//! A web page may not read the answers of another site, and a browser enforces that by the *name*
//! of the site. A hostile page gets around it by DNS rebinding: the name of its own site comes to
//! mean the address of a node, and the browser then lets the page read all that the node answers.
//! Such a request still carries the page's own name in `Host`, so a node answers only requests
//! under names that it knows. An IP address needs no list: no DNS server can make it mean another
//! host.
//!
//! A browser that sends a request to another site than its page's states the page's site in
//! `Origin`. A node serves no pages, so it refuses every request that has an `Origin`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::Response;
use palisade_client::wire::{Code, Failure};

use super::{App, reply};
use crate::addresses::{host_name, host_of};

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
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
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
            return Ok(());
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

    /// Refuses a request that is not meant for this node, or that a web page has made.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        self.check_host(uri, headers)?;
        if headers.contains_key(ORIGIN) {
            let message =
                "the request has an Origin header, so it comes from a web page: requests of web pages are refused";
            return Err(Failure::new(Code::WrongOrigin, message));
        }
        Ok(())
    }
}

/// Passes on only requests that are meant for this node, and that no web page has made.
pub(super) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.host_names.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(failure) => {
            app.metrics.frames_rejected.inc();
            reply::response(Err(failure), request.uri())
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn refusal(target: &str, hosts: &[&str]) -> Option<String> {
        let names = HostNames::of(["Node-1.example:7400", "0.0.0.0:7400", "locks.example"]);
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        let refused = names.check(&target.parse().unwrap(), &headers).err()?;
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
}
