//! `palisade unlock`: take a lock from its holder.

use std::process::ExitCode;

use clap::Args;
use palisade_client::Error;
use palisade_client::wire::{Broken, Consistency, HolderView};

use super::connect::{self, Endpoints};
use super::show::{name, print_json};
use super::{block_on, print_error};

/// Exit code: no session holds the lock.
const EXIT_NOT_HELD: u8 = 65;

/// Exit code: several sessions hold the lock, and the command does not say which grant it means.
const EXIT_SEVERAL: u8 = 64;

/// What came of it.
enum Ended {
    /// The grant is broken; and its holder's owner, if it was still shown.
    Broken(Broken, Option<String>),
    /// No session holds the lock.
    Free,
    /// Several sessions share it.
    Several(Vec<HolderView>),
}

/// Break the lock on a key: take it from a holder that hangs and keeps it
///
/// The next waiter is granted the lock. A holder that is connected is told at once. Until it stops, its
/// writes still arrive: a record of Palisade refuses its token from now on; another resource does so only if it compares
/// tokens, and has seen that of a later grant. The server logs the reason. A lock that several sessions
/// share needs `--token`. The exit code is 64 without it, 65 if no session holds the lock, 69 if no leader could be reached.
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
            Ok(Ended::Broken(broken, _)) if self.json => print_json(&broken),
            Ok(Ended::Broken(Broken { key, token, session, principal }, owner)) => {
                let owner = owner.map_or_else(String::new, |owner| format!(" of {}", name(&owner)));
                let client = if principal.is_empty() { String::new() } else { format!(" (client {principal})") };
                outln!("{key}: broke the grant with token {token}, held by session {session}{owner}{client}");
            }
            Ok(Ended::Several(holders)) => {
                let tokens: Vec<String> = holders.iter().map(|holder| holder.token.to_string()).collect();
                print_error(format!(
                    "{}: {} sessions share the lock; name the grant to break with --token: {}",
                    self.key,
                    tokens.len(),
                    tokens.join(", ")
                ));
                return ExitCode::from(EXIT_SEVERAL);
            }
            Ok(Ended::Free) => {
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

    /// Breaks the grant.
    async fn break_grant(&self) -> Result<Ended, Error> {
        let client = self.endpoints.connect().await?;
        let holders = client.show_lock(self.key.as_str(), Consistency::Linearizable).await?.holders;
        let token = match (self.token, &holders[..]) {
            (Some(token), _) => token,
            (None, []) => return Ok(Ended::Free),
            (None, [holder]) => holder.token,
            (None, _) => return Ok(Ended::Several(holders)),
        };
        let broken = client.break_lock(self.key.as_str(), token, self.reason.as_str()).await?;
        let owner = holders.into_iter().find(|holder| holder.token == token).map(|holder| holder.owner);
        Ok(Ended::Broken(broken, owner))
    }
}
