//! The options that say where the cluster is and how to connect, and the exit code for each error of
//! the client.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use palisade_client::wire::{Code, Failure};
use palisade_client::{Client, DEFAULT_ENDPOINTS, Error, Options, Security, parse_endpoints};

use super::print_error;

/// How long a node may take to answer a status request.
pub(super) const NODE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Addresses of the cluster's nodes, and what connections to them are secured with.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoints {
    /// Addresses of the cluster's nodes, HOST:PORT,…; a port alone repeats the previous host.
    /// Administrative commands need the nodes' admin addresses, if they have some (--admin-addr)
    #[arg(long, value_name = "LIST", env = "PALISADE_ENDPOINTS", default_value = DEFAULT_ENDPOINTS)]
    endpoints: String,
    /// Use TLS, and trust the nodes whose certificates were issued by this CA
    #[arg(long, value_name = "FILE", env = "PALISADE_CA", help_heading = "TLS")]
    ca: Option<PathBuf>,
    /// This client's certificate
    #[arg(long, value_name = "FILE", env = "PALISADE_CERT", requires_all = ["ca", "cert_key"], help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// The key of --cert
    #[arg(long, value_name = "FILE", env = "PALISADE_CERT_KEY", requires = "cert", help_heading = "TLS")]
    cert_key: Option<PathBuf>,
    /// A file with this client's bearer token
    #[arg(long, value_name = "FILE", env = "PALISADE_TOKEN_FILE", requires = "ca", help_heading = "TLS")]
    token_file: Option<PathBuf>,
}

impl Endpoints {
    /// The addresses: HOST:PORT.
    pub(super) fn parse(&self) -> Result<Vec<String>, Error> {
        let security = self.security();
        security.check()?;
        parse_endpoints(&self.endpoints)?.iter().map(|endpoint| security.address(endpoint)).collect()
    }

    /// What connections are secured with.
    pub(super) fn security(&self) -> Security {
        let mut security = self.ca.as_ref().map_or_else(Security::plain, Security::tls);
        if let (Some(cert), Some(key)) = (&self.cert, &self.cert_key) {
            security = security.with_certificate(cert, key);
        }
        if let Some(token) = &self.token_file {
            security = security.with_token_file(token);
        }
        security
    }

    /// The default options of a client, with this security.
    pub(super) fn options(&self) -> Options {
        Options { security: self.security(), ..Options::default() }
    }

    /// Connects to the cluster.
    pub(super) async fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.parse()?, self.options()).await
    }
}

/// Reports the error that a command ends with.
pub(super) fn fail(error: &Error) -> ExitCode {
    print_error(error);
    ExitCode::from(exit_code(error))
}

/// The exit code for an error, after sysexits: 64 wrong usage, 65 request refused, 69 no node
/// reachable, 70 internal error, 75 try again; 76 if the lock was lost;
/// and 77 if the nodes refuse this client's identity, or the client the nodes', or if the access rules
/// deny it.
pub(super) fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Unreachable { .. } | Error::UnknownOutcome { .. } | Error::Closed => 69,
        Error::Held { .. } | Error::TimedOut { .. } => 75,
        Error::Lost => 76,
        Error::Unauthenticated { .. } => 77,
        Error::BadEndpoint { .. } | Error::Tls(_) => 64,
        Error::Refused(Failure { error: Code::NoSpace | Code::Overloaded | Code::TooSoon, .. }) => 75,
        Error::Refused(Failure { error: Code::Denied, .. }) => 77,
        Error::Refused(_) => 65,
        _ => 70,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a script can tell what to try again from what will be refused again.
    #[test]
    fn refusals_for_the_moment_have_a_code_of_their_own() {
        let code = |error| exit_code(&Error::Refused(Failure::new(error, "for a test")));
        assert_eq!([Code::NoSpace, Code::Overloaded, Code::TooSoon].map(code), [75; 3]);
        assert_eq!([Code::Invalid, Code::Limit, Code::OtherVersion].map(code), [65; 3]);
        assert_eq!(code(Code::Denied), 77);
    }
}
