//! `palisade kv`: read and change records of the key-value store.

use std::io::{Read, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use palisade_client::wire::{
    Condition, Consistency, Content, ListRecords, RecordChange, RecordSummary, RecordView, Transaction,
};
use palisade_client::{Client, Error};

use super::connect::{self, Endpoints};
use super::show::print_json;
use super::table::{Side, Table};
use super::{block_on, output_failed, print_error};

/// Read and change records of the key-value store
///
/// A change with --token is made only if the lock is held with this token at that very moment: so a
/// command under `palisade lock` writes with --token "$PALISADE_TOKEN" --lock KEY, and never after its
/// lock has passed on. The exit code is 65 if the change is refused, and 69 if no leader could
/// be reached, or the answer was lost: then the message says that the outcome is unknown.
#[derive(Debug, Args)]
pub(super) struct Kv {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Debug, Subcommand)]
enum KvCommand {
    /// Print the content of a record; the exit code is 66 if there is none
    Get {
        /// Key of the record
        key: String,
        /// Print JSON: the content, the version and the token under which it was written
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        endpoints: Endpoints,
    },
    /// List the records, without their contents
    List {
        /// List only keys that begin with this prefix
        #[arg(long, value_name = "PREFIX", default_value = "")]
        prefix: String,
        /// Print JSON: one record a line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        endpoints: Endpoints,
    },
    /// Write a record
    Put(Written),
    /// Add to a record
    Append(Written),
    /// Delete a record
    Delete {
        #[command(flatten)]
        conditions: Conditions,
        #[command(flatten)]
        endpoints: Endpoints,
    },
}

#[derive(Debug, Args)]
struct Written {
    #[command(flatten)]
    conditions: Conditions,
    /// The content; without it, it is read from standard input
    content: Option<String>,
    #[command(flatten)]
    endpoints: Endpoints,
}

#[derive(Debug, Args)]
struct Conditions {
    /// Key of the record
    key: String,
    /// Only if the lock is held with this fencing token
    #[arg(long, value_name = "N")]
    token: Option<u64>,
    /// The lock of --token; by default the one of the record's key
    #[arg(long, value_name = "KEY", requires = "token")]
    lock: Option<String>,
    /// Only if the record has this version; 0: only if it does not exist
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
}

/// Exit code: there is no such record (EX_NOINPUT).
const EXIT_NO_RECORD: u8 = 66;

impl Kv {
    pub(super) fn run(self) -> ExitCode {
        match self.command {
            KvCommand::Get { key, json, endpoints } => get(&key, json, &endpoints),
            KvCommand::List { prefix, json, endpoints } => finish(&prefix, block_on(list(&prefix, json, &endpoints))),
            KvCommand::Put(write) => write.run(|key, value| RecordChange::Put { key, value }),
            KvCommand::Append(write) => write.run(|key, value| RecordChange::Append { key, value }),
            KvCommand::Delete { conditions, endpoints } => {
                let change = RecordChange::Delete { key: conditions.key.clone() };
                transact(&conditions, change, &endpoints)
            }
        }
    }
}

impl Written {
    fn run(self, change: impl FnOnce(String, Content) -> RecordChange) -> ExitCode {
        let Written { conditions, content, endpoints } = self;
        let content = match content {
            Some(content) => content.into_bytes(),
            None => {
                let mut bytes = Vec::new();
                if let Err(error) = std::io::stdin().lock().read_to_end(&mut bytes) {
                    print_error(format!("cannot read the content from standard input: {error}"));
                    return ExitCode::from(EXIT_NO_RECORD);
                }
                bytes
            }
        };
        let change = change(conditions.key.clone(), Content(content));
        transact(&conditions, change, &endpoints)
    }
}

fn transact(conditions: &Conditions, change: RecordChange, endpoints: &Endpoints) -> ExitCode {
    let Conditions { key, token, lock, if_version } = conditions;
    let held = token.map(|token| Condition::Held { lock: lock.clone().unwrap_or_else(|| key.clone()), token });
    let version = if_version.map(|version| Condition::Version { key: key.clone(), version });
    let conditions = held.into_iter().chain(version).collect();
    let transaction = Transaction { session: None, conditions, changes: vec![change] };
    let result = block_on(async { endpoints.connect().await?.transact(transaction).await });
    finish(key, result.map(|version| outln!("{key}: version {version}")))
}

fn get(key: &str, json: bool, endpoints: &Endpoints) -> ExitCode {
    let read = block_on(async { endpoints.connect().await?.record(key, Consistency::Linearizable).await });
    match read {
        Ok(Some(record)) if json => print_json(&record),
        Ok(Some(RecordView { value, .. })) => {
            let mut stdout = std::io::stdout().lock();
            if let Err(error) = stdout.write_all(&value.0).and_then(|()| stdout.flush()) {
                output_failed(&error);
            }
        }
        Ok(None) => {
            print_error(format!("there is no record {key}"));
            return ExitCode::from(EXIT_NO_RECORD);
        }
        Err(error) => return finish(key, Err(error)),
    }
    ExitCode::SUCCESS
}

async fn list(prefix: &str, json: bool, endpoints: &Endpoints) -> Result<(), Error> {
    let client: Client = endpoints.connect().await?;
    let mut after = None;
    let mut table =
        Table::new(&[("KEY", Side::Left), ("BYTES", Side::Right), ("VERSION", Side::Right), ("TOKEN", Side::Right)]);
    loop {
        let query = ListRecords { prefix: prefix.to_owned(), limit: Some(1_000), after, ..ListRecords::default() };
        let page = client.list_records(query).await?;
        for record in &page.records {
            if json {
                print_json(record);
            } else {
                let RecordSummary { key, version, fence, bytes } = record;
                let fence = fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
                table.row([key.into(), bytes.into(), version.into(), fence.into()]);
            }
        }
        if !json && !page.records.is_empty() {
            table.print();
        }
        after = page.next_after;
        if after.is_none() {
            return Ok(());
        }
    }
}

fn finish(key: &str, result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format!("{key}: {error}"));
            ExitCode::from(connect::exit_code(&error))
        }
    }
}
