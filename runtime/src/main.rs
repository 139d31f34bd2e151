//! The `palisade` command: the server, a local cluster for trials, and the client.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
