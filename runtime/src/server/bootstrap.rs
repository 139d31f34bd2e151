//! A node's first start: it founds a cluster with others, or joins one. Later starts only make sure that they mean the
//! same.
//!
//! Founding is explicit: all founders are told of one another (`--peers`). The cluster's identity is made of its name, its
//! founders and what it begins with, so founders that were told different things refuse one another. It cannot happen
//! twice by accident: peers refuse a known node number that comes with a new data directory
//! ([`acquaintances`](crate::peers)); and a founder without a past takes part only when all other founders have let it in, so
//! that every one of them has met it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{AddMember, Code, Failure, MemberChange};
use palisade_client::{Client, Error, Options};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Members, NodeId, Position, Snapshot, Term};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{ServeError, ServerConfig};
use crate::storage::{DataDir, Identity, Incarnation, LockedDir, Snapshots, StorageError, read_snapshot};

/// By how much the token counter of a restored cluster jumps ahead, so that no fencing token that was given out after the
/// snapshot is given out again: at ten thousand grants a second, more than three years of them.
pub(super) const TOKEN_GAP: u64 = 1_000_000_000_000;
/// The pause before a cluster that cannot be joined at the moment is asked again.
const JOIN_PAUSE: Duration = Duration::from_secs(1);
/// How long a node of it may take to answer for itself.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// The identity of this directory's node: that of its first start, if the command line agrees; or a new one.
pub(super) async fn identify(config: &ServerConfig, directory: &LockedDir) -> Result<Identity, ServeError> {
    if let Some(found) = directory.identity() {
        return Ok(expected(config, found));
    }
    if let Some(address) = &config.join {
        return join(config, address).await;
    }
    if config.peers.is_empty() {
        return Err(ServeError::Config(format!(
            "{} is a new data directory: give --peers to found a cluster, or --join HOST:PORT to join one",
            config.data.display()
        )));
    }
    if !config.peers.contains_key(&config.node) {
        return Err(ServeError::Config(format!("--peers does not name this node, {}", config.node)));
    }
    let restored = config.restore.as_deref().map(hash_of).transpose()?;
    let cluster = cluster_id(&config.cluster, &config.peers, restored.as_deref());
    info!(cluster = format!("{cluster:016x}"), founders = config.peers.len(), "founding a cluster");
    let founders = config.peers.clone();
    Ok(Identity { cluster, node: config.node, incarnation: Incarnation(rand::random()), founders, restored })
}

/// The identity that the command line gives this directory, as far as it says anything.
fn expected(config: &ServerConfig, found: &Identity) -> Identity {
    // How often it has come back without its directory, only the directory knows.
    let node = NodeId::new(config.node.number(), found.node.generation());
    let mut expected = Identity { node, ..found.clone() };
    if !found.founders.is_empty() {
        // Members that came later may be named too, to say where they are.
        if found.founders.keys().any(|founder| !config.peers.contains_key(founder)) && !config.peers.is_empty() {
            expected.founders = config.peers.clone();
        }
        expected.cluster = cluster_id(&config.cluster, &found.founders, found.restored.as_deref());
    }
    expected
}

/// Becomes a learner of the cluster of a node that serves clients at `address`. Waits for as long as it takes, unless it is
/// refused.
async fn join(config: &ServerConfig, address: &str) -> Result<Identity, ServeError> {
    let failed = |source| ServeError::Join { address: address.to_owned(), source: Box::new(source) };
    let peer_addr = config.advertised_peer_addr.as_ref().unwrap_or(&config.peer_addr).clone();
    // Drawn once: if an answer is lost, the next attempt asks for the same.
    let incarnation = Incarnation(rand::random());
    let member = AddMember { id: config.node.number(), peer_addr, incarnation: Some(incarnation.to_string()) };
    let change = MemberChange::Add(member);
    loop {
        match attempt(address, change.clone()).await {
            Ok(cluster) => {
                info!(
                    cluster = format!("{cluster:016x}"),
                    "joined; palisade members promote {} makes it a voter", config.node
                );
                let (node, founders) = (config.node, BTreeMap::new());
                return Ok(Identity { cluster, node, incarnation, founders, restored: None });
            }
            Err(error @ Error::Refused(Failure { error: Code::NodeIdInUse | Code::Invalid, .. })) => {
                return Err(failed(error));
            }
            Err(error @ Error::BadEndpoint { .. }) => return Err(failed(error)),
            Err(error) => {
                warn!(address, %error, "cannot join yet; trying again");
                sleep(JOIN_PAUSE).await;
            }
        }
    }
}

/// Asks to be added, and for the cluster's identity.
async fn attempt(address: &str, change: MemberChange) -> Result<u64, Error> {
    let client = Client::connect(&[address], Options::default()).await?;
    client.change_members(change).await?;
    client.close().await;
    let status = palisade_client::status(address, STATUS_TIMEOUT).await?;
    let cluster = u64::from_str_radix(&status.cluster, 16);
    cluster.map_err(|_| Error::Refused(Failure::new(Code::Invalid, format!("`{}` is no cluster", status.cluster))))
}

/// Puts the state of a snapshot into a founder's new directory. It counts as the state after a first entry that no leader
/// ever made: a server that joins later without it cannot be sent entries, and so is sent the state.
pub(super) fn restore(file: Option<&Path>, directory: &DataDir, members: &Members) -> Result<(), ServeError> {
    let (snapshots, newest) =
        Snapshots::open::<LockTable>(directory.disk(), directory.path(), directory.identity().cluster)?;
    if newest.is_some() {
        return Ok(());
    }
    restore_from(file, directory, members, &snapshots).map_err(|error| {
        if !directory.has_begun() {
            return error;
        }
        let what = "there is none, not even the one with which the cluster began".into();
        StorageError::SnapshotUnfit { path: directory.path().to_owned(), what }.into()
    })
}

fn restore_from(
    file: Option<&Path>,
    directory: &DataDir,
    members: &Members,
    snapshots: &Snapshots,
) -> Result<(), ServeError> {
    let Some(file) = file else {
        let message = "this node has not finished its first start, with --restore: start it with that again";
        return Err(ServeError::Config(message.into()));
    };
    let refused = |reason: String| ServeError::Restore { path: file.to_owned(), reason };
    let opened = File::open(file).map_err(|error| refused(error.to_string()))?;
    let read = read_snapshot::<LockTable>(BufReader::new(opened), None);
    let (saved, info) = read.map_err(|flaw| refused(flaw.to_string()))?;
    if Some(info.hash.to_string()) != directory.identity().restored {
        let reason = "it is not the one with which this node was started first, and its founders have to begin alike";
        return Err(refused(reason.into()));
    }
    let mut machine = saved.machine;
    machine.skip_tokens(TOKEN_GAP);
    let last = Position { index: Index(1), term: Term(0) };
    let (sessions, locks, token) = (machine.sessions().len(), machine.locks().len(), machine.next_token());
    snapshots.write(&Snapshot { last, stamp: saved.stamp, members: Arc::new(members.clone()), machine })?;
    info!(index = %saved.last.index, sessions, locks, next_token = %token, "restored from a snapshot");
    Ok(())
}

fn hash_of(file: &Path) -> Result<String, ServeError> {
    let refused = |reason: String| ServeError::Restore { path: file.to_owned(), reason };
    let opened = File::open(file).map_err(|error| refused(error.to_string()))?;
    let read = read_snapshot::<LockTable>(BufReader::new(opened), None);
    read.map(|(_, info)| info.hash.to_string()).map_err(|flaw| refused(flaw.to_string()))
}

/// The cluster's number: FNV-1a, 64 bits, of all that its founders must have been told alike.
fn cluster_id(name: &str, founders: &BTreeMap<NodeId, String>, restored: Option<&str>) -> u64 {
    let mut text = name.to_owned();
    for (id, address) in founders {
        text += &format!("\n{id}={address}");
    }
    text += restored.unwrap_or_default();
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}
