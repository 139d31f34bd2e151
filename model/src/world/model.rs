//! A cluster as a [`stateright::Model`]. Every step of the model is one step of the spec with its
//! outputs executed in order; the adversary chooses which step.

use palisade_spec::invariants::Violation;
use palisade_spec::raft::{Durable, NodeId};
use stateright::{Model, Path, Property};

use super::action::{Action, Fault};
use super::bounds::{Delivery, Repeats};
use super::environment::Environment;
use super::replica::{Replica, Stimulus};
use super::search_class::outline;
use super::sentences;
use super::setup::World;
use super::state::State;
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Representative, Way};

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
                        let index = state.network.iter().position(|other| *other == message)?;
                        state.network.remove(index);
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
                let index = state.network.iter().position(|other| *other == message)?;
                state.network.remove(index);
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

impl<E: Environment> World<E> {
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

    /// The representative of all states that are renamings of this one.
    pub fn representative(state: &State<E>) -> State<E> {
        let least = (0..state.history.renamings()).map(|renaming| state.digest(renaming)).min();
        State { canonical: least, ..state.clone() }
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
