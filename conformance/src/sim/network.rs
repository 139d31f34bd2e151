//! The network: each copy of a message has its own delay.
//!
//! Messages may be lost, duplicated and reordered by their delays. Links may be cut in one
//! direction or in both, for a while or flapping. The network does not give the ordering that a
//! connection would give: the protocol does not need it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use palisade::core::Transport;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;

use super::host::Host;
use super::judge::SharedJudge;

/// The network's present quality.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkQuality {
    /// Messages lost, per thousand.
    pub(super) loss: u32,
    /// Messages duplicated, per thousand.
    pub(super) repeats: u32,
    /// Minimum delay of a message.
    pub(super) base: Duration,
    /// Maximum additional delay of a message.
    pub(super) spread: Duration,
}

impl LinkQuality {
    /// The network of a quiet data centre.
    pub(super) const NORMAL: LinkQuality =
        LinkQuality { loss: 0, repeats: 0, base: Duration::from_micros(150), spread: Duration::from_micros(500) };
}

/// The running nodes and the cut links.
#[derive(Clone, Debug, Default)]
pub(super) struct Links(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    up: BTreeSet<NodeId>,
    cut: BTreeSet<(NodeId, NodeId)>,
    /// For each running node, the peers that have accepted its process since it started.
    accepted_by: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Links {
    /// Records that a node's process started or ended.
    pub(super) fn set_up(&self, node: NodeId, is_up: bool) {
        let mut state = self.0.lock();
        if is_up {
            state.up.insert(node);
        } else {
            state.up.remove(&node);
            state.accepted_by.remove(&node);
        }
    }

    /// Cuts the link in one direction.
    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        self.0.lock().cut.insert((from, to));
    }

    /// Restores the link in one direction.
    pub(super) fn mend(&self, from: NodeId, to: NodeId) {
        self.0.lock().cut.remove(&(from, to));
    }

    /// Restores all links.
    pub(super) fn mend_all(&self) {
        self.0.lock().cut.clear();
    }

    /// Whether messages pass in this direction.
    pub(super) fn is_open(&self, from: NodeId, to: NodeId) -> bool {
        !self.0.lock().cut.contains(&(from, to))
    }

    fn is_connected(&self, from: NodeId, to: NodeId) -> bool {
        let state = self.0.lock();
        state.up.contains(&to) && !state.cut.contains(&(from, to)) && !state.cut.contains(&(to, from))
    }

    fn is_known_to(&self, node: NodeId, others: &[NodeId]) -> bool {
        let reached: Vec<NodeId> = others.iter().copied().filter(|&other| self.is_connected(node, other)).collect();
        let mut state = self.0.lock();
        let accepted_by = state.accepted_by.entry(node).or_default();
        accepted_by.extend(reached);
        others.iter().all(|other| accepted_by.contains(other))
    }
}

/// Draws the delays of a message's copies; none if the message is lost.
pub(super) fn message_delays(quality: &LinkQuality, rng: &mut SmallRng) -> impl Iterator<Item = Duration> + use<> {
    let copies = match rng.random_range(0..1000) {
        roll if roll < quality.loss => 0,
        roll if roll < quality.loss + quality.repeats => 2,
        _ => 1,
    };
    let mut delays = [None; 2];
    for delay in delays.iter_mut().take(copies) {
        *delay = Some(quality.base + quality.spread.mul_f64(rng.random()));
    }
    delays.into_iter().flatten()
}

/// A node's transport.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) node: NodeId,
    pub(super) host: Host,
    pub(super) links: Links,
    pub(super) judge: SharedJudge,
}

impl Transport for Wire {
    fn send(&self, message: Message<LockTable>) {
        if self.host.tick(false).is_ok() {
            self.judge.lock().sent(&message);
            self.host.send(message);
        }
    }

    fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        if self.host.tick(false).is_ok() {
            self.judge.lock().offered(self.node, to, term);
            self.host.send_snapshot(to, term);
        }
        self.is_connected(to)
    }

    /// Connectivity does not depend on the members here.
    fn set_members(&self, _: &Members, _: &Arc<Members>) {}

    fn is_connected(&self, id: NodeId) -> bool {
        id == self.node || self.links.is_connected(self.node, id)
    }

    fn is_known_to(&self, others: &[NodeId]) -> bool {
        self.links.is_known_to(self.node, others)
    }

    fn client_addr(&self, id: NodeId) -> Option<String> {
        Some(id.to_string())
    }
}
