//! The command line. Every command returns an exit code and reports each failure on standard error.

/// Prints a line to standard output like `println!`, but does not panic: see [`print_line`]. Control
/// characters are escaped: the line may have keys, owners, and what a node answered.
macro_rules! outln {
    ($($text:tt)*) => { $crate::cli::print(format_args!($($text)*)) };
}

mod acl;
mod acquire;
mod audit;
mod bench;
mod cert;
mod child;
mod claim;
mod config;
mod connect;
mod dev;
mod fence;
mod health;
mod keep_recording;
mod kv;
mod lock;
mod log_fields;
mod manual;
mod members;
mod nodes;
mod proclaim;
mod serve;
mod session;
mod show;
mod signals;
mod snapshot;
mod table;
mod terminal;
mod top;
mod unlock;
mod watch;
mod watchdog;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use nix::sys::signal::{SigSet, Signal};
use palisade_client::escaped;
use parking_lot::Mutex;

/// A distributed lock service whose protocol is model-checked before it is run.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster of real processes on this machine, to try things out
    Dev(dev::Dev),
    Serve(Box<serve::Serve>),
    Config(config::Config),
    Lock(lock::Lock),
    Hold(lock::Hold),
    Elect(lock::Elect),
    Proclaim(proclaim::Proclaim),
    Acquire(acquire::Acquire),
    Release(acquire::Release),
    Session(session::Session),
    Status(show::Status),
    Locks(show::Locks),
    Show(show::Show),
    Top(top::Top),
    Watch(watch::Watch),
    Unlock(unlock::Unlock),
    Members(members::Members),
    Transfer(members::Transfer),
    Snapshot(snapshot::Snapshot),
    Acl(acl::Acl),
    Audit(audit::Audit),
    Kv(kv::Kv),
    Fence(fence::Fence),
    Cert(cert::Cert),
    Bench(bench::Bench),
    Completions(manual::Completions),
    Man(manual::Man),
    #[command(hide = true)]
    KeepRecording(keep_recording::KeepRecording),
    #[command(hide = true)]
    RemoveAfterUse(dev::RemoveAfterUse),
    #[command(hide = true)]
    RunWithParent(child::RunWithParent),
    /// End this process, or its process group, by SIGINT
    #[command(hide = true)]
    DieOfInterrupt {
        whom: child::Interrupted,
    },
    #[command(hide = true)]
    Watchdog(watchdog::WatchdogProcess),
}

/// Exit code: the lock is lost.
const EXIT_LOST: u8 = 76;
/// Exit code: standard output or a file cannot be written (EX_IOERR).
const EXIT_CANNOT_WRITE: u8 = 74;

/// Why the first write to standard output failed that did.
static OUTPUT_FAILURE: OnceLock<ErrorKind> = OnceLock::new();

/// Parses the command line and runs the command. A command that has succeeded, but could not print all that
/// it found, has failed. A closed pipe is no failure: the reader, such as `head`, has all it needs.
pub(crate) fn main() -> ExitCode {
    let code = run();
    finish_errors();
    match OUTPUT_FAILURE.get() {
        Some(kind) if *kind != ErrorKind::BrokenPipe && code == ExitCode::SUCCESS => ExitCode::from(EXIT_CANNOT_WRITE),
        _ => code,
    }
}

fn run() -> ExitCode {
    let layered = match config::Layered::of(std::env::args_os().collect(), |name| std::env::var_os(name)) {
        Ok(layered) => layered,
        Err(refusals) => return config::refuse(&refusals),
    };
    let arguments = match Arguments::try_parse_from(&layered.arguments) {
        Ok(arguments) => arguments,
        Err(error) => return layered.refuse(&lock::with_hint(error)),
    };
    match arguments.command {
        Command::Dev(dev) => dev.run(),
        Command::Serve(serve) if serve.prints_config() => config::print(&layered),
        Command::Serve(serve) => serve.run(),
        Command::Config(config) => config.run(),
        Command::Lock(lock) => lock.run(),
        Command::Hold(hold) => hold.run(),
        Command::Elect(elect) => elect.run(),
        Command::Proclaim(proclaim) => proclaim.run(),
        Command::Acquire(acquire) => acquire.run(),
        Command::Release(release) => release.run(),
        Command::Session(session) => session.run(),
        Command::Status(status) => status.run(),
        Command::Locks(locks) => locks.run(),
        Command::Show(show) => show.run(),
        Command::Top(top) => top.run(),
        Command::Watch(watch) => watch.run(),
        Command::Unlock(unlock) => unlock.run(),
        Command::Members(members) => members.run(),
        Command::Transfer(transfer) => transfer.run(),
        Command::Snapshot(snapshot) => snapshot.run(),
        Command::Acl(acl) => acl.run(),
        Command::Audit(audit) => audit.run(),
        Command::Kv(kv) => kv.run(),
        Command::Fence(fence) => fence.run(),
        Command::Cert(cert) => cert.run(),
        Command::Bench(bench) => bench.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::KeepRecording(keep) => keep.run(),
        Command::RemoveAfterUse(remove) => remove.run(),
        Command::RunWithParent(command) => command.run(),
        Command::DieOfInterrupt { whom } => child::die_of_interrupt(whom),
        Command::Watchdog(watchdog) => watchdog.run(),
    }
}

/// Prints an error on standard error and waits for the write for at most [`PRINT_ERROR_TIMEOUT`]. A
/// reader that does not drain standard error must not block this process, which may have to stop a
/// command before its lease ends. Control characters are escaped, because the error may have keys,
/// owners, and what a node answered.
fn print_error(error: impl std::fmt::Display) {
    if let Some(written) = write_error(format!("palisade: {}\n", escaped(&error.to_string())))
        && written.recv_timeout(PRINT_ERROR_TIMEOUT) == Err(RecvTimeoutError::Timeout)
    {
        UNWRITTEN.lock().push(written);
    }
}

/// Waits for the errors that were not written when [`print_error`] stopped waiting: they say why the process ends. A
/// reader that drains nothing keeps the process for at most [`LAST_ERRORS_TIMEOUT`].
fn finish_errors() {
    let until = Instant::now() + LAST_ERRORS_TIMEOUT;
    for written in UNWRITTEN.lock().drain(..) {
        let _ = written.recv_deadline(until);
    }
}

/// Errors that [`print_error`] has not waited for any longer.
static UNWRITTEN: Mutex<Vec<Receiver<()>>> = Mutex::new(Vec::new());

/// Writes to standard error on a thread of its own. The channel reports when the write has
/// completed.
fn write_error(text: String) -> Option<Receiver<()>> {
    let (done, written) = crossbeam_channel::bounded(1);
    let write = move || {
        // The kernel stops a background process (SIGTTOU) that writes to a terminal with `stty tostop`, unless
        // the thread that writes blocks that signal. A stopped process could not stop its command in time.
        let _ = SigSet::from(Signal::SIGTTOU).thread_block();
        let _ = std::io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    };
    std::thread::Builder::new().spawn(write).is_ok().then_some(written)
}

/// How long [`print_error`] waits for its write to standard error.
const PRINT_ERROR_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the end of the process waits for all errors: a busy machine may start their threads late.
const LAST_ERRORS_TIMEOUT: Duration = Duration::from_secs(2);

/// Implements `outln!`.
fn print(line: std::fmt::Arguments<'_>) {
    print_line(&escaped(&line.to_string()));
}

/// Prints a line as it is. [`is_output_whole`] says whether that failed; a failure other than a closed pipe is
/// reported, the first time.
fn print_line(line: &str) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        output_failed(&error);
    }
}

/// A write to standard output has failed.
fn output_failed(error: &std::io::Error) {
    if OUTPUT_FAILURE.set(error.kind()).is_ok() && error.kind() != ErrorKind::BrokenPipe {
        print_error(format!("cannot write to standard output: {error}"));
    }
}

/// Whether everything that was printed to standard output so far was written.
fn is_output_whole() -> bool {
    OUTPUT_FAILURE.get().is_none()
}

/// Runs a future on a single-threaded tokio runtime: commands mostly wait for servers and child
/// processes.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the system can create one event loop");
    let output = runtime.block_on(future);
    // A name that is still being looked up must not keep the process alive.
    runtime.shutdown_background();
    output
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use clap::CommandFactory;

    use super::*;

    /// Goal: a command ends when its future does, although a blocking call goes on, such as the look-up of a name whose
    /// server does not answer.
    #[test]
    fn a_blocking_call_keeps_no_command_alive() {
        let blocked = Duration::from_secs(20);
        let (end, ended) = mpsc::channel::<()>();
        let began = Instant::now();
        block_on(async {
            let (started, has_started) = tokio::sync::oneshot::channel();
            let call = tokio::task::spawn_blocking(move || {
                let _ = started.send(());
                let _ = ended.recv_timeout(blocked);
            });
            has_started.await.unwrap();
            drop(call);
        });
        assert!(began.elapsed() < blocked / 2, "it waited for {:?}", began.elapsed());
        drop(end);
    }

    /// Goal: the help has what users and operators need; commands and options that only tests, other
    /// commands or `palisade-conformance` use are hidden.
    #[test]
    fn help_leaves_out_what_only_tests_use() {
        let mut program = Arguments::command();
        let commands = program.render_long_help().to_string();
        let options = program.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        assert!(commands.contains("serve") && options.contains("--snapshot-interval"));
        for hidden in ["--record", "keep-recording", "step-node", "run-with-parent", "watchdog", "for tests", "stdin"] {
            let shown = [&commands, &options].into_iter().find(|help| help.contains(hidden));
            assert_eq!(shown, None, "`{hidden}` is shown");
        }
    }
}
