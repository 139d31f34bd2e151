//! File descriptors: divides the limit of open files, so that clients and unidentified connections
//! cannot exhaust the descriptors that the node needs.
//!
//! Every connection takes a file descriptor, and so does every file of the log. A process without
//! free descriptors cannot create the next segment of its log, and must stop. So the limit is read
//! once at the start and divided: a part for the node itself, a part for its peers, a part for
//! connections to the peer port that have not completed the handshake, a quarter of the rest for the connections between
//! nodes over which requests of clients are forwarded, and what is left for clients.
//! Each accepting task counts its connections, and closes those above its part at once. Connections
//! that have not completed the handshake are counted by their addresses, too, so that one address
//! leaves room to the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tracing::warn;

use crate::accounts::AccountName;
use crate::addresses::ClientAddress;
use crate::limits;
use crate::log_pause::LogPause;
use crate::per_address::{Entry, PerAddress, part};
use crate::sync::Mutex;

/// Descriptors of the node itself: standard streams, two event loops, signals and listeners (some 18);
/// the log with its next segment, a snapshot being written and one being received, directories
/// being synced (some 8); snapshots that clients read ([`limits::SNAPSHOT_READS`]); a recording;
/// what `/metrics` reads from `/proc`; and accepted connections that are about to be closed.
const OWN: usize = 36;
/// Maximum number of descriptors per peer: a connection and a snapshot each way, the snapshot's
/// file, and a name resolution.
const PEER: usize = 6;
/// How many of those are connections that the peer dialled: one more than the two that it needs,
/// since a new connection replaces an old one.
const PEER_INBOUND: usize = 3;
/// Descriptors are reserved for this many peers more than there are at the start.
const SPARE_PEERS: usize = 1;
/// Minimum number of unidentified connections to the peer port, of client connections, and of connections over which
/// requests are forwarded.
const FEWEST: usize = 4;
/// Number of peers for which a high limit reserves descriptors; for more if there are more already.
const MAX_PEERS: usize = 32;
/// The limit that the startup error recommends.
const RECOMMENDED: usize = 1024;

/// The division of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Maximum number of open client connections.
    pub clients: usize,
    /// Maximum number of connections over which requests are forwarded, by this node or to it.
    pub forwarding: usize,
    /// Maximum number of open connections to the peer port that have not completed the handshake.
    pub unidentified: usize,
    /// Maximum number of open connections that peers dialled.
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
    /// The division without a limit of open files: for tests.
    pub const AT_EASE: Descriptors = Descriptors {
        clients: limits::CONNECTIONS,
        forwarding: limits::CONNECTIONS,
        unidentified: limits::UNIDENTIFIED_CONNECTIONS,
        peers: PEER_INBOUND * MAX_PEERS,
    };

    /// Divides `limit` for a node with this many peers.
    ///
    /// # Errors
    /// If `limit` is too low to run the node.
    pub fn divide(limit: usize, peers: usize) -> Result<Descriptors, TooFew> {
        let fewest_peers = peers + SPARE_PEERS;
        let needed = OWN + PEER * fewest_peers + 3 * FEWEST;
        if limit < needed {
            return Err(TooFew { limit, needed, peers });
        }
        // An eighth of the limit, if that is more, so that a cluster may grow without a restart.
        let peers = (limit / 8 / PEER).min(MAX_PEERS).max(fewest_peers);
        let rest = limit - OWN - PEER * peers;
        let unidentified = (rest / 4).clamp(FEWEST, limits::UNIDENTIFIED_CONNECTIONS);
        let rest = rest - unidentified;
        let forwarding = (rest / 4).max(FEWEST);
        let clients = (rest - forwarding).min(limits::CONNECTIONS);
        Ok(Descriptors {
            clients,
            forwarding: forwarding.min(limits::CONNECTIONS),
            unidentified,
            peers: PEER_INBOUND * peers,
        })
    }
}

/// Raises the limit of open files to its hard maximum, and returns the limit.
pub fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(
            %error, limit = current, hard_limit = maximum,
            "cannot raise the limit of open files to its hard limit: this node accepts as many connections as the present \
             limit allows. Raise it before the start: `ulimit -n {RECOMMENDED}` in a shell, LimitNOFILE={RECOMMENDED} in a \
             systemd unit, or more"
        );
    }
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// A limit on the number of open connections. Connections above it are refused and counted; the log
/// mentions refusals at most once per `REPORT_PAUSE`.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    room: Arc<Semaphore>,
    by_address: PerAddress<Semaphore>,
    clients: Arc<Mutex<Clients>>,
    limit: usize,
    of: &'static str,
    /// What an operator can do.
    remedy: &'static str,
    refused: Counter,
    log_pause: Arc<LogPause>,
}

/// The permit of a connection, as one of those from its address.
#[derive(Debug)]
pub struct PermitAt {
    _permit: OwnedSemaphorePermit,
    of_address: Entry<Semaphore>,
}

impl Drop for PermitAt {
    fn drop(&mut self) {
        self.of_address.add_permits(1);
    }
}

/// The connections that are used for clients, if they are counted.
#[derive(Debug, Default)]
struct Clients {
    /// By client; none has 0.
    of: HashMap<AccountName, usize>,
    all: usize,
}

/// A connection that is used for a client, until this is dropped.
#[derive(Debug)]
pub struct UsedBy {
    clients: Arc<Mutex<Clients>>,
    client: AccountName,
}

impl Drop for UsedBy {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        clients.all -= 1;
        if let Some(used) = clients.of.get_mut(&self.client) {
            *used -= 1;
            if *used == 0 {
                clients.of.remove(&self.client);
            }
        }
    }
}

/// Minimum time between two log lines about refused connections.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

impl ConnectionLimit {
    /// Permits for `limit` connections of the kind that `of` names in the log. Refusals are counted
    /// in `refused`.
    pub fn new(limit: usize, of: &'static str, refused: &Counter) -> ConnectionLimit {
        let room = Arc::new(Semaphore::new(limit));
        ConnectionLimit {
            room,
            by_address: PerAddress::default(),
            clients: Arc::default(),
            limit,
            of,
            remedy: "Raise the limit of open files (ulimit -n, LimitNOFILE) if these connections are meant",
            refused: refused.clone(),
            log_pause: Arc::default(),
        }
    }

    /// A limit of half as many connections, of those that `of` names, within this one.
    pub fn half(&self, of: &'static str, remedy: &'static str) -> ConnectionLimit {
        ConnectionLimit { remedy, ..ConnectionLimit::new((self.limit / 2).max(1), of, &self.refused) }
    }

    /// A permit, if one is free and connections from this address have not taken their part.
    pub fn take_at(&self, address: ClientAddress) -> Option<PermitAt> {
        let of_address = self.by_address.enter(address, || Semaphore::new(part(self.limit, address)));
        if of_address.try_acquire().map(SemaphorePermit::forget).is_err() {
            self.refused.inc();
            self.report(Some(address));
            return None;
        }
        let permit = self.take();
        if permit.is_none() {
            of_address.add_permits(1);
        }
        permit.map(|permit| PermitAt { _permit: permit, of_address })
    }

    /// Counts a connection that is used for this client, unless it has its part of them: the share that it has of the
    /// connections of clients, or more while less than half of all are used.
    pub fn used_by(&self, client: AccountName) -> Option<UsedBy> {
        let part = limits::part(self.limit, limits::CONNECTION_SHARE, client.is_loopback());
        let mut clients = self.clients.lock();
        let used = clients.of.get(&client).copied().unwrap_or(0);
        if used >= part && clients.all >= self.limit / 2 {
            return None;
        }
        clients.all += 1;
        clients.of.insert(client.clone(), used + 1);
        drop(clients);
        Some(UsedBy { clients: Arc::clone(&self.clients), client })
    }

    /// A permit, if one is free.
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.room).try_acquire_owned().ok();
        if permit.is_none() {
            self.refused.inc();
            self.report(None);
        }
        permit
    }

    /// Logs that a connection is closed at once: this address has its part, or all are in use.
    fn report(&self, address: Option<ClientAddress>) {
        let (limit, of, remedy) = (self.limit, self.of, self.remedy);
        if let Some(repeats) = self.log_pause.due(of, REPORT_PAUSE, Instant::now()) {
            let refused = repeats + 1;
            match address {
                Some(address) => warn!(
                    limit, refused, %address,
                    "connections of {of} are closed at once: this address has its part of the limit. {remedy}"
                ),
                None => {
                    warn!(limit, refused, "connections of {of} are closed at once: so many are open already. {remedy}")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: for every limit, the parts do not exceed the limit, and each part has its minimum.
    #[test]
    fn parts_fit_into_limit() {
        for peers in [0, 2, 4, 6, 40] {
            let needed = Descriptors::divide(0, peers).unwrap_err().needed;
            assert!(Descriptors::divide(needed - 1, peers).is_err());
            for limit in (needed..3_000).chain([10_000, 65_536, 1_000_000, usize::MAX]) {
                let parts = Descriptors::divide(limit, peers).unwrap();
                let for_peers = parts.peers / PEER_INBOUND * PEER;
                let for_all = OWN + for_peers + parts.unidentified + parts.clients + parts.forwarding;
                assert!(for_all <= limit, "{limit}: {parts:?}");
                assert!(parts.clients.min(parts.unidentified).min(parts.forwarding) >= FEWEST, "{limit}: {parts:?}");
                assert!(parts.peers >= PEER_INBOUND * (peers + SPARE_PEERS), "{limit}: {parts:?}");
                assert!(parts.clients <= limits::CONNECTIONS && parts.unidentified <= limits::UNIDENTIFIED_CONNECTIONS);
            }
        }
        let usual = Descriptors::divide(65_536, 2).unwrap();
        assert_eq!((usual.clients, usual.unidentified), (limits::CONNECTIONS, limits::UNIDENTIFIED_CONNECTIONS));
    }

    /// Goal: a crowd at one address leaves permits to others, and what ends is free again.
    #[test]
    fn one_address_takes_a_part_of_the_permits() {
        let limit = ConnectionLimit::new(16, "strangers", &Counter::default());
        let [busy, other] = ["10.0.0.1", "10.0.0.2"].map(|it| ClientAddress::of(it.parse().unwrap()));
        let taken: Vec<PermitAt> = (0..100).filter_map(|_| limit.take_at(busy)).collect();
        assert_eq!((taken.len(), limit.refused.get()), (2, 98));
        assert!(limit.take_at(other).is_some());
        drop(taken);
        assert!(limit.take_at(busy).is_some());
        let all: Vec<_> = (0..16).map(|_| limit.take().unwrap()).collect();
        assert!(limit.take_at(other).is_none());
        drop(all);
        assert!(limit.take_at(other).is_some(), "a refusal takes nothing from the address's part");
    }

    /// Goal: a client that uses all that it may leaves connections to others, and may use more than its share only
    /// while there are enough.
    #[test]
    fn one_client_uses_a_part_of_the_connections() {
        let limit = ConnectionLimit::new(80, "forwarded requests", &Counter::default());
        let [busy, other] = ["busy", "other"].map(|name| AccountName::Principal(name.into()));
        let local = AccountName::Address(ClientAddress::of("127.0.0.1".parse().unwrap()));
        let use_all = |client: &AccountName| (0..100).map_while(|_| limit.used_by(client.clone())).collect::<Vec<_>>();
        let mut of_busy = use_all(&busy);
        assert_eq!(of_busy.len(), 40, "half of all");
        let of_other = use_all(&other);
        assert_eq!(of_other.len(), 10, "an eighth, while half of them are used");
        of_busy.truncate(20);
        assert_eq!(use_all(&busy).len(), 10, "those of others count");
        assert_eq!(use_all(&local).len(), 40, "half of all for a loopback address");
        drop((of_busy, of_other));
        let clients = limit.clients.lock();
        assert!(clients.of.is_empty() && clients.all == 0);
    }

    #[test]
    fn error_names_limit_and_remedy() {
        let refusal = Descriptors::divide(40, 2).unwrap_err().to_string();
        assert!(refusal.contains("may have 40 files open, and a node with 2 peers needs 66"), "{refusal}");
        assert!(refusal.contains("ulimit -n 1024") && refusal.contains("LimitNOFILE="), "{refusal}");
    }
}
