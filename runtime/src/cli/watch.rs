//! `palisade watch`: prints what happens to a key or to all keys of a prefix, as JSON.

use std::future::pending;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Args;
use palisade_client::Error;
use palisade_client::wire::{EventId, LockView, RecordSummary, Watch as WatchRequest, Watched};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::unix::pipe;

use super::connect::{self, Endpoints};
use super::show::print_json;
use super::signals::StopSignals;
use super::{block_on, is_output_whole};

/// Print what happens to a lock and a record, or to all of a prefix: JSON, one event a line
///
/// The first lines are the present state: an event `lock` for each lock that is held or waited for, an
/// event `record` for each record (without its content), and one `listed`, with the revision of that
/// state. Then each event follows as it happens, until Ctrl-C, or until the reader of standard output closes it.
/// When the connection breaks, the watch goes on at another node, and misses nothing. If events were
/// missed all the same, because a node no longer has them, a line `compacted` says so, and the present
/// state follows.
#[derive(Debug, Args)]
pub(super) struct Watch {
    /// Key of the lock and the record
    #[arg(value_name = "KEY", required_unless_present = "prefix", conflicts_with = "prefix")]
    key: Option<String>,
    /// Watch all keys that begin so; `--prefix ''` for all
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Begin after this event, and not with the present state: an `id` of an earlier watch
    #[arg(long, value_name = "ID")]
    after: Option<EventId>,
    /// End after so many events
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    endpoints: Endpoints,
}

/// A line about a lock of the present state.
#[derive(Serialize)]
struct Lock<'a> {
    event: &'static str,
    revision: u64,
    #[serde(flatten)]
    lock: &'a LockView,
}

/// A line about a record of the present state.
#[derive(Serialize)]
struct Record<'a> {
    event: &'static str,
    revision: u64,
    #[serde(flatten)]
    record: &'a RecordSummary,
}

/// A line at the end of the present state.
#[derive(Serialize)]
struct Listed {
    event: &'static str,
    id: EventId,
    revision: u64,
}

/// A line about events that are not there any more.
#[derive(Serialize)]
struct Compacted {
    event: &'static str,
    floor: u64,
    message: String,
}

impl Compacted {
    fn up_to(floor: u64) -> Compacted {
        let message = format!(
            "the node does not have all events up to revision {floor} any more, so some may be missing here; the present \
             state follows"
        );
        Compacted { event: "compacted", floor, message }
    }
}

impl Watch {
    pub(super) fn run(self) -> ExitCode {
        let result = block_on(async {
            let mut signals = match StopSignals::listen_or_report() {
                Ok(signals) => signals,
                Err(code) => return Ok(ExitCode::from(code)),
            };
            tokio::select! {
                followed = self.follow() => followed.map(|()| ExitCode::SUCCESS),
                () = output_closed() => Ok(ExitCode::SUCCESS),
                _ = signals.next() => Ok(ExitCode::SUCCESS),
            }
        });
        result.unwrap_or_else(|error: Error| connect::fail(&error))
    }

    async fn follow(&self) -> Result<(), Error> {
        let Watch { key, prefix, after, limit, .. } = self;
        let watch = WatchRequest { key: key.clone(), prefix: prefix.clone(), after: *after };
        let mut watcher = self.endpoints.connect().await?.watch(watch);
        let mut events = 0;
        while limit.is_none_or(|limit| events < limit) && is_output_whole() {
            match watcher.next().await? {
                Watched::Listing(listing) => {
                    let revision = listing.revision;
                    listing.locks.iter().for_each(|lock| print_json(&Lock { event: "lock", revision, lock }));
                    for record in &listing.records {
                        print_json(&Record { event: "record", revision, record });
                    }
                    if listing.complete {
                        print_json(&Listed { event: "listed", id: EventId::end_of(revision), revision });
                    }
                }
                Watched::Event(event) => {
                    print_json(&event);
                    events += 1;
                }
                Watched::Compacted { floor } => print_json(&Compacted::up_to(floor)),
            }
        }
        Ok(())
    }
}

/// Waits until the reader of standard output has closed it: the next event may be far away. A file is never
/// closed.
async fn output_closed() {
    let output = std::io::stdout().as_fd().try_clone_to_owned();
    // Nothing is written to this sender, so the output need not be a pipe, nor non-blocking.
    match output.and_then(pipe::Sender::from_owned_fd_unchecked) {
        Ok(output) => {
            let _ = output.ready(Interest::ERROR).await;
        }
        Err(_) => pending().await,
    }
}
