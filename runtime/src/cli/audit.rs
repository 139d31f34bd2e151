//! `palisade audit`: checks audit logs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use palisade::audit::verify::{self, Hash, Report};

use super::print_error;

/// Check the audit log of a node
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(Verify),
}

/// Verify that no record was changed, removed or moved. The exit code is 1 if one was
///
/// The log alone cannot show that its end was cut off, or that the whole of it was written anew: note
/// the last hash elsewhere, and give it with --expect at the next time.
#[derive(Debug, Args)]
struct Verify {
    /// The directory of the log, or its files in order
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// A hash that was the last one earlier: it must still be in the log
    #[arg(long, value_name = "HASH", value_parser = verify::parse_hash)]
    expect: Option<Hash>,
}

impl Audit {
    pub(super) fn run(self) -> ExitCode {
        let Command::Verify(Verify { paths, expect }) = self.command;
        match verify::verify(&paths, expect) {
            Ok(report) => {
                print(&report);
                ExitCode::SUCCESS
            }
            Err(flaw) => {
                print_error(flaw);
                ExitCode::FAILURE
            }
        }
    }
}

fn print(report: &Report) {
    let Report { files, records, first, times: (from, to), hash, unfinished, dropped } = report;
    outln!("{records} records in {files} files, from {from} to {to}: the chain is whole");
    outln!("last hash: {hash}");
    if *first > 1 {
        outln!("the first record has number {first}: earlier files were not verified");
    }
    if *dropped > 0 {
        outln!("{dropped} records were dropped while the disk could not take them (event `dropped`)");
    }
    if *unfinished > 0 {
        outln!("an unfinished record of {unfinished} bytes is at the end: the node is writing it, or was killed then");
    }
}
