//! `palisade session`: the sessions of locks that `palisade acquire` has taken.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use palisade_client::wire::{SessionId, SessionLease};

use super::acquire::failed;
use super::block_on;
use super::connect::Endpoints;
use super::show::{name, print_json};

/// Show, renew or close the session of a lock that `palisade acquire` has taken
///
/// The exit code is 76 if the session has ended: its locks are lost. Otherwise the exit codes are those of
/// `palisade lock`.
#[derive(Debug, Args)]
pub(super) struct Session {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a session: its owner, its time to live, and the keys that it holds or waits for
    Show(Named),
    /// Renew a session: it lives for its whole TTL from now
    Renew(Named),
    /// Close a session: its locks are released. One that has ended already is no error
    Close(Named),
}

#[derive(Debug, Args)]
struct Named {
    /// The session, from `palisade acquire`. Other users of the machine see it on the command line, and not in
    /// the environment
    #[arg(value_name = "UUID", env = "PALISADE_SESSION", hide_env_values = true)]
    session: SessionId,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl Session {
    pub(super) fn run(self) -> ExitCode {
        let (Action::Show(named) | Action::Renew(named) | Action::Close(named)) = &self.action;
        let (session, json) = (named.session, named.json);
        let done = block_on(async {
            let client = named.endpoints.connect().await?;
            match &self.action {
                Action::Show(_) => {
                    let view = client.show_session(session).await?;
                    if json {
                        print_json(&view);
                        return Ok(());
                    }
                    outln!("session {} of {}", view.session, name(&view.owner));
                    outln!("  ttl      {}ms", view.ttl_ms);
                    outln!("  expires  in {}ms, unless it is renewed", view.expires_in_ms);
                    outln!("  keys     {}", view.keys.join(", "));
                }
                Action::Renew(_) => {
                    let ttl = client.renew_session(session).await?;
                    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                    if json {
                        print_json(&SessionLease { session, ttl_ms });
                    }
                }
                Action::Close(_) => {
                    client.close_session(session).await?;
                    if json {
                        print_json(&serde_json::json!({ "closed": true }));
                    }
                }
            }
            Ok(())
        });
        done.map_or_else(|error| failed(&format!("session {}", session.number()), &error), |()| ExitCode::SUCCESS)
    }
}
