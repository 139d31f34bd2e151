//! How commands find the cluster.

use clap::Args;
use palisade_client::wire::{Code, Failure};
use palisade_client::{DEFAULT_ENDPOINTS, Error, parse_endpoints};

/// How long a node may take to answer for itself.
pub(super) const NODE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Where the cluster is.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoints {
    /// Nodes to ask, HOST:PORT,…; after a comma, a port alone repeats the host
    #[arg(long, value_name = "LIST", env = "PALISADE_ENDPOINTS", default_value = DEFAULT_ENDPOINTS)]
    endpoints: String,
}

impl Endpoints {
    pub(super) fn parse(&self) -> Result<Vec<String>, Error> {
        parse_endpoints(&self.endpoints)
    }
}

/// The exit code of a command that failed, after sysexits: 69 nobody reachable, 75 try again, 64 used wrongly.
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
