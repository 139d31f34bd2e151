//! The network: every message on its own way, or on none.
//!
//! Loss, repetition, delays that reorder, links that are cut in one direction or in both, for a while or on and off.
//! What a real connection would guarantee (order, as long as it lasts) is not given: the protocol does not need it.

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

/// How bad the network is at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// How many of a thousand messages are lost.
    pub(super) loss: u32,
    /// How many of a thousand come twice.
    pub(super) repeats: u32,
    /// How long a message takes at the least.
    pub(super) base: Duration,
    /// How much longer it may take.
    pub(super) spread: Duration,
}

impl Weather {
    /// A quiet data centre.
    pub(super) const FAIR: Weather =
        Weather { loss: 0, repeats: 0, base: Duration::from_micros(150), spread: Duration::from_micros(500) };
}

/// Which nodes are there, and which links are cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Links(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    up: BTreeSet<NodeId>,
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Whom each node's process was let in by since it started.
    welcomed: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Links {
    /// A node's process begins or ends.
    pub(super) fn set_up(&self, node: NodeId, is_up: bool) {
        let mut state = self.0.lock();
        if is_up {
            state.up.insert(node);
        } else {
            state.up.remove(&node);
            state.welcomed.remove(&node);
        }
    }

    /// Cuts the way from one node to another.
    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        self.0.lock().cut.insert((from, to));
    }

    /// Mends it.
    pub(super) fn mend(&self, from: NodeId, to: NodeId) {
        self.0.lock().cut.remove(&(from, to));
    }

    /// Mends everything.
    pub(super) fn mend_all(&self) {
        self.0.lock().cut.clear();
    }

    /// Whether something can go from one node to another.
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
        let welcomed = state.welcomed.entry(node).or_default();
        welcomed.extend(reached);
        others.iter().all(|other| welcomed.contains(other))
    }
}

/// The fate of one message: when its copies arrive, after how long.
pub(super) fn fate(weather: &Weather, rng: &mut SmallRng) -> impl Iterator<Item = Duration> + use<> {
    let copies = match rng.random_range(0..1000) {
        dice if dice < weather.loss => 0,
        dice if dice < weather.loss + weather.repeats => 2,
        _ => 1,
    };
    let mut delays = [None; 2];
    for delay in delays.iter_mut().take(copies) {
        *delay = Some(weather.base + weather.spread.mul_f64(rng.random()));
    }
    delays.into_iter().flatten()
}

/// A node's network card.
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

    /// Who can be reached does not depend on it here.
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
