//! A cluster as a [`stateright::Model`]. Every step of the model is one step of the spec with its
//! outputs carried out in order; the adversary chooses which step.

use palisade_spec::invariants::Violation;
use palisade_spec::raft::{Change, Config, Durable, Members, Node, NodeId, Payload};
use serde_json::Value;
use smallvec::SmallVec;
use stateright::{Model, Path, Property};

use super::action::{Action, Fault};
use super::bounds::{Bounds, Delivery, Repeats};
use super::caches::Caches;
use super::digest::renamings;
use super::driver::Driver;
use super::environment::Environment;
use super::history::History;
use super::replica::{Replica, Stimulus};
use super::search_class::outline;
use super::sentences;
use super::state::State;
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Representative, Way};

/// A model of a cluster in an environment.
pub struct World<E: Environment> {
    /// The limits of the exploration.
    pub bounds: Bounds,
    /// The initial members.
    pub(super) founders: Members,
    initial: Vec<State<E>>,
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

    fn spend(&self, state: &mut State<E>, fault: Option<Fault>) {
        match (fault, self.bounds.delivery) {
            (Some(Fault::Crash(_)), _) => state.crashes -= 1,
            (Some(Fault::Leave(_)), _) => {
                state.crashes -= 1;
                state.cuts -= 1;
            }
            (Some(Fault::Lose(_)), Delivery::Prompt { .. }) => state.losses -= 1,
            (Some(Fault::Delay(_)), _) => state.late -= 1,
            (Some(Fault::Repeat(_)), _) => state.repeats -= 1,
            (Some(Fault::Lose(_)), Delivery::AnyTime { .. }) | (None, _) => {}
        }
    }

    fn connect(&self, state: &mut State<E>, server: NodeId, connected: bool) {
        let replica = Replica { cut: !connected, ..(*state.server(server)).clone() };
        state.servers[usize::from(server.number()) - 1] = self.caches.replica(replica);
    }

    /// Restarts a server with a blank disk. Losing the disk is no violation by itself; the model
    /// shows the violations that follow from it.
    fn lose_disk(&self, state: &mut State<E>, server: NodeId) {
        let blank = Durable::blank(self.blank.clone(), self.founders.clone());
        let (recovered, violation) = self.caches.recovered(state.server(server), blank);
        assert!(violation.is_none(), "a server recovers from a blank disk");
        state.servers[usize::from(server.number()) - 1] = recovered;
    }

    /// Panics if a violation belongs to no property of the model. The exploration stops at every
    /// violation, so an unnamed one would hide all states behind it.
    fn assert_named(&self, violation: Option<&Violation>) {
        if let Some(violation) = violation {
            let named = self.properties().iter().any(|property| property.name == violation.property.name());
            assert!(named, "no property has the name of the violation {violation}");
        }
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

    /// The representative of all states that are renamings of this one.
    pub fn representative(state: &State<E>) -> State<E> {
        let least = (0..state.history.renamings()).map(|renaming| state.digest(renaming)).min();
        State { canonical: least, ..state.clone() }
    }
}

impl<E: Environment> Model for World<E> {
    type State = State<E>;
    type Action = Action<E>;

    fn properties(&self) -> Vec<Property<World<E>>> {
        E::properties(self)
    }

    fn init_states(&self) -> Vec<State<E>> {
        self.initial.clone()
    }

    fn actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        if state.violation.is_none() {
            self.all_actions(state, actions);
        }
    }

    fn next_state(&self, last: &State<E>, action: Action<E>) -> Option<State<E>> {
        let mut state = last.clone();
        if self.bounds.heartbeats.is_some() && action.is_heartbeat() {
            state.heartbeats -= 1;
        }
        match action {
            Action::Step { server, stimulus, again, fault } => {
                if let Stimulus::Deliver(message) = stimulus {
                    if !again {
                        let place = state.network.iter().position(|other| *other == message)?;
                        state.network.remove(place);
                    } else if self.bounds.repeats != Repeats::Unlimited {
                        state.repeats -= 1;
                    }
                }
                self.spend(&mut state, fault);
                self.step(&mut state, server, stimulus, fault);
            }
            Action::Move { chosen, fault } => {
                let moved = self.caches.moved(state.environment, &chosen);
                state.environment = moved.0;
                state.violation = self.caches.check_environment(state.environment, state.history).err();
                self.spend(&mut state, fault);
                if let Some((server, stimulus)) = moved.1 {
                    self.step(&mut state, server, stimulus, fault);
                    // A rejected operator request changes nothing, and the operator can repeat it.
                    let is_operators = matches!(stimulus, Stimulus::Change(_) | Stimulus::Transfer(_));
                    if is_operators && state.servers == last.servers && state.violation.is_none() {
                        return None;
                    }
                }
            }
            Action::Crash(server) => {
                let replica = state.server(server);
                if self.bounds.forgets {
                    state.crashes -= 1;
                    self.lose_disk(&mut state, server);
                    return Some(state);
                }
                let (recovered, violation) = self.caches.recovered(replica, replica.disk.clone());
                if recovered == replica && violation.is_none() {
                    return None;
                }
                state.crashes -= 1;
                state.violation = violation;
                self.replace_server(&mut state, server, recovered, &[]);
                self.discard_spent(&mut state);
            }
            Action::Snapshot(server) => {
                let replica = state.server(server);
                let snapshot = replica.disk.snapshot_at(replica.node.commit());
                let disk = Durable { snapshot, ..replica.disk.clone() };
                state.snapshots -= 1;
                self.replace_server(
                    &mut state,
                    server,
                    self.caches.replica(Replica { disk, ..(*replica).clone() }),
                    &[],
                );
            }
            Action::Lose(message) => {
                let place = state.network.iter().position(|other| *other == message)?;
                state.network.remove(place);
            }
            Action::Cut(server) => {
                state.cuts -= 1;
                self.connect(&mut state, server, false);
            }
            Action::Heal(server) => self.connect(&mut state, server, true),
        }
        self.assert_named(state.violation);
        // A violation counts even if the state exceeds the bounds.
        (state != *last && (state.violation.is_some() || self.fits(&state))).then_some(state)
    }

    fn format_action(&self, action: &Action<E>) -> String {
        sentences::action(action)
    }

    fn format_step(&self, last: &State<E>, action: Action<E>) -> Option<String> {
        self.outcome(last, action)
    }

    fn as_svg(&self, path: Path<State<E>, Action<E>>) -> Option<String> {
        self.draw(&path.into_vec()).map(|diagram| diagram.svg())
    }
}

impl<E: Environment> Presentation for World<E> {
    const REPRESENTATIVE: Option<Representative<State<E>>> = Some(World::representative);

    fn weight(action: &Action<E>) -> u32 {
        action.weight()
    }

    fn outline(&self, state: &State<E>) -> (u64, u64) {
        outline(state)
    }

    fn sentence(&self, last: &State<E>, action: &Action<E>) -> String {
        self.describe(last, action)
    }

    fn event(&self, last: &State<E>, action: &Action<E>) -> serde_json::Value {
        self.event_json(last, action)
    }

    fn setting(&self, initial: &State<E>) -> serde_json::Value {
        self.setting_json(initial)
    }

    fn diagram(&self, way: &Way<World<E>>) -> Option<Diagram> {
        self.draw(way)
    }
}
