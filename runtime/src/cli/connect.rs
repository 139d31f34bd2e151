//! The `--endpoints` option, and the exit code for each error of the client.

use clap::Args;
use palisade_client::wire::{Code, Failure};
use palisade_client::{DEFAULT_ENDPOINTS, Error, parse_endpoints};

/// How long a node may take to answer a status request.
pub(super) const NODE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Addresses of the cluster's nodes.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoints {
    /// Client addresses of the cluster's nodes, HOST:PORT,…; a port alone repeats the previous host
    #[arg(long, value_name = "LIST", env = "PALISADE_ENDPOINTS", default_value = DEFAULT_ENDPOINTS)]
    endpoints: String,
}

impl Endpoints {
    pub(super) fn parse(&self) -> Result<Vec<String>, Error> {
        parse_endpoints(&self.endpoints)
    }
}

/// The exit code for an error, after sysexits: 64 wrong usage, 65 request refused, 69 no node
/// reachable, 70 internal error, 75 try again; and 76 if the lock was lost.
pub(super) fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Unreachable { .. } | Error::Closed => 69,
        Error::Held { .. } | Error::TimedOut { .. } => 75,
        Error::Lost => 76,
        Error::BadEndpoint { .. } => 64,
        Error::Refused(Failure { error: Code::NoSpace, .. }) => 75,
        Error::Refused(_) => 65,
        _ => 70,
    }
}
