//! `palisade cert`: a cluster's CA, the certificates of its nodes and clients, and bearer tokens.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use palisade::tls::{Authority, Issued, NewToken, TlsError, Validity, client_name};
use time::OffsetDateTime;

use super::print_error;

/// Make a CA, and the certificates and tokens with which nodes and clients prove who they are
#[derive(Debug, Args)]
pub(super) struct Cert {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the CA of a cluster: DIR/ca.pem, which all nodes and clients trust, and DIR/ca-key.pem,
    /// which only issues certificates and need not be on any node
    Init {
        /// The directory of the CA; created if it is missing
        directory: PathBuf,
        /// The cluster's name, as in `palisade serve --cluster`
        #[arg(long, value_name = "NAME")]
        cluster: String,
        #[command(flatten)]
        valid: Valid<3650>,
    },
    /// Issue a node's certificate: DIR/node-N.pem and DIR/node-N-key.pem
    Node {
        /// The directory of the CA
        directory: PathBuf,
        /// The node's ID
        #[arg(long, value_name = "N")]
        id: u16,
        /// A host name or an IP address at which clients reach the node; may be repeated
        #[arg(long = "host", value_name = "HOST", required = true)]
        hosts: Vec<String>,
        #[command(flatten)]
        valid: Valid<365>,
    },
    /// Issue a client's certificate: DIR/client-NAME.pem and DIR/client-NAME-key.pem; with --admin,
    /// DIR/admin-NAME.pem and DIR/admin-NAME-key.pem
    Client {
        /// The directory of the CA
        directory: PathBuf,
        /// The client's name: letters, digits and . _ - @
        #[arg(long, value_name = "NAME", value_parser = client_name)]
        name: String,
        /// Make the client an administrator: it has every right, whatever the access rules of the cluster
        /// say
        #[arg(long)]
        admin: bool,
        #[command(flatten)]
        valid: Valid<365>,
    },
    /// Draw a bearer token for a client. The token is printed once, on the first line; the second
    /// line is for the file of --client-tokens on every node
    Token {
        /// The client's name: letters, digits and . _ - @
        #[arg(long, value_name = "NAME", value_parser = client_name)]
        name: String,
    },
}

/// When a certificate is valid; by default for this number of days.
#[derive(Debug, Args)]
struct Valid<const DAYS: u64> {
    /// How long the certificate is valid [default: 365days; 3650days for a CA]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    valid: Option<Duration>,
    /// When its validity begins, such as 2027-01-31T00:00:00Z [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
    valid_from: Option<OffsetDateTime>,
}

impl<const DAYS: u64> Valid<DAYS> {
    fn validity(&self) -> Result<Validity, TlsError> {
        let length = self.valid.unwrap_or(Duration::from_secs(DAYS * 24 * 60 * 60));
        match self.valid_from {
            Some(from) => Validity::starting(from, length),
            None => Validity::starting_now(length),
        }
    }
}

fn parse_moment(text: &str) -> Result<OffsetDateTime, String> {
    humantime::parse_rfc3339(text).map(OffsetDateTime::from).map_err(|error| error.to_string())
}

impl Cert {
    pub(super) fn run(self) -> ExitCode {
        match self.action.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(error);
                ExitCode::from(74)
            }
        }
    }
}

impl Action {
    fn run(self) -> Result<(), TlsError> {
        match self {
            Action::Init { directory, cluster, valid } => {
                let authority = Authority::create(&directory, &cluster, valid.validity()?)?;
                outln!("made a CA for cluster `{cluster}`: {}", authority.certificate().display());
                outln!(
                    "keep its key, {}, away from the nodes: it can make any identity of the cluster",
                    directory.join("ca-key.pem").display()
                );
            }
            Action::Node { directory, id, hosts, valid } => {
                let authority = Authority::open(&directory)?;
                let issued = authority.node(id, &hosts, valid.validity()?)?;
                let cluster = authority.cluster();
                outln!("issued the certificate of node {id} of cluster `{cluster}`; start the node with");
                let Issued { cert, key } = issued;
                let ca = authority.certificate();
                outln!("  --tls-ca {} --tls-cert {} --tls-key {}", ca.display(), cert.display(), key.display());
            }
            Action::Client { directory, name, admin, valid } => {
                let authority = Authority::open(&directory)?;
                let issue = if admin { Authority::administrator } else { Authority::client };
                let issued = issue(&authority, &name, valid.validity()?)?;
                let kind = if admin { "administrator" } else { "client" };
                outln!("issued the certificate of {kind} `{name}` of cluster `{}`; connect with", authority.cluster());
                let Issued { cert, key } = issued;
                let ca = authority.certificate();
                outln!("  --ca {} --cert {} --cert-key {}", ca.display(), cert.display(), key.display());
            }
            Action::Token { name } => {
                let NewToken { token, line } = NewToken::draw(&name);
                outln!("{token}");
                outln!("{line}");
            }
        }
        Ok(())
    }
}
