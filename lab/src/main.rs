//! `palisade-lab`: the lab's command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_lab::{contend, experiments, generate, open_files, resource, servers, worker};

/// Show on real systems where locks without fencing break, and what they cost
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Resource(resource::Command),
    Worker(Box<worker::Command>),
    Contend(Box<contend::Command>),
    Gen(generate::Command),
    #[command(hide = true)]
    StopParent(worker::StopParent),
    #[command(hide = true)]
    StoreWorker(Box<experiments::fenced_stores::StoreWorker>),
    #[command(hide = true)]
    StepClient(Box<experiments::steps::StepClient>),
    Up(servers::Up),
    Down(servers::Down),
    Run(experiments::Run),
}

fn main() -> ExitCode {
    open_files::raise();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("palisade-lab: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(run());
    // Nothing waits for threads that still measure servers which have ended.
    runtime.shutdown_background();
    code
}

async fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Resource(command) => command.run().await,
        Command::Worker(command) => command.run().await,
        Command::Contend(command) => command.run().await,
        Command::Gen(command) => command.run().await,
        Command::StopParent(command) => command.run().await,
        Command::StoreWorker(command) => command.run().await,
        Command::StepClient(command) => command.run().await,
        Command::Up(command) => command.run().await,
        Command::Down(command) => command.run().await,
        Command::Run(command) => command.run().await,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("palisade-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
