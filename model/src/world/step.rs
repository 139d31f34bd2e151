//! One step that the adversary chooses: an event at one server, and its consequences at other
//! servers within the step.
//!
//! With [`Delivery::AnyTime`] a step ends when the server has executed its outputs. With
//! [`Delivery::Prompt`] messages arrive within the step, in the order of sending, and so do the
//! messages that they cause, until no messages are left. A step has at most one [`Fault`].

use std::collections::VecDeque;

use palisade_spec::invariants::{Violation, committed_by_a_majority, log_matching, votes_stand};
use palisade_spec::raft::NodeId;

use super::action::Fault;
use super::bounds::Delivery;
use super::caches::{SentMessages, Stepped, leak};
use super::digest::Renaming;
use super::driver::Answer;
use super::environment::Environment;
use super::intern::Ref;
use super::judge::{acknowledgement_matches_log, snapshots_match_log};
use super::replica::{Replica, Stimulus};
use super::setup::World;
use super::state::State;

/// The points of a step at which a fault could have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultCount {
    /// The number of messages that arrived within the step.
    pub(super) carried: usize,
    /// The number of points at which a server could have crashed.
    pub(super) crashes: usize,
}

impl<E: Environment> World<E> {
    /// Applies `stimulus` to `server`, with all consequences within the step, and counts the
    /// possible faults.
    pub(super) fn step(
        &self,
        state: &mut State<E>,
        server: NodeId,
        stimulus: Stimulus<E::Machine>,
        fault: Option<Fault>,
    ) -> FaultCount {
        let mut faults = FaultCount::default();
        let mut todo = VecDeque::from([(server, stimulus)]);
        while let Some((server, stimulus)) = todo.pop_front() {
            if state.violation.is_some() {
                break;
            }
            if let Some(look) = state.environment.before(&state.server(server).node) {
                let moved = self.caches.moved(state.environment, &look);
                state.environment = moved.0;
                todo.push_front((server, stimulus));
                if let Some(request) = moved.1 {
                    todo.push_front(request);
                }
                continue;
            }
            self.step_one(state, server, stimulus, fault, &mut faults, &mut todo);
        }
        self.discard_spent(state);
        faults
    }

    /// Applies a stimulus to one server, and queues the consequences. Returns the messages that it
    /// sent.
    pub(super) fn step_one(
        &self,
        state: &mut State<E>,
        server: NodeId,
        stimulus: Stimulus<E::Machine>,
        fault: Option<Fault>,
        faults: &mut FaultCount,
        todo: &mut VecDeque<(NodeId, Stimulus<E::Machine>)>,
    ) -> SentMessages<E> {
        let old = state.server(server);
        let stepped = self.caches.step(old, stimulus);
        let chosen = fault.and_then(Fault::crash);
        let may_crash = chosen.is_some() || (fault.is_none() && state.crashes > 0);
        let crashes = may_crash.then(|| self.caches.crashes(old, stimulus));
        let crashes = crashes.as_ref().map_or(&[][..], |crashes| &crashes[..]);
        let crash = chosen.and_then(|index| crashes.get(index.checked_sub(faults.crashes)?));
        faults.crashes += crashes.len();
        if let Some(crash) = crash {
            if let Some(before) = crash.before {
                self.replace_server(state, server, before, &stepped.answers[..crash.answers]);
            }
            state.violation = state.violation.or(crash.violation);
            let cut = old.cut || matches!(fault, Some(Fault::Leave(_)));
            let back = if cut == old.cut {
                crash.replica
            } else {
                self.caches.replica(Replica { cut, ..(*crash.replica).clone() })
            };
            self.replace_server(state, server, back, &[]);
        } else {
            state.violation = stepped.violation;
            self.replace_server(state, server, stepped.replica, &stepped.answers);
        }
        let mut sent = self.in_order(state, &stepped);
        sent.truncate(crash.map_or(stepped.sent.len(), |crash| crash.sent));
        for &message in &sent {
            if state.violation.is_none() && crash.is_none() {
                let judged =
                    acknowledgement_matches_log(&message, &stepped.replica.node, &state.server(message.to).node);
                state.violation = judged.err().map(leak);
            }
            if !self.is_prompt(&message.body) {
                self.send(state, message);
            } else if !(old.cut || state.server(message.to).cut) {
                let own = |fault_at: fn(usize) -> Fault| fault == Some(fault_at(faults.carried));
                if own(Fault::Delay) || own(Fault::Repeat) {
                    state.send(message);
                }
                if !own(Fault::Delay) && !own(Fault::Lose) {
                    todo.push_back((message.to, Stimulus::Deliver(message)));
                }
                faults.carried += 1;
            }
        }
        sent
    }

    /// The messages of a server, in the order in which they arrive with prompt delivery. With
    /// symmetry the order must not depend on the servers' numbers: within a run, it depends on the
    /// digest of the state as the two servers see it.
    fn in_order(&self, state: &State<E>, stepped: &Stepped<E>) -> SentMessages<E> {
        let mut sent = stepped.sent.clone();
        if self.caches.renamings.len() == 1 || !matches!(self.bounds.delivery, Delivery::Prompt { .. }) {
            return sent;
        }
        let ends = stepped.runs.iter().skip(1).copied().chain([sent.len()]);
        for (begin, end) in stepped.runs.iter().copied().zip(ends) {
            sent[begin..end].sort_by_cached_key(|message| self.pair_digest(state, message.from, message.to));
        }
        sent
    }

    /// The least digest of the state over the renamings that give this pair of servers its least
    /// names.
    fn pair_digest(&self, state: &State<E>, from: NodeId, to: NodeId) -> ((u32, u32), u64) {
        let called = |names: &Renaming, id: NodeId| names[usize::from(id.number()) - 1];
        let pair = |names: &Renaming| (called(names, from), called(names, to));
        let renamings = &self.caches.renamings;
        let least = renamings.iter().map(pair).min().expect("the renamings include the identity");
        let alike = renamings.iter().enumerate().filter(|(_, names)| pair(names) == least);
        (least, alike.map(|(renaming, _)| state.digest(renaming)).min().expect("a renaming gives the least pair"))
    }

    /// Replaces a server's state, and checks what must hold of the history and of pairs of servers.
    pub(super) fn replace_server(
        &self,
        state: &mut State<E>,
        server: NodeId,
        new: Ref<Replica<E::Machine>>,
        answers: &[Answer<E::Machine>],
    ) {
        let old = std::mem::replace(&mut state.servers[usize::from(server.number()) - 1], new);
        if state.violation.is_none() {
            state.violation = self.check_and_observe(state, old, new, answers).err();
        }
    }

    fn check_and_observe(
        &self,
        state: &mut State<E>,
        old: Ref<Replica<E::Machine>>,
        new: Ref<Replica<E::Machine>>,
        answers: &[Answer<E::Machine>],
    ) -> Result<(), &'static Violation> {
        if old == new && answers.is_empty() {
            return Ok(());
        }
        votes_stand(new.node.id(), old.node.hard_state(), new.node.hard_state()).map_err(leak)?;
        if old.node.log() != new.node.log() {
            for other in state.servers.iter().filter(|other| **other != new) {
                let logs = || log_matching(new.node.log(), other.node.log());
                self.caches.check([new.key(), other.key()], logs)?;
            }
        }
        let before = (state.environment, state.history);
        let elected = new.node.is_leader() && !(old.node.is_leader() && old.node.term() == new.node.term());
        // A node that installs a snapshot also applies it.
        if elected || new.node.commit() > old.node.commit() {
            state.history = self.caches.history_after(state.history, old, new, elected)?;
            if state.history.committed.len() > before.1.committed.len() {
                for replica in &state.servers {
                    self.caches
                        .check([state.history.key(), replica.key()], || state.history.completeness(&replica.node))?;
                }
            }
        }
        let begins = |replica: &Replica<E::Machine>| (replica.node.log().base(), replica.disk.snapshot.last);
        if begins(&old) != begins(&new) {
            snapshots_match_log(&new, &state.history.committed).map_err(leak)?;
        }
        // A leader that commits its own removal is no leader any more at the end of the step.
        let leads = new.node.is_leader() || (old.node.is_leader() && old.node.term() == new.node.term());
        if leads && new.node.commit() > old.node.commit() {
            let log = |id: NodeId| state.servers[usize::from(id.number()) - 1].node.log();
            committed_by_a_majority(&new.node, log).map_err(leak)?;
        }
        if E::CHANGES_MEMBERS {
            self.judge_members(state, old, new, elected).map_err(leak)?;
        }
        if E::watches(&old.node, &new.node, answers) {
            state.environment = self.caches.environment_after(state.environment, old, new, answers)?;
        }
        if (state.environment, state.history) == before {
            return Ok(());
        }
        self.caches.check_environment(state.environment, state.history)
    }
}
