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
//! the connection and the request's own `Host`, which by then is known to name the node,
//! nor one of the origins that the operator has allowed. An answer to a page of such an origin says that
//! the page may read it (CORS). A browser may present its user's certificate with a request of any page, so
//! such a page proves by a bearer token who its user is ([`ForeignPage`]), also with a
//! [WebSocket](super::socket_protocols).
//!
//! For a picture, a script or a link of another site's page, the browser sends a `GET` without `Origin`, under the
//! certificate of its user. The page cannot read the answer, and no lock changes; but the node would read a snapshot,
//! and record that in the user's name. A browser says in `Sec-Fetch-Site` where such a request comes from, and a node
//! refuses it, except a link to the node's own page. (Browsers send this header only with TLS or to a loopback
//! address.)

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use palisade_client::wire::{Code, Failure};

use super::socket_protocols::move_token;
use super::{App, reply, ui};
use crate::addresses::{host_name, host_of};
use crate::tls::Access;

/// Number of characters of an unknown host that a refusal repeats.
const SHOWN: usize = 100;

/// What a browser says of a request: how the site of the page that makes it is related to the request's own, and for
/// what the page makes it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// What an answer to a page of an allowed origin tells the browser.
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE");
const ALLOWED_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, last-event-id, x-fence-token, x-forward");
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("retry-after, x-age-ms, x-max-fence, x-version");
/// For how many seconds a browser may keep that.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The names under which a node answers, beside IP addresses and `localhost`, and the origins whose
/// pages it answers beside its own.
#[derive(Clone, Debug, Default)]
pub struct Site {
    hosts: Arc<BTreeSet<String>>,
    origins: Arc<BTreeSet<String>>,
}

/// Marks a request of a page of an allowed origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForeignPage;

/// The page that has made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page<'a> {
    /// The node's own, or the request is no page's.
    Own,
    /// One of an allowed origin.
    Allowed(&'a HeaderValue),
}

impl Site {
    /// The hosts of these addresses (`HOST:PORT` or `HOST`), and these [origins](origin).
    pub fn new<'a>(addresses: impl IntoIterator<Item = &'a str>, origins: &[String]) -> Site {
        let hosts = addresses.into_iter().filter_map(host_of).collect();
        Site { hosts: Arc::new(hosts), origins: Arc::new(origins.iter().cloned().collect()) }
    }

    fn include(&self, host: &str) -> bool {
        host == "localhost" || host.parse::<IpAddr>().is_ok() || self.hosts.contains(host)
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
    fn check<'a>(&self, uri: &Uri, headers: &'a HeaderMap, scheme: Scheme) -> Result<Page<'a>, Failure> {
        let host = self.check_host(uri, headers)?;
        match self.check_origin(headers, scheme, host)? {
            Some(page) => Ok(page),
            None => check_fetch(uri, headers).map(|()| Page::Own),
        }
    }

    /// Refuses a request that a page has made which neither came from this node by this scheme and host, nor
    /// is of an allowed origin. A browser writes the host of a page and that of a request in one way, so they
    /// need no interpretation. `None`: the request states no origin.
    fn check_origin<'a>(
        &self,
        headers: &'a HeaderMap,
        scheme: Scheme,
        host: &[u8],
    ) -> Result<Option<Page<'a>>, Failure> {
        let own = [scheme.start().as_bytes(), host].concat();
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(first) = origins.next() else { return Ok(None) };
        if origins.next().is_some() {
            let message = "the request has several Origin headers, and a browser sends one";
            return Err(Failure::new(Code::WrongOrigin, message));
        }
        if first.as_bytes().eq_ignore_ascii_case(&own) {
            return Ok(Some(Page::Own));
        }
        if first.to_str().is_ok_and(|origin| self.origins.contains(origin)) {
            return Ok(Some(Page::Allowed(first)));
        }
        let text = String::from_utf8_lossy(first.as_bytes());
        let shown: String = text.chars().take(SHOWN).collect();
        let advice = match origin(&text) {
            Ok(origin) => {
                format!("; if its pages are to use the cluster, start the nodes with --allow-origin {origin}")
            }
            Err(_) => String::new(),
        };
        let message = format!(
            "the request has the Origin header `{shown}`, so it comes from a web page that is not this node's own, {}: \
             requests of other pages are refused{advice}",
            String::from_utf8_lossy(&own)
        );
        Err(Failure::new(Code::WrongOrigin, message))
    }
}

/// Refuses a request without an origin that a browser has sent for a page of another site, except a link to a file of
/// the node's own page: the files tell nothing.
fn check_fetch(uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
    let sites = headers.get_all(SEC_FETCH_SITE).iter();
    let Some(site) = sites.map(HeaderValue::as_bytes).find(|site| matches!(*site, b"cross-site" | b"same-site")) else {
        return Ok(());
    };
    if ui::has(uri.path()) && headers.get(SEC_FETCH_MODE).is_some_and(|mode| mode == "navigate") {
        return Ok(());
    }
    let message = format!(
        "the request has the header `Sec-Fetch-Site: {}` and no Origin header, so a link, a picture or a script of \
         another site's web page has made it: such requests are refused, except links to this node's own page, /ui/",
        String::from_utf8_lossy(site)
    );
    Err(Failure::new(Code::WrongOrigin, message))
}

/// An origin, as a browser writes it: `http://HOST` or `https://HOST`, with `:PORT` if that is not the
/// scheme's own.
///
/// # Errors
/// If it is none.
pub fn origin(text: &str) -> Result<String, String> {
    let wrong =
        || format!("`{text}` is no origin: give http://HOST or https://HOST, with :PORT if it is not the usual one");
    let text = text.to_ascii_lowercase();
    let (scheme, usual) = if text.starts_with("https://") { ("https://", 443) } else { ("http://", 80) };
    let authority = text.strip_prefix(scheme).ok_or_else(wrong)?;
    let host = host_of(authority).ok_or_else(wrong)?;
    let host = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        Ok(IpAddr::V4(address)) => address.to_string(),
        Err(_) => host_name(&host).map_err(|_| wrong())?,
    };
    // Of the brackets around an IPv6 address none is behind the last colon that stands before a port.
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    match port.map(str::parse::<u16>) {
        None => Ok(format!("{scheme}{host}")),
        Some(Ok(port)) if port == usual => Ok(format!("{scheme}{host}")),
        Some(Ok(port)) if port > 0 => Ok(format!("{scheme}{host}:{port}")),
        Some(_) => Err(wrong()),
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

/// Passes on only requests that are meant for this node, and that no other site's page has made. A
/// browser takes no answer for something else than it is: a record must not become a script of the page.
pub(super) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let (mut allowed, mut is_preflight) = (None, false);
    let checked = app.site.check(request.uri(), request.headers(), Scheme::of(&request)).map(|page| {
        if let Page::Allowed(origin) = page {
            allowed = Some(origin.clone());
            is_preflight =
                request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        }
    });
    let mut response = match checked {
        // A browser asks whether the page may send a request, without any proof of who its user is.
        Ok(()) if is_preflight => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
            headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
            response
        }
        Ok(()) => {
            if allowed.is_some() {
                request.extensions_mut().insert(ForeignPage);
            }
            move_token(request.headers_mut());
            next.run(request).await
        }
        Err(failure) => {
            app.metrics.frames_rejected.inc();
            reply::response(Err(failure), request.uri())
        }
    };
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
    // The answer to one page is not that to another.
    if !app.site.origins.is_empty() {
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(target: &str, hosts: &[&str]) -> Option<String> {
        let site = Site::new(["Node-1.example:7400", "0.0.0.0:7400", "locks.example"], &[]);
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        let refused = site.check(&target.parse().unwrap(), &headers, Scheme::Http).err()?;
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
        let site = Site::new(["node-1.example:7400"], &["https://app.example".to_owned()]);
        let mut headers = HeaderMap::new();
        headers.append(HOST, HeaderValue::from_str(host).unwrap());
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        match site.check(&"/v1/locks/k/break".parse().unwrap(), &headers, scheme) {
            Ok(_) => true,
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
            // Not quite the origin that is allowed.
            "http://app.example",
            "https://app.example:8443",
            "https://app.example.evil.example",
            "https://other.app.example",
        ] {
            assert!(!accepts(Scheme::Http, "127.0.0.1:7401", &[origin]), "{origin}");
            assert!(!accepts(Scheme::Http, "127.0.0.1:7401", &[own, origin]), "{own} and {origin}");
        }
        assert!(!accepts(Scheme::Https, "127.0.0.1:7401", &[own]), "a page without TLS, that a network can change");
        assert!(!accepts(Scheme::Http, "127.0.0.1:7401", &[own, own]), "two headers");
    }

    #[test]
    fn pages_of_an_allowed_origin_are_answered() {
        for scheme in [Scheme::Http, Scheme::Https] {
            let host = "127.0.0.1:7401";
            assert!(accepts(scheme, host, &["https://app.example"]));
            assert!(!accepts(scheme, host, &["https://app.example", "https://app.example"]), "two headers");
            assert!(!accepts(scheme, host, &["https://app.example", "http://evil.example"]));
        }
    }

    /// Whether a request with these headers beside its `Host` is answered.
    fn answers(path: &str, headers: &[(HeaderName, &'static str)]) -> bool {
        let site = Site::new([], &["https://app.example".to_owned()]);
        let host = (HOST, HeaderValue::from_static("127.0.0.1:7401"));
        let others = headers.iter().cloned().map(|(name, value)| (name, HeaderValue::from_static(value)));
        let headers = std::iter::once(host).chain(others).collect();
        let checked = site.check(&path.parse().unwrap(), &headers, Scheme::Https);
        checked.map_err(|failure| assert_eq!(failure.error, Code::WrongOrigin, "{failure:?}")).is_ok()
    }

    /// Goal: nothing is done, under the certificate of a browser's user, for a picture, a script or a link of another
    /// site's page, for which a browser states no origin.
    #[test]
    fn request_of_another_sites_page_without_an_origin_is_refused() {
        let get = |path: &str, site: &'static str, mode: &'static str| {
            answers(path, &[(SEC_FETCH_SITE, site), (SEC_FETCH_MODE, mode)])
        };
        for site in ["cross-site", "same-site"] {
            for path in ["/v1/snapshot", "/v1/locks", "/metrics", "/healthz", "/ui/../v1/snapshot", "/nothing"] {
                for mode in ["no-cors", "navigate", "cors", "websocket"] {
                    assert!(!get(path, site, mode), "{path} {site} {mode}");
                }
            }
            for path in ["/", "/ui", "/ui/", "/ui/page.js"] {
                assert!(get(path, site, "navigate"), "{path} {site}");
                assert!(!get(path, site, "no-cors"), "{path} {site}");
            }
            assert!(!answers("/v1/snapshot", &[(SEC_FETCH_SITE, site)]));
            assert!(!answers("/v1/snapshot", &[(SEC_FETCH_SITE, "none"), (SEC_FETCH_SITE, site)]), "two headers");
        }
        // The node's own page, an address that the user has typed, and programs that are no browsers.
        for site in ["same-origin", "none"] {
            assert!(get("/v1/snapshot", site, "no-cors") && get("/v1/snapshot", site, "navigate"), "{site}");
        }
        assert!(answers("/v1/snapshot", &[]));
    }

    /// Goal: the requests and WebSockets of pages of an allowed origin, which state it, are answered as before.
    #[test]
    fn pages_of_an_allowed_origin_are_of_another_site() {
        let get = |origin, site, mode| {
            answers("/v1/hold", &[(ORIGIN, origin), (SEC_FETCH_SITE, site), (SEC_FETCH_MODE, mode)])
        };
        for site in ["cross-site", "same-site"] {
            for mode in ["cors", "websocket"] {
                assert!(get("https://app.example", site, mode), "{site} {mode}");
                assert!(!get("https://evil.example", site, mode), "{site} {mode}");
            }
        }
        assert!(get("https://127.0.0.1:7401", "same-origin", "websocket"));
    }

    #[test]
    fn origins_are_written_as_a_browser_writes_them() {
        for (given, written) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://app.example:80", "http://app.example"),
            ("http://app.example:443", "http://app.example:443"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("http://[0:0:0:0:0:0:0:1]", "http://[::1]"),
            ("https://app.example:08443", "https://app.example:8443"),
        ] {
            assert_eq!(origin(given).as_deref(), Ok(written));
        }
        for wrong in
            ["", "*", "null", "app.example", "ftp://app.example", "https://", "https://a b", "https://*.example"]
        {
            assert!(origin(wrong).unwrap_err().contains("is no origin"), "{wrong}");
        }
        for rest in ["/", ":", ":x", ":0", ":99999", "/path", "?query", ":443:443"] {
            assert!(origin(&format!("https://app.example{rest}")).is_err(), "{rest}");
        }
        assert!(origin("https://user@app.example").is_err());
    }

    /// Goal: a page whose own name was made to mean the node (DNS rebinding) has the same origin and
    /// host, and is refused by its name.
    #[test]
    fn own_origin_does_not_excuse_an_unknown_host() {
        let site = Site::new([], &[]);
        let headers = [(HOST, "evil.example:7400"), (ORIGIN, "http://evil.example:7400")];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value))).into_iter().collect();
        let refused = site.check(&"/v1/locks".parse().unwrap(), &headers, Scheme::Http).unwrap_err();
        assert_eq!(refused.error, Code::WrongHost);
    }
}
