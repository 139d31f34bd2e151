//! The actions that are possible in a state.

use palisade_spec::raft::{NodeId, Term};

use super::action::{Action, Fault};
use super::bounds::{Delivery, Elections, Repeats};
use super::environment::Environment;
use super::replica::Stimulus;
use super::setup::World;
use super::state::State;
use super::step::FaultCount;

impl<E: Environment> World<E> {
    /// Lists all actions, in an order that depends on nothing but the state.
    pub(super) fn all_actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        for replica in &state.servers {
            self.server_actions(state, replica.node.id(), actions);
        }
        self.network_actions(state, actions);
        self.environment_actions(state, actions);
    }

    fn server_actions(&self, state: &State<E>, server: NodeId, actions: &mut Vec<Action<E>>) {
        let replica = state.server(server);
        let node = &replica.node;
        if state.crashes > 0 {
            actions.push(Action::Crash(server));
        }
        let (taken, base) = (replica.disk.snapshot.last.index, node.log().base().index);
        if state.snapshots > 0 && node.commit() > taken {
            actions.push(Action::Snapshot(server));
        }
        if taken > base {
            self.step_actions(state, server, Stimulus::Compact(taken), false, actions);
        }
        if replica.cut {
            actions.push(Action::Heal(server));
        } else if self.may_cut(state) {
            actions.push(Action::Cut(server));
        }
        let term_left = node.term() < Term(self.bounds.terms);
        match self.bounds.elections {
            Elections::AtWill if term_left => {
                self.step_actions(state, server, Stimulus::Campaign, false, actions);
            }
            Elections::StepByStep if term_left || node.is_leader() => {
                self.step_actions(state, server, Stimulus::ElectionTimeout, false, actions);
            }
            _ => {}
        }
        if node.is_leader() && (self.bounds.heartbeats.is_none() || state.heartbeats > 0) {
            self.step_actions(state, server, Stimulus::HeartbeatTimeout, false, actions);
        }
    }

    /// Whether one more server may be partitioned.
    fn may_cut(&self, state: &State<E>) -> bool {
        state.cuts > 0 && state.servers.iter().filter(|replica| replica.cut).count() < self.bounds.apart
    }

    fn network_actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        for (position, &message) in state.network.iter().enumerate() {
            if position > 0 && state.network[position - 1] == message {
                continue;
            }
            if state.server(message.to).cut {
                continue;
            }
            let stimulus = Stimulus::Deliver(message);
            let unlimited = self.bounds.repeats == Repeats::Unlimited;
            self.step_actions(state, message.to, stimulus, unlimited, actions);
            if state.repeats > 0 {
                let left = State { repeats: state.repeats - 1, ..state.clone() };
                self.step_actions(&left, message.to, stimulus, true, actions);
            }
            if self.loss_matters(state, message) {
                actions.push(Action::Lose(message));
            }
        }
    }

    fn environment_actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        let mut moves = Vec::new();
        state.environment.moves(&state.servers, &mut moves);
        for chosen in moves {
            let moved = self.caches.moved(state.environment, &chosen);
            if let Some((server, stimulus)) = moved.1 {
                let moved = State { environment: moved.0, ..state.clone() };
                let faults = self.faults(&moved, server, stimulus);
                actions.extend(faults.map(|fault| Action::Move { chosen: chosen.clone(), fault: Some(fault) }));
            }
            actions.push(Action::Move { chosen, fault: None });
        }
    }

    fn step_actions(
        &self,
        state: &State<E>,
        server: NodeId,
        stimulus: Stimulus<E::Machine>,
        again: bool,
        actions: &mut Vec<Action<E>>,
    ) {
        actions.push(Action::Step { server, stimulus, again, fault: None });
        let faults = self.faults(state, server, stimulus);
        actions.extend(faults.map(|fault| Action::Step { server, stimulus, again, fault: Some(fault) }));
    }

    /// The faults that are possible when `stimulus` happens to `server`, within the budgets.
    fn faults(
        &self,
        state: &State<E>,
        server: NodeId,
        stimulus: Stimulus<E::Machine>,
    ) -> impl Iterator<Item = Fault> + use<E> {
        let may_crash = state.crashes > 0;
        let may_lose = match self.bounds.delivery {
            Delivery::Prompt { .. } => state.losses > 0,
            // Losing an answer uses no budget.
            Delivery::AnyTime { answers, .. } => answers == super::Answers::AtOnce,
        };
        let may_delay = state.late > 0;
        let may_repeat = state.repeats > 0 && matches!(self.bounds.delivery, Delivery::Prompt { .. });
        let faults = if may_crash || may_lose || may_delay || may_repeat {
            self.step(&mut state.clone(), server, stimulus, None)
        } else {
            FaultCount::default()
        };
        let up_to = |most: usize, may: bool| 0..if may { most } else { 0 };
        let crashes = up_to(faults.crashes, may_crash).map(Fault::Crash);
        let leaves = up_to(faults.crashes, may_crash && self.may_cut(state)).map(Fault::Leave);
        let delays = up_to(faults.carried, may_delay).map(Fault::Delay);
        let repeats = up_to(faults.carried, may_repeat).map(Fault::Repeat);
        crashes.chain(leaves).chain(up_to(faults.carried, may_lose).map(Fault::Lose)).chain(delays).chain(repeats)
    }
}
