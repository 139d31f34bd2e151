//! `palisade lock`: run a command under a lock; `palisade hold` and `palisade elect`, which are forms of it.
//!
//! The command runs only while the lock is certainly held. The lock can be trusted until a margin
//! before the lease ends ([`palisade_client::margin`]), measured on a clock that advances while the
//! machine sleeps. If the lease cannot be renewed, the command gets SIGTERM, and SIGKILL before that
//! time is over ([`stop`]): no other session can be granted the lock while the command still runs.

mod stop;

use std::ffi::OsString;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use palisade_client::{Error, Guard};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::child::{self, EXIT_INTERRUPTED, Interrupted, LockedCommand, Stopped};
use super::claim::enclosing::{self, Enclosing};
use super::claim::{Claim, FINAL_REQUEST_TIMEOUT, Granted, Holder, LockKeys, Reach, Wait, close, parse_wait};
use super::proclaim::{self, Proclamations};
use super::signals::StopSignals;
use super::watchdog::{HeldLock, Watchdog};
use super::{EXIT_LOST, block_on, print_error};

/// Exit code: the command line cannot be used, as clap's.
const EXIT_USAGE: u8 = 2;

/// Run a command under a lock, or under several
///
/// Without a command, the lock is held until Ctrl-C or SIGTERM, which release it (exit code 0), as by `palisade hold`.
/// The command's environment has PALISADE_KEY, PALISADE_TOKEN (the fencing token),
/// PALISADE_SIGNED_TOKEN (the token with the cluster's signature, if the cluster signs) and
/// PALISADE_SESSIONS (the session that holds the lock, after those of enclosing `palisade lock`s).
/// With several keys, PALISADE_KEY has each in a line, and PALISADE_SIGNED_TOKEN the token of each.
/// In the command, `palisade proclaim` replaces the lock's value.
/// The exit code is that of the command, or 64: the command already runs under this lock; 65: the
/// cluster refused the request; 69: no leader could be reached; 75: the lock was not granted in
/// time; 76: the lock was lost, and the command got SIGTERM, then SIGKILL, before the TTL ran out;
/// 77: no node accepts this client's certificate or token, or the client accepts no node's.
#[derive(Debug, Args)]
pub(super) struct Lock {
    #[command(flatten)]
    claim: Claim,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    run: Run,
}

/// Hold a lock, or several, until Ctrl-C or SIGTERM
///
/// Each word is a key: there is no command. A path (`./backup.sh`) or an executable file after the first key is
/// refused, because a command was meant; behind `--key` it is a key.
/// The signal releases the lock (exit code 0). `palisade hold KEY` is `palisade lock KEY` without a command: options and
/// exit codes are those of `palisade lock`. A line on standard error says when the lock is held, and its token.
#[derive(Debug, Args)]
pub(super) struct Hold {
    #[command(flatten)]
    claim: Claim,
    #[command(flatten)]
    reach: Reach,
}

/// Run a command as long as this process leads: an election
///
/// The candidates of one NAME come first, first served: one leads, and the others wait. The leader's
/// command runs until it ends, which resigns, or until the leadership is lost. `palisade show NAME`
/// prints the leader's value, for instance the address at which it serves, and the command replaces it
/// by `palisade proclaim VALUE`. An election is the lock of
/// that name: environment, exit codes and signals are those of `palisade lock`, and PALISADE_TOKEN is
/// greater for every later leader.
#[derive(Debug, Args)]
pub(super) struct Elect {
    /// Name of the election: the key of its lock
    name: String,
    /// The leader's value, for other clients; at most 4,096 bytes
    #[arg(long, value_name = "VALUE")]
    value: Option<String>,
    /// How long to wait for the leadership: a time, `0s` to try once, or `forever`
    #[arg(long, value_name = "TIME", default_value = "forever", value_parser = parse_wait)]
    wait: Wait,
    #[command(flatten)]
    holder: Holder,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    run: Run,
}

/// The command to run under the lock, if there is one.
#[derive(Debug, Default, Args)]
struct Run {
    /// Run `sh -c COMMAND`
    #[arg(short = 'c', long, value_name = "COMMAND", conflicts_with = "command")]
    shell: Option<String>,
    /// The command and its arguments; without a command, the lock is held until Ctrl-C or SIGTERM
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// The words of the command.
    fn command_line(&self) -> Option<Vec<OsString>> {
        match &self.shell {
            Some(command) => Some(vec!["sh".into(), "-c".into(), command.into()]),
            None => Some(self.command.clone()).filter(|command_line| !command_line.is_empty()),
        }
    }
}

/// How often the watchdog gets the end of the lease, and how often the command's state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How the command ended.
enum End {
    /// By itself, or by a signal that was forwarded; with this exit code.
    Ended(u8),
    /// It died of a SIGINT, of Ctrl-C or forwarded, of which these are to die, too.
    Interrupted(Interrupted),
    /// The lock was lost, and the command was stopped for it.
    Lost,
}

impl Hold {
    pub(super) fn run(self) -> ExitCode {
        if has_separator() {
            print_error(
                "`palisade hold` runs no command: write palisade lock KEY -- COMMAND; a key that begins with `-` follows \
                 `--key=`",
            );
            return ExitCode::from(EXIT_USAGE);
        }
        let keys = &self.claim.keys;
        let words = keys.positional();
        // The first word is a key, unless there is one behind `--key`.
        let first = usize::from(keys.named().is_empty());
        if let Some(first) = (first..words.len()).find(|&word| is_program(&words[word])) {
            let (keys, command_line) = ([&words[..first], keys.named()].concat(), &words[first..]);
            let (keys, word) = (keys.join(" --key "), &words[first]);
            print_error(format!(
                "`palisade hold` runs no command, and {word} names a program: write palisade lock {keys} -- {}; if it is a key, \
                 write --key={word}",
                command_line.join(" ")
            ));
            return ExitCode::from(EXIT_USAGE);
        }
        let Hold { claim, reach } = self;
        ExitCode::from(block_on(Lock { claim, reach, run: Run::default() }.hold()))
    }
}

impl Elect {
    pub(super) fn run(self) -> ExitCode {
        let Elect { name, value, wait, holder, reach, run } = self;
        let (shared, permits, max_queue, no_wait) = (false, None, None, false);
        let claim = Claim { keys: LockKeys::of(name), shared, permits, max_queue, value, wait, no_wait, holder };
        Lock { claim, reach, run }.run()
    }
}

impl Lock {
    pub(super) fn run(self) -> ExitCode {
        if self.run.command_line().is_none()
            && let Some(refusal) = refuse_to_hold(&self.claim.keys)
        {
            print_error(refusal);
            return ExitCode::from(EXIT_USAGE);
        }
        ExitCode::from(block_on(self.hold()))
    }

    async fn hold(self) -> u8 {
        let mut signals = match StopSignals::listen_or_report() {
            Ok(signals) => signals,
            Err(code) => return code,
        };
        let Granted { client, guard, enclosing } = match self.claim.acquire(&self.reach, &mut signals).await {
            Ok(granted) => granted,
            Err(code) => return code,
        };
        let end = match self.run.command_line() {
            Some(command_line) => self.run_under(&command_line, guard, &enclosing, &mut signals).await,
            None => End::Ended(self.keep(guard, &mut signals).await),
        };
        // Closing the session releases every claim that is left. The watchdog gives a lost lock back: its command is dead,
        // and its caller has to learn of the loss at once.
        if !matches!(end, End::Lost) {
            close(&client).await;
        }
        match end {
            End::Ended(code) => code,
            End::Interrupted(whom) => whom.die(),
            End::Lost => EXIT_LOST,
        }
    }

    /// Holds the lock until a signal comes, or the lock is lost.
    async fn keep(&self, guard: Guard, signals: &mut StopSignals) -> u8 {
        let (name, token) = (self.claim.name(), guard.token());
        print_error(format!("{name}: holding the lock with token {token} until Ctrl-C or SIGTERM"));
        tokio::select! {
            biased;
            () = guard.lost() => {
                print_error(format!("{name}: the lock with token {token} is lost: another client may hold it"));
                EXIT_LOST
            }
            _ = signals.next() => self.release(guard, 0).await,
        }
    }

    async fn run_under(
        &self,
        command_line: &[OsString],
        guard: Guard,
        enclosing: &Enclosing,
        signals: &mut StopSignals,
    ) -> End {
        let proclamations = Proclamations::listen();
        if let Err(error) = &proclamations {
            print_error(format!("cannot listen for the command's `palisade proclaim`, which will fail: {error}"));
        }
        let proclamations = proclamations.ok();
        let environment = [
            ("PALISADE_KEY", Some(guard.keys().join("\n"))),
            ("PALISADE_TOKEN", Some(guard.token().to_string())),
            // A variable without a value is removed: an enclosing `palisade lock` may have set it.
            ("PALISADE_SIGNED_TOKEN", guard.signed_token().map(|_| guard.signed_tokens().join("\n"))),
            (enclosing::VARIABLE, Some(enclosing.with(guard.session().number()))),
            (proclaim::VARIABLE, proclamations.as_ref().map(|proclamations| proclamations.variable())),
        ];
        // Start the watchdog first, so that it watches the command from the beginning.
        let watchdog = self.start_watchdog(&guard).await;
        let end = match LockedCommand::start(command_line, &environment) {
            Ok(child) => self.watch(child, watchdog, &guard, signals, proclamations).await,
            Err(error) => {
                print_error(format!("cannot run {}: {error}", command_line[0].display()));
                End::Ended(126)
            }
        };
        match end {
            End::Ended(code) => End::Ended(self.release(guard, code).await),
            End::Interrupted(whom) => {
                self.release(guard, EXIT_INTERRUPTED).await;
                End::Interrupted(whom)
            }
            End::Lost => End::Lost,
        }
    }

    async fn start_watchdog(&self, guard: &Guard) -> Option<Watchdog> {
        let endpoints = self.reach.endpoints.parse().unwrap_or_default();
        let security = self.reach.endpoints.security();
        let lock = HeldLock { endpoints, security, key: self.claim.name(), session: guard.session() };
        match Watchdog::start(self.claim.holder.ttl, &lock).await {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                print_error(format!(
                    "cannot start the watchdog: {error}; the command runs without one: if palisade lock is killed or stopped, \
                     processes of the command can outlive the lock"
                ));
                None
            }
        }
    }

    /// Gives the lock back, and returns the exit code: this one, or that of a loss in place of success.
    async fn release(&self, guard: Guard, code: u8) -> u8 {
        let token = guard.token();
        match timeout(FINAL_REQUEST_TIMEOUT, guard.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(Error::Lost)) => {
                print_error(format!(
                    "{}: the lock with token {token} was lost before it was released: another client may have held it \
                     meanwhile",
                    self.claim.name()
                ));
                return if code == 0 { EXIT_LOST } else { code };
            }
            Ok(Err(error)) => print_error(format!("{}: cannot release the lock: {error}", self.claim.name())),
            Err(_) => print_error(format!(
                "{}: no node confirmed the release within {FINAL_REQUEST_TIMEOUT:?}; if it did not arrive, the lock expires \
                 within its TTL of {:?}",
                self.claim.name(),
                self.claim.holder.ttl
            )),
        }
        code
    }

    /// Waits for the command's end, and stops the command before the lease ends.
    async fn watch(
        &self,
        mut child: LockedCommand,
        mut watchdog: Option<Watchdog>,
        guard: &Guard,
        signals: &mut StopSignals,
        proclamations: Option<Proclamations>,
    ) -> End {
        let mut proclaim = Box::pin(async {
            match proclamations {
                Some(proclamations) => proclamations.serve(guard).await,
                None => pending().await,
            }
        });
        let mut children = signal(SignalKind::child()).ok();
        // A handler that does nothing keeps SIGTSTP from suspending this process, which would lose
        // the lock.
        let _suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw())).ok();
        let (mut wants_terminal, mut was_suspended, mut was_interrupted) = (false, false, false);
        let status = loop {
            if wants_terminal {
                // A shell sends no signal when it brings a running job to the foreground: try
                // again.
                wants_terminal = !child.give_terminal();
            }
            if let (Some(watchdog), Some(group), Some(until)) = (&mut watchdog, child.group(), guard.trusted_until()) {
                watchdog.allow(group, until).await;
            }
            tokio::select! {
                status = child.wait() => break Some(status),
                signal = signals.next() => {
                    was_interrupted |= signal == Signal::INT;
                    child.signal(signal);
                }
                Some(()) = next(&mut children) => {}
                never = &mut proclaim => match never {},
                () = stop::time_to_stop(guard, self.claim.holder.ttl) => break None,
                // Pass each renewal on to the watchdog in time, also after the machine was
                // suspended, and notice a stop of the command for which no SIGCHLD arrived.
                () = sleep(POLL_INTERVAL.min(self.claim.holder.ttl / 8)) => {
                    // A stop signal reaches the processes of a group one after the other: some may
                    // have stopped since.
                    if std::mem::take(&mut was_suspended) {
                        child.signal(Signal::CONT);
                    }
                }
            }
            match child.resume_if_suspended() {
                Some(Stopped::Suspended) => {
                    was_suspended = true;
                    print_error(
                        "a command under a lock cannot be suspended, because its lease would run out: resumed it",
                    );
                }
                Some(Stopped::WantsTerminal) => {
                    wants_terminal = true;
                    print_error(
                        "the command is stopped because it uses the terminal: bring this job to the foreground (fg)",
                    );
                }
                None => {}
            }
        };
        // The command's handler of SIGTERM would wait for an answer.
        drop(proclaim);
        let end = match status {
            // SIGKILL after the end of the lease: the watchdog killed the command while this
            // process was stopped.
            Some(Ok(status)) if status.signal() == Some(Signal::KILL.as_raw()) && !guard.is_valid() => End::Lost,
            // A SIGINT that this process has got, the others of its process group may have got, too.
            Some(Ok(status)) if status.signal() == Some(Signal::INT.as_raw()) && was_interrupted => {
                End::Interrupted(Interrupted::Process)
            }
            // The terminal has sent SIGINT to the command's process group only: not to this one, in which the shell of a
            // script is, too.
            Some(Ok(status)) if status.signal() == Some(Signal::INT.as_raw()) && child.had_terminal() => {
                End::Interrupted(Interrupted::ProcessGroup)
            }
            Some(status) => End::Ended(ended(status)),
            None => {
                stop::stop(&mut child, guard).await;
                End::Lost
            }
        };
        match (watchdog, &end) {
            (Some(watchdog), End::Ended(_) | End::Interrupted(_)) => watchdog.dismiss().await,
            (Some(watchdog), End::Lost) => watchdog.hand_over().await,
            (None, _) => {}
        }
        end
    }
}

/// The next signal; never, if the handler could not be installed.
async fn next(signals: &mut Option<Signals>) -> Option<()> {
    match signals {
        Some(signals) => signals.recv().await,
        None => pending().await,
    }
}

fn ended(status: std::io::Result<std::process::ExitStatus>) -> u8 {
    match status {
        Ok(status) => child::exit_code(status),
        Err(error) => {
            print_error(format!("cannot read the command's exit status: {error}"));
            71
        }
    }
}

/// Whether the command line has the `--` that comes before a command.
fn has_separator() -> bool {
    std::env::args_os().any(|word| word == "--")
}

/// Whether a word names a program by its path, as a shell would run it, or is an executable file.
fn is_program(word: &str) -> bool {
    let is_executable =
        || std::fs::metadata(word).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    word.starts_with("./") || word.starts_with("../") || is_executable()
}

/// Why a lock is not held without a command, if the command line is probably one whose command was
/// forgotten.
fn refuse_to_hold(keys: &LockKeys) -> Option<String> {
    if has_separator() {
        return Some("there is no command after `--`: leave out `--` to hold the lock until Ctrl-C".into());
    }
    let count = keys.all().len();
    (count > 1 && !keys.positional().is_empty()).then(|| {
        format!(
            "without a command, `palisade lock` holds one lock, not {count}: write `--` before the command and its \
             arguments: palisade lock KEY -- COMMAND; `palisade hold` holds several locks"
        )
    })
}

/// Adds a hint to the error of a command line whose command does not come after `--`, or whose `--key` was meant as the
/// key of `--cert`.
pub(super) fn with_hint(mut error: clap::Error) -> clap::Error {
    let means_cert_key = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(lacking)) => lacking.iter().any(|option| option.starts_with("--cert-key")),
        Some(ContextValue::String(unknown)) => unknown == "--key" && error.kind() == ErrorKind::UnknownArgument,
        _ => false,
    };
    let arguments = || std::env::args_os().skip(1).take_while(|word| word != "--");
    if means_cert_key && arguments().any(|word| word == "--key" || word.as_encoded_bytes().starts_with(b"--key=")) {
        let hint = "`--key` is the key of a lock: name the file with the key of --cert by `--cert-key`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
        return error;
    }
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next().filter(|word| word == "lock" || word == "hold" || word == "elect");
    let is_about_the_command = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    if let Some(command) = command
        && is_about_the_command
        && !arguments.any(|word| word == "--")
    {
        let command = command.to_string_lossy();
        let hint = match &*command {
            "hold" => "`palisade hold` runs no command: palisade lock KEY -- COMMAND".to_owned(),
            _ => {
                let key = if command == "elect" { "NAME" } else { "KEY" };
                format!("write `--` before the command and its arguments: palisade {command} {key} -- COMMAND")
            }
        };
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}
