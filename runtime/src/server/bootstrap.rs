//! A node's first start: it founds a cluster with others, or joins one. A later start only checks
//! that the command line agrees with the first one.
//!
//! Founding is explicit: `--peers` names all founders. The cluster ID is a hash of the cluster's
//! name, its founders and the snapshot it begins with, so founders with different command lines
//! refuse one another. A cluster cannot be founded twice by accident: peers refuse a known node ID
//! that comes with a new data directory ([`PinnedPeers`](crate::peers::PinnedPeers)); and a founder
//! with an empty log takes part only after all other founders have accepted its connections, so
//! that each of them has pinned its data directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{AddMember, Code, Failure, MemberChange};
use palisade_client::{Client, Error};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Members, NodeId, Position, Snapshot, Term};
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{ServeError, ServerConfig};
use crate::limits::RESTORE_GAP;
use crate::storage::{
    DEFAULT_CLUSTER_NAME, DataDir, Identity, Incarnation, LockedDir, Snapshots, StorageError, read_snapshot,
};
use crate::tls::Tls;

/// The pause between two attempts to join.
const JOIN_PAUSE: Duration = Duration::from_secs(1);
/// How long a node of the cluster may take to answer a status request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// The identity of this directory's node: the one of its first start as the command line describes
/// it, or a new one. Returns `None` if the node was asked to stop before it could join.
pub(super) async fn identify(
    config: &ServerConfig,
    tls: Option<&Tls>,
    directory: &LockedDir,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Identity>, ServeError> {
    if let Some(found) = directory.identity() {
        return expected(config, directory, found).map(Some);
    }
    if let Some(address) = &config.join {
        return join(config, tls, directory, address, stop).await;
    }
    founding(config).map(Some)
}

/// The identity of a node that founds a cluster.
fn founding(config: &ServerConfig) -> Result<Identity, ServeError> {
    if config.peers.is_empty() {
        return Err(ServeError::Config(format!(
            "{} is a new data directory: give --peers to found a cluster, or --join HOST:PORT to join one; if this node ran before, check --data",
            config.data.display()
        )));
    }
    if !config.peers.contains_key(&config.node) {
        return Err(ServeError::Config(format!(
            "--peers does not name this node: add {}=HOST:PORT, or correct --id",
            config.node
        )));
    }
    let restored = config.restore.as_deref().map(hash_of).transpose()?;
    let cluster_name = config.cluster.clone().unwrap_or_else(|| DEFAULT_CLUSTER_NAME.to_owned());
    let cluster = cluster_id(&cluster_name, &config.peers, restored.as_deref());
    info!(
        cluster = cluster_name,
        cluster_id = format!("{cluster:016x}"),
        founders = config.peers.len(),
        "founding a cluster: it begins when all founders have met"
    );
    let (node, incarnation, founders) = (config.node, Incarnation(rand::random()), config.peers.clone());
    Ok(Identity { cluster, cluster_name, node, incarnation, founders, restored })
}

/// The directory's identity, with the parts that the command line sets taken from there. The caller
/// refuses a difference.
fn expected(config: &ServerConfig, directory: &LockedDir, found: &Identity) -> Result<Identity, ServeError> {
    if let Some(given) = config.cluster.as_ref().filter(|&given| *given != found.cluster_name) {
        let (path, found, given) = (directory.identity_path(), found.cluster_name.clone(), given.clone());
        return Err(StorageError::WrongClusterName { path, found, given }.into());
    }
    // Only the directory knows the generation, that is how often the node was replaced under this
    // ID.
    let node = NodeId::new(config.node.number(), found.node.generation());
    let mut expected = Identity { node, ..found.clone() };
    // --peers may also name members that joined later, to give their addresses.
    if found.founders.keys().any(|founder| !config.peers.contains_key(founder)) && !config.peers.is_empty() {
        expected.founders = config.peers.clone();
    }
    Ok(expected)
}

/// Makes this node a learner of the cluster whose node answers administrative requests at `address`.
/// Retries without limit, unless the cluster refuses for good, or the node is asked to stop: then it
/// returns `None`.
async fn join(
    config: &ServerConfig,
    tls: Option<&Tls>,
    directory: &LockedDir,
    address: &str,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Identity>, ServeError> {
    let failed = |source| ServeError::Join { address: address.to_owned(), source: Box::new(source) };
    let peer_addr = config.named_peer_addr().ok_or_else(|| {
        ServeError::Config(format!(
            "other nodes cannot reach this node at {}, which means every address of their own machine: give \
             --advertise-peer-addr HOST:PORT, the address at which other nodes reach this node",
            config.peer_addr
        ))
    })?;
    // Drawn once, so that an attempt after a lost answer, or at a later start, repeats the same request.
    let incarnation = directory.begin_join(config.node, Incarnation(rand::random()))?;
    let member = AddMember { id: config.node.number(), peer_addr, incarnation: Some(incarnation.to_string()) };
    let change = MemberChange::Add(member);
    let mut has_failed = false;
    loop {
        let attempted = tokio::select! {
            biased;
            attempted = attempt(config, tls, address, change.clone()) => attempted,
            () = &mut stop, if has_failed => return Ok(None),
        };
        match attempted {
            Ok((cluster, cluster_name)) => {
                info!(
                    cluster = cluster_name,
                    cluster_id = format!("{cluster:016x}"),
                    "joined the cluster as a learner; to make this node a voter: palisade members promote {}",
                    config.node
                );
                let (node, founders) = (config.node, BTreeMap::new());
                return Ok(Some(Identity { cluster, cluster_name, node, incarnation, founders, restored: None }));
            }
            Err(
                error @ Error::Refused(Failure {
                    error: Code::NodeIdInUse | Code::Invalid | Code::WrongListener, ..
                }),
            ) => {
                return Err(failed(error));
            }
            Err(error @ Error::BadEndpoint { .. }) => return Err(failed(error)),
            Err(error) => {
                warn!(
                    address,
                    %error,
                    "cannot join the cluster yet; trying again every {JOIN_PAUSE:?}. Start the node of --join, or correct the address"
                );
                // Not before: a node whose standard input is closed, which stops it, says first why it cannot start.
                has_failed = true;
                tokio::select! {
                    () = &mut stop => return Ok(None),
                    () = sleep(JOIN_PAUSE) => {}
                }
            }
        }
    }
}

/// Adds the member, and returns the cluster's ID and name. If the command line names a cluster, the
/// node at `address` must belong to it.
async fn attempt(
    config: &ServerConfig,
    tls: Option<&Tls>,
    address: &str,
    change: MemberChange,
) -> Result<(u64, String), Error> {
    let options = config.options(tls);
    let status = options.security.status(address, STATUS_TIMEOUT).await?;
    let invalid = |message: String| Error::Refused(Failure::new(Code::Invalid, message));
    let name = status.cluster_name;
    if let Some(given) = config.cluster.as_ref().filter(|&given| *given != name) {
        return Err(invalid(format!(
            "the node belongs to cluster `{name}`, but --cluster names `{given}`: correct --join, or leave out --cluster"
        )));
    }
    let cluster = u64::from_str_radix(&status.cluster, 16)
        .map_err(|_| invalid(format!("the node sent an invalid cluster ID, `{}`", status.cluster)))?;
    let client = Client::connect(&[address], options).await?;
    client.change_members(change).await?;
    client.close().await;
    Ok((cluster, name))
}

/// Writes the state of a backup's snapshot into a founder's new directory, as the state after an
/// entry 1 that no leader ever proposed. A server that joins later without this state lacks entry 1,
/// which no leader can send: the leader sends it a snapshot instead.
pub(super) fn restore(file: Option<&Path>, directory: &DataDir, members: &Members) -> Result<(), ServeError> {
    // It is read when the log is opened.
    if Snapshots::exist(&**directory.disk(), directory.path())? {
        return Ok(());
    }
    let (snapshots, _) =
        Snapshots::open::<LockTable>(directory.disk(), directory.path(), directory.identity().cluster)?;
    restore_from(file, directory, members, &snapshots).map_err(|error| {
        if !directory.has_begun() {
            return error;
        }
        let what = "there is none, although this cluster began with one (--restore)".into();
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
        let message =
            "this node has not finished its first start, with --restore: start it again with the same --restore FILE";
        return Err(ServeError::Config(message.into()));
    };
    let refused = |reason: String| ServeError::Restore { path: file.to_owned(), reason };
    let opened = File::open(file).map_err(|error| refused(error.to_string()))?;
    let read = read_snapshot::<LockTable>(BufReader::new(opened), None);
    let (saved, info) = read.map_err(|flaw| refused(flaw.to_string()))?;
    if Some(info.hash.to_string()) != directory.identity().restored {
        let reason = "it is not the one with which this node was started first: give that file, as every founder must begin with \
                      the same snapshot";
        return Err(refused(reason.into()));
    }
    let mut machine = saved.machine;
    machine.skip_numbers(RESTORE_GAP);
    let last = Position { index: Index(1), term: Term(0) };
    let (sessions, locks, token) = (machine.sessions().len(), machine.locks().len(), machine.next_token());
    snapshots.write(&Snapshot { last, stamp: saved.stamp, members: Arc::new(members.clone()), machine })?;
    info!(
        index = saved.last.index.0,
        sessions,
        locks,
        next_token = token.0,
        "restored the state of a snapshot; the counters of tokens, versions and revisions were advanced"
    );
    Ok(())
}

fn hash_of(file: &Path) -> Result<String, ServeError> {
    let refused = |reason: String| ServeError::Restore { path: file.to_owned(), reason };
    let opened = File::open(file).map_err(|error| refused(error.to_string()))?;
    let read = read_snapshot::<LockTable>(BufReader::new(opened), None);
    read.map(|(_, info)| info.hash.to_string()).map_err(|flaw| refused(flaw.to_string()))
}

/// The cluster ID: the first 64 bits of the SHA-256 of the settings that all founders must share, as
/// JSON. They share what they make of a restored state, too: a founder of version 0.1.0 skips fewer numbers, and must
/// not be a founder beside this one.
fn cluster_id(name: &str, founders: &BTreeMap<NodeId, String>, restored: Option<&str>) -> u64 {
    let restored = restored.map(|hash| (hash, "skips tokens, versions and revisions"));
    let settings = serde_json::to_vec(&(name, founders, restored)).expect("text and numbers have a JSON form");
    let digest: [u8; 32] = Sha256::digest(settings).into();
    u64::from_be_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a later start of a restored cluster's founder leaves its snapshot to the log, which reads it: a large one
    /// takes long.
    #[test]
    fn snapshot_of_an_earlier_start_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity { restored: Some("5f".into()), ..Identity::of(7, NodeId(1)) };
        let data = DataDir::open(directory.path(), &identity).unwrap();
        let restored = || restore(None, &data, &Members::default());
        assert!(restored().unwrap_err().to_string().contains("has not finished its first start"));
        std::fs::write(directory.path().join("snapshot-00000000000000000001-0.snap"), "no snapshot").unwrap();
        restored().unwrap();
    }

    /// Goal: no part of a setting can pass for another setting, so that two clusters with different
    /// settings have different IDs.
    #[test]
    fn cluster_id_depends_on_every_setting() {
        let founders = |addresses: &[&str]| -> BTreeMap<NodeId, String> {
            (1..).map(|id| NodeId::new(id, 0)).zip(addresses.iter().map(ToString::to_string)).collect()
        };
        let none = founders(&[]);
        let ids = [
            cluster_id("a", &none, None),
            cluster_id("a", &none, Some("")),
            cluster_id("a", &none, Some("5f")),
            cluster_id("a5f", &none, None),
            cluster_id("a", &founders(&["h:1"]), None),
            cluster_id("a", &founders(&["h:15f"]), None),
            cluster_id("a", &founders(&["h:1"]), Some("5f")),
            cluster_id("a", &founders(&["h:1", "h:2"]), None),
            cluster_id("a", &founders(&["h:1\n2=h:2"]), None),
            cluster_id("a\n1=h:1", &none, None),
        ];
        for (number, id) in ids.iter().enumerate() {
            assert!(!ids[..number].contains(id), "settings {number} have the ID of other settings");
        }
    }

    /// Goal: all founders compute the same ID, also if their programs have different versions.
    #[test]
    fn cluster_id_is_pinned() {
        let founders = BTreeMap::from([(NodeId::new(1, 0), "10.0.0.1:7500".to_owned())]);
        assert_eq!(format!("{:016x}", cluster_id("billing", &founders, None)), "cdf8b33da0daaec3");
    }
}
