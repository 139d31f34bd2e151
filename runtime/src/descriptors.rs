//! File descriptors: how the limit of open files is divided, so that clients and strangers cannot take what the node needs.
//!
//! Every connection is a file descriptor, and so is every file of the log. A process that has none left cannot begin the
//! next segment of its log, and has to stop. So the limit is read once, at the start, and divided: a part for the node
//! itself, a part for its peers, a part for connections to the peer port that have not said yet who they are, and the rest
//! for clients. Whoever accepts connections counts them, and closes at once what goes beyond its part.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use crate::limits;
use crate::sync::Mutex;

/// What a node has open for itself: standard streams, event loop, signals and listeners (some 15); the log with its next
/// segment, a snapshot that is written and one that is received, directories that are synced (some 8); snapshots that
/// clients read ([`limits::SNAPSHOT_READS`]); a recording; and connections that were accepted to be closed at once.
const OWN: usize = 32;
/// What a peer takes at most: a connection and a snapshot each way, the snapshot's file, and a look-up of its name.
const PEER: usize = 6;
/// How many of those are connections that it has dialled; one more than the two that it needs, as a new one takes the place
/// of an old one.
const PEER_INBOUND: usize = 3;
/// For so many peers more than there are at the start.
const PEERS_TO_COME: usize = 1;
/// The fewest connections to the peer port that may be unidentified, and the fewest clients.
const FEWEST: usize = 4;
/// For how many peers there is room if the limit is generous.
const PEERS_AT_EASE: usize = 32;
/// What the refusal to start recommends.
const RECOMMENDED: usize = 1024;

/// How the descriptors are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// How many connections of clients may be open.
    pub clients: usize,
    /// How many connections to the peer port may be open that have not said yet who they are.
    pub strangers: usize,
    /// How many connections of peers may be open that they have dialled.
    pub peers: usize,
}

/// The limit of open files is too low to run a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may have {limit} files open, and a node with {peers} peers needs {needed} at least. Raise the limit of \
     open files: `ulimit -n {RECOMMENDED}` in a shell, LimitNOFILE={RECOMMENDED} in a systemd unit, or more"
)]
pub struct TooFew {
    limit: usize,
    needed: usize,
    peers: usize,
}

impl Descriptors {
    /// What a process gives out that need not be careful: one that nobody but tests talks to.
    pub const AT_EASE: Descriptors =
        Descriptors { clients: limits::CONNECTIONS, strangers: limits::STRANGERS, peers: PEER_INBOUND * PEERS_AT_EASE };

    /// Divides `limit` for a node with so many peers.
    ///
    /// # Errors
    /// If it is not enough to run.
    pub fn divide(limit: usize, peers: usize) -> Result<Descriptors, TooFew> {
        let fewest_peers = peers + PEERS_TO_COME;
        let needed = OWN + PEER * fewest_peers + 2 * FEWEST;
        if limit < needed {
            return Err(TooFew { limit, needed, peers });
        }
        // An eighth of the limit, if that is more, so that a cluster may grow without a restart.
        let peers = (limit / 8 / PEER).min(PEERS_AT_EASE).max(fewest_peers);
        let rest = limit - OWN - PEER * peers;
        let strangers = (rest / 4).clamp(FEWEST, limits::STRANGERS);
        let clients = (rest - strangers).min(limits::CONNECTIONS);
        Ok(Descriptors { clients, strangers, peers: PEER_INBOUND * peers })
    }
}

/// Raises the limit of open files as far as it may go, and says how far that is.
pub fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(%error, "cannot raise the limit of open files");
    }
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// A number of connections that may be open at once. What goes beyond it is refused, counted, and sometimes logged.
#[derive(Clone, Debug)]
pub struct Places {
    room: Arc<Semaphore>,
    limit: usize,
    of: &'static str,
    refused: Counter,
    reported: Arc<Mutex<Reported>>,
}

/// When the log last had a line about refusals, and how many there were by then.
#[derive(Debug, Default)]
struct Reported {
    at: Option<Instant>,
    count: u64,
}

/// The pause between two lines in the log about refused connections.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

impl Places {
    /// So many places for connections `of` somebody. Refusals are counted in `refused`.
    pub fn new(limit: usize, of: &'static str, refused: &Counter) -> Places {
        let room = Arc::new(Semaphore::new(limit));
        Places { room, limit, of, refused: refused.clone(), reported: Arc::default() }
    }

    /// A place, if there is one.
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.room).try_acquire_owned().ok();
        if permit.is_none() {
            self.refused.inc();
            self.report();
        }
        permit
    }

    fn report(&self) {
        let mut reported = self.reported.lock();
        if reported.at.is_none_or(|at| at.elapsed() >= REPORT_PAUSE) {
            let (limit, of, count) = (self.limit, self.of, self.refused.get());
            let refused = count.saturating_sub(reported.count);
            warn!(limit, refused, "connections of {of} are closed at once: as many as there is room for are open");
            *reported = Reported { at: Some(Instant::now()), count };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whatever the limit, what is given out is no more than there is, and nobody gets nothing.
    #[test]
    fn the_parts_fit_into_the_limit() {
        for peers in [0, 2, 4, 6, 40] {
            let needed = Descriptors::divide(0, peers).unwrap_err().needed;
            assert!(Descriptors::divide(needed - 1, peers).is_err());
            for limit in (needed..3_000).chain([10_000, 65_536, 1_000_000, usize::MAX]) {
                let parts = Descriptors::divide(limit, peers).unwrap();
                let for_peers = parts.peers / PEER_INBOUND * PEER;
                assert!(OWN + for_peers + parts.strangers + parts.clients <= limit, "{limit}: {parts:?}");
                assert!(parts.clients >= FEWEST && parts.strangers >= FEWEST, "{limit}: {parts:?}");
                assert!(parts.peers >= PEER_INBOUND * (peers + PEERS_TO_COME), "{limit}: {parts:?}");
                assert!(parts.clients <= limits::CONNECTIONS && parts.strangers <= limits::STRANGERS);
            }
        }
        let usual = Descriptors::divide(65_536, 2).unwrap();
        assert_eq!((usual.clients, usual.strangers), (limits::CONNECTIONS, limits::STRANGERS));
    }

    #[test]
    fn the_refusal_says_what_to_do() {
        let refusal = Descriptors::divide(40, 2).unwrap_err().to_string();
        assert!(refusal.contains("may have 40 files open, and a node with 2 peers needs 58"), "{refusal}");
        assert!(refusal.contains("ulimit -n 1024") && refusal.contains("LimitNOFILE="), "{refusal}");
    }
}
