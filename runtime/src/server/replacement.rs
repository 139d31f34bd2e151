//! Replacement of a node that has lost its log. The node asks its cluster to replace it by a new
//! member with the same node ID and the next generation, sets its old files aside, and starts with
//! an empty directory.
//!
//! Replacement cannot break safety. To the protocol the new member is a server that was never there
//! before, and the old one a removed server (`Change::Replace`). After the replacement no server
//! has the old identity (`storage::set_aside`).
//!
//! The change needs a leader, that is a majority of all voters; the lost node counts as a voter
//! until then. Without a leader the node repeats its request, and logs the answer of each node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use palisade_client::wire::{Code, Failure, MemberChange, ReplaceMember};
use palisade_client::{Client, Error, Options};
use palisade_spec::raft::NodeId;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::listeners::Listeners;
use super::{ServeError, ServerConfig};
use crate::peers::{self, PinnedPeers, Roster};
use crate::storage::{Identity, Incarnation, LockedDir, Start, StorageError};
use crate::tls::Tls;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the node logs that it still waits.
const LOGGED_EVERY: Duration = Duration::from_secs(10);
/// How long every answer must have been a refusal before the node gives up. A deposed leader may
/// refuse a change because it lacks newer entries; it steps down within an election timeout.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// How long one attempt may look for a leader.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes the cluster replace the node of a damaged directory by a new member. On success the
/// directory is empty and belongs to the new member.
///
/// # Errors
/// The damage itself, if no address of another node is known. Also if the cluster refuses for good,
/// or if the directory cannot be changed.
pub(super) async fn replace(
    config: &ServerConfig,
    tls: Option<&Arc<Tls>>,
    damage: StorageError,
) -> Result<(), ServeError> {
    let mut directory = LockedDir::open(&config.data)?;
    let Some(identity) = directory.identity().cloned() else { return Err(damage.into()) };
    let others = others(config, &identity)?;
    if others.is_empty() && config.join.is_none() {
        return Err(damage.into());
    }
    let incarnation = directory.begin_return(Incarnation(rand::random()))?;
    warn!(
        node = %identity.node, %damage,
        "the log is lost; asking the cluster to replace this node by a new member with an empty log"
    );
    let roster = Roster {
        cluster: identity.cluster,
        cluster_name: identity.cluster_name.clone(),
        node: identity.node,
        incarnation: identity.incarnation,
        // Unknown to the peers, which check it only when they admit a node.
        start: Start::default(),
        client_addr: config.advertised_client_addr.clone(),
        admin_addr: config.advertised_admin_addr.clone(),
        // The others know its old address; its log, which has it, is lost.
        peer_addr: config.named_peer_addr().unwrap_or_default(),
        peer_addrs: config.peers.clone(),
        tls: tls.cloned(),
    };
    let listener = Listeners::reserve(config).await?.nodes.listen()?;
    let why = format!("node {} has lost its log, and waits for a leader to replace it: {damage}", identity.node);
    let mut refusing = JoinSet::new();
    refusing.spawn(peers::refuse_all(roster.clone(), listener, why));
    wait_until_replaced(config, &roster, incarnation, &others).await?;
    // Free the address: the next start reserves it again.
    refusing.shutdown().await;
    directory.complete_return(incarnation)?;
    info!(
        node = %directory.identity().map_or(identity.node, |new| new.node), data = %config.data.display(),
        "the cluster has replaced node {}: this node is a learner now, and becomes a voter when it has caught up. Its old files \
         are kept in the data directory as damaged-*", identity.node
    );
    Ok(())
}

/// Peer addresses at which other nodes may be: those of the command line, the founders, and all
/// pinned peers.
fn others(config: &ServerConfig, identity: &Identity) -> Result<BTreeMap<String, NodeId>, StorageError> {
    let pinned = PinnedPeers::load(&config.data)?.addresses();
    let known = identity.founders.iter().chain(&config.peers).map(|(&node, address)| (node, address.clone()));
    let others = known.chain(pinned).filter(|(node, _)| node.number() != identity.node.number());
    Ok(others.map(|(node, address)| (address, node)).collect())
}

/// Repeats the request until the cluster has replaced the node of this roster.
async fn wait_until_replaced(
    config: &ServerConfig,
    roster: &Roster,
    incarnation: Incarnation,
    others: &BTreeMap<String, NodeId>,
) -> Result<(), ServeError> {
    let member = ReplaceMember {
        id: roster.node.number(),
        generation: roster.node.generation(),
        cluster: format!("{:016x}", roster.cluster),
        lost_incarnation: roster.incarnation.to_string(),
        incarnation: incarnation.to_string(),
        // Without an address on the command line the member keeps its old one: --peer-addr may be a
        // wildcard address.
        peer_addr: config.advertised_peer_addr.clone().or_else(|| config.peers.get(&config.node).cloned()),
    };
    let options = Options {
        request_timeout: ATTEMPT_TIMEOUT,
        connect_timeout: ATTEMPT_TIMEOUT,
        ..config.options(roster.tls.as_deref())
    };
    let mut logged: Option<Instant> = None;
    let mut refused_since: Option<Instant> = None;
    loop {
        let mut answers = Vec::new();
        let mut endpoints = Vec::new();
        if let Some(address) = &config.join {
            match options.security.status(address, ATTEMPT_TIMEOUT).await {
                Ok(status) if status.cluster == member.cluster => endpoints.push(address.clone()),
                Ok(status) => answers.push(format!(
                    "the node at {address} belongs to another cluster, `{}` (ID {}): check --join",
                    status.cluster_name, status.cluster
                )),
                Err(error) => answers.push(format!("{address}: {error}")),
            }
        }
        let introductions = others.iter().map(async |(address, node)| {
            let introduced = peers::introduction(roster, address).await;
            introduced.map_err(|error| format!("node {node} at {address}: {error}"))
        });
        for introduced in join_all(introductions).await {
            match introduced {
                Ok(introduced) => endpoints.push(introduced.admin_addr.unwrap_or(introduced.client_addr)),
                Err(error) => answers.push(error),
            }
        }
        let (mut refusal, mut all_refuse) = (None, true);
        for endpoint in endpoints {
            match ask(&endpoint, options.clone(), member.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    answers.push(format!("the node that answers at {endpoint}: {error}"));
                    match &error {
                        Error::Refused(Failure { error: Code::NodeIdInUse | Code::Invalid, .. }) => {
                            refusal = Some(error)
                        }
                        _ => all_refuse = false,
                    }
                }
            }
        }
        if let Some(source) = refusal.filter(|_| all_refuse) {
            if refused_since.get_or_insert_with(Instant::now).elapsed() >= REFUSED_FOR {
                return Err(ServeError::NotTakenBack { node: roster.node, source: Box::new(source) });
            }
        } else {
            refused_since = None;
        }
        if logged.is_none_or(|logged| logged.elapsed() >= LOGGED_EVERY) {
            logged = Some(Instant::now());
            warn!(
                node = %roster.node,
                "not taken back yet; trying again. The replacement of this node needs a leader, and so a majority of voters that have \
                 their data. Answers: {}. If a majority has lost its data for good, stop all nodes and restore a backup into a new \
                 cluster (docs/data-directory.md)",
                answers.join("; ")
            );
        }
        sleep(PAUSE).await;
    }
}

async fn ask(endpoint: &str, options: Options, member: ReplaceMember) -> Result<(), Error> {
    let client = Client::connect(&[endpoint], options).await?;
    let changed = client.change_members(MemberChange::Replace(member)).await;
    client.close().await;
    changed.map(|_| ())
}
