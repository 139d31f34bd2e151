//! The command line. Every command ends in an exit code, and every failure in a sentence on standard error.

mod dev;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Run one node
    Serve(serve::Serve),
}

/// Parses the command line and runs the command.
pub(crate) fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Dev(dev) => dev.run(),
        Command::Serve(serve) => serve.run(),
    }
}

/// Says what went wrong.
fn complain(error: impl std::fmt::Display) {
    eprintln!("palisade: {error}");
}

/// A tokio runtime for a command that only waits for others.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the system has room for one event loop").block_on(future)
}
