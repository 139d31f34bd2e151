//! The `palisade` command: a server, a local cluster to try, and a client.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
