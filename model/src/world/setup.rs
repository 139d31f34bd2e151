//! A cluster in an environment, and the states in which its exploration begins.

use palisade_spec::raft::{Change, Config, Durable, Members, Node, NodeId, Payload};
use serde_json::Value;
use smallvec::SmallVec;

use super::action::{Action, Fault};
use super::bounds::{Bounds, Delivery, Repeats};
use super::caches::Caches;
use super::digest::renamings;
use super::driver::Driver;
use super::environment::Environment;
use super::history::History;
use super::replica::{Replica, Stimulus};
use super::state::State;

/// A model of a cluster in an environment.
pub struct World<E: Environment> {
    /// The limits of the exploration.
    pub bounds: Bounds,
    /// The initial members.
    pub(super) founders: Members,
    pub(super) initial: Vec<State<E>>,
    /// The state machine before the first entry.
    pub(super) blank: E::Machine,
    /// The events before the initial state, as data.
    pub(super) prelude: Vec<Value>,
    pub(super) caches: Caches<E>,
}

impl<E: Environment> World<E> {
    /// Creates a cluster of blank servers (or of servers that have a leader already), in an
    /// environment.
    pub fn new(bounds: Bounds, machine: E::Machine, environment: E) -> World<E> {
        let founders = Members::of((1..=bounds.servers).map(NodeId));
        let ids = (1..=bounds.servers + bounds.joiners).map(NodeId);
        let mut renamings = renamings(bounds.servers, bounds.joiners);
        if !bounds.symmetry {
            renamings.truncate(1);
        } else if bounds.starts_with_leader {
            // The history records the leader of the first term, so that server is not
            // interchangeable with the others.
            renamings.retain(|names| names[0] == 1);
        }
        let caches = Caches::new(Driver::new(&bounds), renamings);
        let replicas = ids.map(|id| {
            let members = if id <= NodeId(bounds.servers) { founders.clone() } else { Members::default() };
            let disk = Durable::blank(machine.clone(), members);
            let Bounds { batch: max_batch, inflight: max_inflight, commits: max_commits, .. } = bounds;
            let config = Config { max_batch, max_inflight, max_commits, ..Config::new(id) };
            let node = Node::recover(config, disk.clone());
            let blank = Replica { node, disk: disk.clone(), cut: false };
            caches.replica(caches.driver.recover(&blank, disk).expect("a server recovers from a blank disk"))
        });
        let repeats = match bounds.repeats {
            Repeats::AtMost(count) => count,
            Repeats::Unlimited => 0,
        };
        let (losses, cuts) = match bounds.delivery {
            Delivery::Prompt { losses, cuts } => (losses, cuts),
            Delivery::AnyTime { .. } => (0, 0),
        };
        let state = State {
            servers: replicas.collect(),
            network: SmallVec::new(),
            history: caches.history(History::new(machine.clone())),
            environment: caches.environments.intern(environment, &caches.renamings),
            crashes: bounds.crashes,
            snapshots: bounds.snapshots,
            repeats,
            losses,
            cuts,
            late: bounds.late,
            heartbeats: bounds.heartbeats.unwrap_or(0),
            violation: None,
            canonical: None,
        };
        let (initial, prelude) = (vec![state], Vec::new());
        let mut world = World { bounds, founders, initial, blank: machine, prelude, caches };
        if world.bounds.starts_with_leader {
            world.elect_first();
        }
        world
    }

    /// Returns the same model with these membership changes committed in its initial state, by
    /// server 1, which leads.
    pub fn changed(mut self, changes: &[Change]) -> World<E> {
        let mut state = self.initial[0].clone();
        let delivery = std::mem::replace(&mut self.bounds.delivery, Delivery::Prompt { losses: 0, cuts: 0 });
        for change in changes {
            let change = self.caches.changes.intern(change.clone(), &self.caches.renamings);
            for stimulus in [Stimulus::Change(change), Stimulus::HeartbeatTimeout, Stimulus::HeartbeatTimeout] {
                self.apply_before_start(&mut state, stimulus, None);
            }
        }
        assert!(state.violation.is_none(), "the initial changes violate {:?}", state.violation);
        self.bounds.delivery = delivery;
        self.initial = vec![state];
        self
    }

    /// Elects server 1 in term 1, with all messages delivered at once. Its heartbeat tells all
    /// servers that the no-op is committed.
    fn elect_first(&mut self) {
        let mut state = self.initial[0].clone();
        let delivery = std::mem::replace(&mut self.bounds.delivery, Delivery::Prompt { losses: 0, cuts: 0 });
        for stimulus in [Stimulus::Campaign, Stimulus::HeartbeatTimeout] {
            self.apply_before_start(&mut state, stimulus, None);
        }
        assert!(state.violation.is_none(), "the initial election violates {:?}", state.violation);
        self.bounds.delivery = delivery;
        self.initial = vec![state];
    }

    /// Returns the same model in a state after server 1, which leads, and server 2 were partitioned
    /// from the others together. The leader proposed two entries, which both servers have, but the
    /// answer of server 2 is delayed. Now server 2 is partitioned, and server 1 reaches the others
    /// again.
    pub fn with_a_late_answer(mut self) -> World<E> {
        let mut state = self.initial[0].clone();
        let others: Vec<NodeId> = (3..=self.bounds.servers).map(NodeId).collect();
        self.connect_all(&mut state, &others, false);
        let entries = self.caches.proposals.intern(vec![Payload::Noop, Payload::Noop], &self.caches.renamings);
        // Message 0 of the step is the one to server 2; its answer is message 1.
        self.apply_before_start(&mut state, Stimulus::Propose(entries), Some(Fault::Delay(1)));
        self.connect_all(&mut state, &others, true);
        self.connect_all(&mut state, &[NodeId(2)], false);
        state.late -= 1;
        assert!(state.violation.is_none() && state.network.len() == 1, "one answer is delayed, without a violation");
        self.initial = vec![state];
        self
    }

    /// Returns the same model with server 1, which leads, partitioned from the others.
    pub fn with_its_leader_cut_off(mut self) -> World<E> {
        let mut state = self.initial[0].clone();
        self.connect_all(&mut state, &[NodeId(1)], false);
        self.initial = vec![state];
        self
    }

    /// Partitions or connects servers before the initial state.
    fn connect_all(&mut self, state: &mut State<E>, servers: &[NodeId], connected: bool) {
        for &server in servers {
            let action = if connected { Action::Heal(server) } else { Action::Cut(server) };
            self.prelude.push(self.event_json(state, &action));
            self.connect(state, server, connected);
        }
    }

    /// Lets a stimulus happen to server 1 before the initial state.
    fn apply_before_start(&mut self, state: &mut State<E>, stimulus: Stimulus<E::Machine>, fault: Option<Fault>) {
        let action = Action::Step { server: NodeId(1), stimulus, again: false, fault };
        self.prelude.push(self.event_json(state, &action));
        self.step(state, NodeId(1), stimulus, fault);
    }

    /// Partitions a server from the others, or connects it to them.
    pub(super) fn connect(&self, state: &mut State<E>, server: NodeId, connected: bool) {
        let replica = Replica { cut: !connected, ..(*state.server(server)).clone() };
        state.servers[usize::from(server.number()) - 1] = self.caches.replica(replica);
    }

    /// The environment in the initial state.
    pub fn surroundings(&self) -> &E {
        &self.initial[0].environment
    }

    /// Disables the memos from now on, to measure what they gain.
    pub fn forget_steps(&mut self) {
        self.caches.disable_memos();
    }

    /// The numbers of distinct parts: servers, messages, histories, environments.
    pub fn parts(&self) -> [usize; 4] {
        let caches = &self.caches;
        [caches.replicas.count(), caches.messages.count(), caches.histories.count(), caches.environments.count()]
    }
}
