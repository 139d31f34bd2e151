//! `palisade unlock`: take a lock from its holder.

use std::process::ExitCode;

use clap::Args;
use palisade_client::Error;
use palisade_client::wire::{Broken, Consistency};

use super::connect::{self, Endpoints};
use super::show::{name, print_json};
use super::{block_on, print_error};

/// Exit code: no session holds the lock.
const EXIT_NOT_HELD: u8 = 65;

/// Break the lock on a key: take it from a holder that hangs and keeps it
///
/// The next waiter is granted the lock. A holder that is connected is told at once; its later writes
/// have an old fencing token, which the resource must refuse. The server logs the reason. The exit
/// code is 65 if no session holds the lock, 69 if no leader could be reached.
#[derive(Debug, Args)]
pub(super) struct Unlock {
    /// Key of the lock
    key: String,
    /// Confirm that the lock is taken from a client that may be alive
    #[arg(long, required = true)]
    force: bool,
    /// Why, for the server's log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Break this grant only; by default the present one
    #[arg(long, value_name = "N")]
    token: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl Unlock {
    pub(super) fn run(self) -> ExitCode {
        match block_on(self.break_grant()) {
            Ok(Some((broken, _))) if self.json => print_json(&broken),
            Ok(Some((Broken { key, token, session, principal }, owner))) => {
                let owner = owner.map_or_else(String::new, |owner| format!(" of {}", name(&owner)));
                let client = if principal.is_empty() { String::new() } else { format!(" (client {principal})") };
                outln!("{key}: broke the grant with token {token}, held by session {session}{owner}{client}");
            }
            Ok(None) => {
                print_error(format!("{}: no session holds the lock", self.key));
                return ExitCode::from(EXIT_NOT_HELD);
            }
            Err(error) => {
                print_error(format!("{}: {error}", self.key));
                return ExitCode::from(connect::exit_code(&error));
            }
        }
        ExitCode::SUCCESS
    }

    /// Breaks the grant, and returns its holder's owner, if it is still the holder that is shown;
    /// `None` if no session holds the lock.
    async fn break_grant(&self) -> Result<Option<(Broken, Option<String>)>, Error> {
        let client = self.endpoints.connect().await?;
        let holder = client.show_lock(self.key.as_str(), Consistency::Linearizable).await?.holder;
        let Some(token) = self.token.or(holder.as_ref().map(|holder| holder.token)) else { return Ok(None) };
        let broken = client.break_lock(self.key.as_str(), token, self.reason.as_str()).await?;
        let owner = holder.filter(|holder| holder.token == token).map(|holder| holder.owner);
        Ok(Some((broken, owner)))
    }
}
