//! Where the nodes are: `HOST:PORT`, and the shorthand of the command line.

use std::env;

use crate::Error;

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

/// Reads a comma-separated list of endpoints. A bare port takes the host of the one before it.
///
/// ```
/// let endpoints = palisade_client::parse_endpoints("10.0.0.1:7400, 127.0.0.1:7401,7402").unwrap();
/// assert_eq!(endpoints, ["10.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]);
/// ```
///
/// # Errors
/// [`Error::BadEndpoint`] if the list is empty, a part is not `HOST:PORT`, or the first is a bare port.
pub fn parse_endpoints(list: &str) -> Result<Vec<String>, Error> {
    let mut endpoints: Vec<String> = Vec::new();
    for part in list.split(',').map(str::trim) {
        let endpoint = match endpoints.last().and_then(|last| last.rsplit_once(':')) {
            Some((host, _)) if is_port(part) => format!("{host}:{part}"),
            _ => part.to_owned(),
        };
        check(&endpoint)?;
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

/// Whether `endpoint` is `HOST:PORT`, with brackets around an IPv6 address.
pub(crate) fn check(endpoint: &str) -> Result<(), Error> {
    let good = endpoint.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty()
            && (bracketed || !host.contains(':'))
            && !host.contains(['/', ' ', '@', '?', '#'])
            && is_port(port)
    });
    if good { Ok(()) } else { Err(Error::BadEndpoint { endpoint: endpoint.to_owned() }) }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::parse_endpoints;

    #[test]
    fn a_bare_port_takes_the_host_before_it() {
        assert_eq!(parse_endpoints("a:1,2,b:3,4").unwrap(), ["a:1", "a:2", "b:3", "b:4"]);
        assert_eq!(parse_endpoints("[::1]:7401,7402").unwrap(), ["[::1]:7401", "[::1]:7402"]);
    }

    #[test]
    fn what_is_not_an_endpoint_is_named() {
        for bad in
            ["", "7401", "host", "host:", "host:0", "host:70000", ":1", "::1:7401", "a:1,,a:2", "http://a:1", "a:+1"]
        {
            let error = parse_endpoints(bad).unwrap_err().to_string();
            assert!(error.contains("is not an endpoint"), "{bad}: {error}");
        }
    }
}
