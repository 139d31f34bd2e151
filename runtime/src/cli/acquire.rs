//! `palisade acquire` and `release`: locks for scripts that manage the lease themselves.
//!
//! The lock belongs to a session that no process keeps alive: it expires with its TTL, unless the
//! script renews it (`palisade session renew`). A script that can run its work as one command is
//! better off with `palisade lock`, which renews the lease and stops the command in time.

use std::process::ExitCode;

use clap::Args;
use palisade_client::wire::{Acquired, Code, Failure, Keys, SessionId};
use palisade_client::{Error, Guard};
use serde::Serialize;
use tokio::time::timeout;

use super::claim::{Claim, FINAL_REQUEST_TIMEOUT, Granted, LockKeys, Reach, close};
use super::connect::{self, Endpoints};
use super::show::print_json;
use super::signals::StopSignals;
use super::{EXIT_CANNOT_WRITE, EXIT_LOST, block_on, is_output_whole, print_error};

/// Acquire a lock, or several, and leave it to the script: print its token and its session
///
/// Prints TOKEN SESSION in one line. The lock is held until `palisade release`, `palisade session close`, or
/// the end of its TTL, unless `palisade session renew` renews it. The session is a secret: a program that
/// has it can release the lock. The exit codes are those of `palisade lock`.
#[derive(Debug, Args)]
pub(super) struct Acquire {
    #[command(flatten)]
    claim: Claim,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print assignments for a shell: PALISADE_KEY, PALISADE_TOKEN, PALISADE_SESSION and, if the cluster signs,
    /// PALISADE_SIGNED_TOKEN. Use it as: grant=$(palisade acquire KEY --export) && eval "$grant"
    #[arg(long, conflicts_with = "json")]
    export: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Release a lock that `palisade acquire` has taken
///
/// Of several locks of one grant, name all keys.
/// The exit code is 76 if the session does not hold the lock with this token (any more): another client may
/// have held it meanwhile. Otherwise the exit codes are those of `palisade lock`.
#[derive(Debug, Args)]
pub(super) struct Release {
    #[command(flatten)]
    keys: LockKeys,
    /// The session that holds it, from `palisade acquire`. Other users of the machine see it on the command
    /// line, and not in the environment
    #[arg(long, value_name = "UUID", env = "PALISADE_SESSION", hide_env_values = true)]
    session: SessionId,
    /// The token of the grant
    #[arg(long, value_name = "N", env = "PALISADE_TOKEN")]
    token: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl Acquire {
    pub(super) fn run(self) -> ExitCode {
        ExitCode::from(block_on(self.acquire()))
    }

    async fn acquire(&self) -> u8 {
        let mut signals = match StopSignals::listen_or_report() {
            Ok(signals) => signals,
            Err(code) => return code,
        };
        match self.claim.acquire(&self.reach, &mut signals).await {
            Ok(Granted { client, guard, .. }) => {
                self.print(&guard);
                if is_output_whole() {
                    // The client is not closed: that would wait for the session's end.
                    guard.into_session();
                    return 0;
                }
                print_error("the token could not be written to standard output: releasing the lock");
                if !matches!(timeout(FINAL_REQUEST_TIMEOUT, guard.release()).await, Ok(Ok(_))) {
                    print_error("the lock could not be released: it ends with its time-to-live");
                }
                close(&client).await;
                EXIT_CANNOT_WRITE
            }
            Err(code) => code,
        }
    }

    fn print(&self, guard: &Guard) {
        let (keys, token, signed) = (guard.keys().to_vec(), guard.token(), guard.signed_tokens().to_vec());
        let ttl_ms = u64::try_from(self.claim.holder.ttl.as_millis()).unwrap_or(u64::MAX);
        let session = guard.session();
        if self.json {
            print_json(&Acquired { keys: Keys::from(keys.as_slice()), token, session, ttl_ms, signed });
        } else if self.export {
            assignments(&keys, token, session, &signed).iter().for_each(|line| super::print_line(line));
        } else {
            outln!("{token} {session}");
        }
    }
}

/// A line for each variable, which a shell evaluates to exactly this value. A variable without a value is removed: it would
/// be that of an earlier grant.
fn assignments(keys: &[String], token: u64, session: SessionId, signed: &[String]) -> Vec<String> {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let variables = [
        ("PALISADE_KEY", Some(quoted(&keys.join("\n")))),
        ("PALISADE_TOKEN", Some(token.to_string())),
        ("PALISADE_SESSION", Some(session.to_string())),
        ("PALISADE_SIGNED_TOKEN", (!signed.is_empty()).then(|| quoted(&signed.join("\n")))),
    ];
    let line = |(name, value): (&str, Option<String>)| match value {
        Some(value) => format!("export {name}={value}"),
        None => format!("unset {name}"),
    };
    variables.into_iter().map(line).collect()
}

/// The answer to a release, as the HTTP interface has it.
#[derive(Serialize)]
struct Released {
    released: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<u32>,
}

impl Release {
    pub(super) fn run(self) -> ExitCode {
        let Release { keys, session, token, json, endpoints } = self;
        let keys = keys.all();
        let name = keys.join(", ");
        let released =
            block_on(async { endpoints.connect().await?.release(Keys::from(keys.as_slice()), session, token).await });
        match released {
            Ok(holds) if json => print_json(&Released { released: holds == 0, holds: (holds > 0).then_some(holds) }),
            Ok(0) => {}
            Ok(holds) => outln!("{name}: the session still has the lock: {holds} holds are left"),
            Err(error) => return failed(&name, &error),
        }
        ExitCode::SUCCESS
    }
}

/// Reports an error about a session or its lock: one that has ended was lost.
pub(super) fn failed(name: &str, error: &Error) -> ExitCode {
    print_error(format!("{name}: {error}"));
    ExitCode::from(match error {
        Error::Refused(Failure { error: Code::NotHolder | Code::NoSession, .. }) => EXIT_LOST,
        error => connect::exit_code(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a shell that evaluates the assignments has the same values, also of keys with quotes, line ends
    /// and substitutions.
    #[test]
    fn shell_evaluates_assignments_to_the_same_values() {
        let keys = ["it's $(false) `x`".to_owned(), "\"b\\".to_owned()];
        let session = SessionId::new(7, [1; 10]).unwrap();
        let script = assignments(&keys, 12, session, &["s".to_owned()]).join("\n");
        let script = format!("{script}\nprintf '%s|' \"$PALISADE_KEY\" \"$PALISADE_TOKEN\" \"$PALISADE_SESSION\"");
        let output = std::process::Command::new("sh").args(["-ec", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}|12|{session}|", keys.join("\n")));
    }

    /// Goal: a grant without a signed token leaves no signed token of an earlier grant.
    #[test]
    fn shell_keeps_no_signed_token_of_an_earlier_grant() {
        let session = SessionId::new(7, [1; 10]).unwrap();
        let [signed, unsigned] =
            [&["s".to_owned()][..], &[]].map(|signed| assignments(&["k".to_owned()], 12, session, signed).join("\n"));
        let script = format!(
            "{unsigned}\n{signed}\nprintf '%s|' \"$PALISADE_SIGNED_TOKEN\"\n{unsigned}\nprintf '%s|' \
             \"${{PALISADE_SIGNED_TOKEN-unset}}\""
        );
        let output = std::process::Command::new("sh").args(["-ec", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "s|unset|");
    }
}
