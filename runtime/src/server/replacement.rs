//! A node that has lost its log comes back: it asks its cluster to replace it by a new member, under its number in the next
//! generation, sets its files aside, and begins again with nothing.
//!
//! Nothing of this can break safety. To the protocol the new member is a server that was never there before, and the old one a
//! server that was removed (`Change::Replace`). When it is done, nobody has the old one's identity any more (`storage::set_aside`).
//!
//! The cluster can agree only with a leader, that is with a majority of all voters; the lost one counts among them until then.
//! Without one the node asks on, and says whom it has asked and what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade_client::wire::{Code, Failure, MemberChange, ReplaceMember};
use palisade_client::{Client, Error, Options};
use palisade_spec::raft::NodeId;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{ServeError, ServerConfig, bind};
use crate::peers::{self, Acquaintances, Roster};
use crate::storage::{Identity, Incarnation, LockedDir, StorageError};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the log says that the node still waits.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// How long one attempt may look for a leader.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has the node of a directory that is damaged replaced by a new member; the directory is that member's then, and empty.
///
/// # Errors
/// With the damage itself, if there is nobody to ask. If the cluster refuses for good, or if the directory cannot be changed.
pub(super) async fn replace(config: &ServerConfig, damage: StorageError) -> Result<(), ServeError> {
    let directory = LockedDir::open(&config.data)?;
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
    let listener = bind(&config.peer_addr, "nodes").await?;
    let why = format!("node {} has lost its log, and waits for a leader to take it back: {damage}", identity.node);
    let new = {
        let _refusing = Refusing::start(listener, why);
        taken_back(config, &identity, incarnation, &others).await?
    };
    directory.set_aside(new, incarnation)?;
    info!(
        node = %new, data = %config.data.display(),
        "the cluster has replaced node {}: it learns now, and gets its vote back when it has caught up. Its old files are kept \
         as damaged-*", identity.node
    );
    Ok(())
}

/// Where other nodes may be: as the command line says, or the founders, or whoever was met.
fn others(config: &ServerConfig, identity: &Identity) -> Result<BTreeMap<String, NodeId>, StorageError> {
    let met = Acquaintances::load(&config.data)?.addresses();
    let known = identity.founders.iter().chain(&config.peers).map(|(&node, address)| (node, address.clone()));
    let others = known.chain(met).filter(|(node, _)| node.number() != identity.node.number());
    Ok(others.map(|(node, address)| (address, node)).collect())
}

/// Tells everybody who dials why this node does not take part, until it is dropped.
struct Refusing(tokio::task::JoinHandle<()>);

impl Refusing {
    fn start(listener: TcpListener, why: String) -> Refusing {
        Refusing(tokio::spawn(peers::refuse_all(listener, why)))
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks until the cluster has taken the node back. Says under which identity.
async fn taken_back(
    config: &ServerConfig,
    identity: &Identity,
    incarnation: Incarnation,
    others: &BTreeMap<String, NodeId>,
) -> Result<NodeId, ServeError> {
    let roster = Roster {
        cluster: identity.cluster,
        node: identity.node,
        incarnation: identity.incarnation,
        client_addr: config.advertised_client_addr.clone(),
        peer_addr: config.advertised_peer_addr(),
        peer_addrs: config.peers.clone(),
    };
    let member = ReplaceMember {
        id: identity.node.number(),
        generation: identity.node.generation(),
        peer_addr: roster.peer_addr.clone(),
        incarnation: incarnation.to_string(),
    };
    let mut told: Option<Instant> = None;
    loop {
        let mut findings = Vec::new();
        let mut endpoints: Vec<String> = config.join.iter().cloned().collect();
        for (address, node) in others {
            match peers::introduction(&roster, address).await {
                Ok(introduced) => endpoints.push(introduced.client_addr),
                Err(error) => findings.push(format!("node {node} ({address}): {error}")),
            }
        }
        match ask(&endpoints, member.clone()).await {
            Ok(()) => return Ok(identity.node.next_generation().expect("the cluster has checked that there is one")),
            Err(source @ Error::Refused(Failure { error: Code::NumberTaken | Code::Invalid, .. })) => {
                return Err(ServeError::NotTakenBack { node: identity.node, source: Box::new(source) });
            }
            Err(error) => findings.push(format!("asked {}: {error}", list(&endpoints))),
        }
        if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            told = Some(Instant::now());
            warn!(
                node = %identity.node,
                "not taken back yet; trying again. A majority of the voters must have its data and a leader. {}. If a majority has \
                 lost its data for good, stop all nodes and restore a backup into a new cluster (docs/operations.md)",
                findings.join(". ")
            );
        }
        sleep(PAUSE).await;
    }
}

fn list(endpoints: &[String]) -> String {
    if endpoints.is_empty() { "nobody, for nobody answers".into() } else { endpoints.join(", ") }
}

async fn ask(endpoints: &[String], member: ReplaceMember) -> Result<(), Error> {
    if endpoints.is_empty() {
        return Err(Error::Unreachable { after: Duration::ZERO, trouble: "no node could be reached".into() });
    }
    let client = Client::connect(endpoints, Options { request_timeout: PATIENCE, ..Options::default() }).await?;
    let changed = client.change_members(MemberChange::Replace(member)).await;
    client.close().await;
    changed.map(|_| ())
}
