//! Addresses of nodes: `HOST:PORT`, and the shorthand of the command line.

use std::env;

use crate::tls::TlsError;
use crate::{Error, Security};

/// The clients' ports of a local cluster of three, as `palisade dev` starts it.
pub const DEFAULT_ENDPOINTS: &str = "127.0.0.1:7401,7402,7403";

/// The endpoints that the environment names in `PALISADE_ENDPOINTS`, or else [`DEFAULT_ENDPOINTS`].
///
/// # Errors
/// As [`parse_endpoints`].
pub fn endpoints_from_env() -> Result<Vec<String>, Error> {
    match env::var_os("PALISADE_ENDPOINTS") {
        Some(list) => parse_endpoints(&list.to_string_lossy()),
        None => parse_endpoints(DEFAULT_ENDPOINTS),
    }
}

/// Reads a list of endpoints, separated by commas or spaces. A bare port takes the host of the endpoint before it. An
/// endpoint may be written as a URL, as `palisade dev` prints it. `https://` stays: such a node is never dialled without
/// TLS.
///
/// ```
/// let endpoints = palisade_client::parse_endpoints("10.0.0.1:7400, 127.0.0.1:7401,7402").unwrap();
/// assert_eq!(endpoints, ["10.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]);
/// assert_eq!(palisade_client::parse_endpoints("http://127.0.0.1:7401/").unwrap(), ["127.0.0.1:7401"]);
/// ```
///
/// # Errors
/// [`Error::BadEndpoint`] if the list is empty, a part is not `HOST:PORT`, or the first is a bare port.
pub fn parse_endpoints(list: &str) -> Result<Vec<String>, Error> {
    let mut endpoints: Vec<String> = Vec::new();
    for part in list.split(',').flat_map(words) {
        let part = match part.strip_prefix("http://") {
            Some(url) => without_slash(url),
            None if part.starts_with(TLS_SCHEME) => without_slash(part),
            None => part,
        };
        let endpoint = match endpoints.last().and_then(|last| last.rsplit_once(':')) {
            Some((host, _)) if is_port(part) => format!("{host}:{part}"),
            _ => part.to_owned(),
        };
        check(&endpoint)?;
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

/// How an endpoint demands TLS.
const TLS_SCHEME: &str = "https://";

fn without_slash(url: &str) -> &str {
    url.strip_suffix('/').unwrap_or(url)
}

/// Whether `endpoint` is `HOST:PORT`, with brackets around an IPv6 address, perhaps behind `https://`.
pub(crate) fn check(endpoint: &str) -> Result<(), Error> {
    let address = endpoint.strip_prefix(TLS_SCHEME).unwrap_or(endpoint);
    let good = address.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty()
            && (bracketed || !host.contains(':'))
            && !host.contains(['/', ' ', '@', '?', '#'])
            && is_port(port)
    });
    if good { Ok(()) } else { Err(Error::BadEndpoint { endpoint: endpoint.to_owned() }) }
}

impl Security {
    /// The address to dial for an endpoint: `HOST:PORT`. A node that is named with `https://` is dialled with TLS or not
    /// at all.
    ///
    /// # Errors
    /// [`Error::BadEndpoint`]; [`Error::Tls`] if the endpoint demands TLS and no CA is given.
    pub fn address(&self, endpoint: &str) -> Result<String, Error> {
        check(endpoint)?;
        match endpoint.strip_prefix(TLS_SCHEME) {
            Some(_) if !self.is_tls() => Err(Error::Tls(TlsError(format!(
                "{endpoint} demands TLS, and no CA is given: name the CA's certificate (--ca FILE or PALISADE_CA; \
                 Options::security in a program)"
            )))),
            Some(address) => Ok(address.to_owned()),
            None => Ok(endpoint.to_owned()),
        }
    }
}

/// The words of a part of the list; one empty word if there is none, so that an empty part is refused.
fn words(part: &str) -> impl Iterator<Item = &str> {
    let none = part.trim().is_empty().then_some("");
    part.split_whitespace().chain(none)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::parse_endpoints;
    use crate::Security;

    #[test]
    fn bare_port_takes_the_host_before_it() {
        assert_eq!(parse_endpoints("a:1,2,b:3,4").unwrap(), ["a:1", "a:2", "b:3", "b:4"]);
        assert_eq!(parse_endpoints("[::1]:7401,7402").unwrap(), ["[::1]:7401", "[::1]:7402"]);
    }

    #[test]
    fn urls_are_endpoints() {
        let printed_by_dev = "http://127.0.0.1:7401 http://127.0.0.1:7402";
        assert_eq!(parse_endpoints(printed_by_dev).unwrap(), ["127.0.0.1:7401", "127.0.0.1:7402"]);
        assert_eq!(parse_endpoints("http://a:1/,2, http://[::1]:3").unwrap(), ["a:1", "a:2", "[::1]:3"]);
    }

    #[test]
    fn https_stays_and_needs_a_ca() {
        assert_eq!(parse_endpoints("https://a:1/,2").unwrap(), ["https://a:1", "https://a:2"]);
        let refused = Security::plain().address("https://a:1").unwrap_err().to_string();
        assert!(refused.contains("https://a:1 demands TLS, and no CA is given"), "{refused}");
        assert_eq!(Security::tls("ca.pem").address("https://a:1").unwrap(), "a:1");
        assert_eq!(Security::tls("ca.pem").address("a:1").unwrap(), "a:1");
    }

    #[test]
    fn invalid_endpoints_are_named() {
        for bad in [
            "",
            "7401",
            "host",
            "host:",
            "host:0",
            "host:70000",
            ":1",
            "::1:7401",
            "a:1,,a:2",
            "a:+1",
            "https://a",
            "https://a:1/x",
            "http://a",
            "http://a:1/x",
        ] {
            let error = parse_endpoints(bad).unwrap_err().to_string();
            assert!(error.contains("is not an endpoint"), "{bad}: {error}");
        }
    }
}
