//! The model's view of the properties and the spec's `ClusterChecker` agree.
//!
//! The models check the functions of `spec::invariants` over states that they intern; the checker
//! is fed events. These tests walk through a model at random and feed each step to both. Then a
//! message that no server sent reaches a server of the same cluster: both must find the same
//! property violated.
//!
//! What an entry does to a lock table needs no such test: the models and the checker judge it by the
//! same function ([`palisade_spec::checker::check_lock_entry`]), and the spec's tests show it an entry that
//! violates each property of the table.

use std::collections::BTreeMap;

use palisade_spec::checker::{Checked, ClusterChecker, Execution, Feed, Slot};
use palisade_spec::invariants::{Check, Property};
use palisade_spec::raft::{
    Body, Entry, Index, Message, Node, NodeId, Output, Payload, Position, ReadRound, Snapshot, Stamp, Term,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stateright::Model;

use super::action::Action;
use super::action_parts::Turn;
use super::bounds::Bounds;
use super::replica::Stimulus;
use super::setup::World;
use super::state::State;
use crate::raft::{Proposals, Tape};

/// Number of walks, and of steps in a walk.
const WALKS: u64 = 60;
const STEPS: usize = 60;

/// A tape has no invariants of its own.
impl Checked for Tape {
    type Observer = ();

    fn observer(&self) {}

    fn size(&self) -> usize {
        self.0.len()
    }

    fn check_entry((): &mut (), _: &Execution<'_, Tape>, _: bool) -> Check {
        Ok(())
    }

    fn check_state(&self) -> Check {
        Ok(())
    }
}

fn slot(id: NodeId) -> Slot {
    Slot(id.0.into())
}

/// Compares a model with a checker: a cluster that the model steps, and that feeds the checker.
struct Comparison {
    world: World<Proposals>,
    state: State<Proposals>,
    checker: ClusterChecker<Tape>,
    nodes: BTreeMap<NodeId, Node<Tape>>,
}

impl Comparison {
    fn new() -> Comparison {
        let bounds = Bounds { terms: 3, log: 3, crashes: 2, snapshots: 1, ..Bounds::default() };
        let world = World::new(bounds, Tape::default(), Proposals::new(2, 1));
        let state = world.init_states().remove(0);
        let mut checker = ClusterChecker::new(Feed::of_everything());
        let mut nodes = BTreeMap::new();
        for replica in &state.servers {
            let id = replica.node.id();
            checker.recovered(slot(id), id, &replica.disk).expect("a blank disk is correct");
            nodes.insert(id, replica.node.clone());
        }
        Comparison { world, state, checker, nodes }
    }

    /// Takes an action in the model, and feeds the checker; returns both judgements.
    fn take(&mut self, action: &Action<Proposals>, next: State<Proposals>) -> [Option<Property>; 2] {
        let judged = self.feed(action, &next);
        self.state = next;
        [self.state.violation.map(|violation| violation.property), judged.err().map(|violation| violation.property)]
    }

    fn feed(&mut self, action: &Action<Proposals>, next: &State<Proposals>) -> Check {
        for turn in self.world.turns(&self.state, action) {
            self.feed_turn(&turn)?;
        }
        match action {
            Action::Crash(server) => self.recover(*server, next)?,
            Action::Snapshot(server) => {
                let snapshot = next.server(*server).disk.snapshot.clone();
                self.checker.snapshot_taken(slot(*server), snapshot)?;
            }
            _ => {}
        }
        for (id, node) in &self.nodes {
            let others = self.nodes.values().filter(|other| other.id() != *id);
            self.checker.compare(slot(*id), node, others)?;
            assert!(next.violation.is_some() || *node == next.server(*id).node, "both take the same steps");
        }
        Ok(())
    }

    fn recover(&mut self, server: NodeId, next: &State<Proposals>) -> Check {
        let after = next.server(server);
        self.nodes.insert(server, after.node.clone());
        self.checker.recovered(slot(server), server, &after.disk)
    }

    /// Executes the outputs as the model's driver does, up to a crash.
    fn feed_turn(&mut self, turn: &Turn<Proposals>) -> Check {
        let slot = slot(turn.server);
        for (position, node_step) in turn.node_steps.iter().enumerate() {
            let node = self.nodes.get_mut(&turn.server).expect("every server has a node");
            let mut outputs = Vec::new();
            node.step(node_step.input.clone(), &mut outputs);
            // Outputs that are not executed only send messages, which are lost.
            outputs.truncate(if node_step.done { usize::MAX } else { 0 });
            self.checker.stepped(slot, node, &node_step.input, &outputs)?;
            let crash = turn.crash.as_ref().filter(|crash| crash.input == position);
            outputs.truncate(crash.map_or(usize::MAX, |crash| crash.outputs));
            for output in outputs {
                match output {
                    Output::Persist(write) => self.checker.written(slot, &[write])?,
                    Output::Send(message) => self.checker.sent(slot, &message)?,
                    Output::SendSnapshot { to, term } => self.checker.offered(slot, to, term)?,
                    _ => {}
                }
            }
            if crash.is_some() {
                self.nodes.insert(turn.server, turn.after.node.clone());
                return self.checker.recovered(slot, turn.server, &turn.after.disk);
            }
        }
        Ok(())
    }

    /// A message that no server sent arrives.
    fn deliver(&mut self, message: Message<Tape>) -> [Option<Property>; 2] {
        let server = message.to;
        let made_up = self.world.caches.messages.intern(message, &self.world.caches.renamings);
        let stimulus = Stimulus::Deliver(made_up);
        self.state.network.push(made_up);
        let action = Action::Step { server, stimulus, again: false, fault: None };
        let next = self.world.next_state(&self.state, action.clone()).expect("the message changes the receiver");
        self.take(&action, next)
    }

    /// Walks until the cluster is in such a state.
    fn walk_until(&mut self, seed: u64, is_there: impl Fn(&State<Proposals>) -> bool) -> bool {
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..STEPS {
            if is_there(&self.state) {
                return true;
            }
            let mut steps = self.world.next_steps(&self.state);
            if steps.is_empty() {
                return false;
            }
            let (action, next) = steps.swap_remove(random.random_range(0..steps.len()));
            assert_eq!(self.take(&action, next), [None, None], "a correct run");
        }
        false
    }
}

/// Finds a walk to a state in which the message can be made up; both must then find the property
/// violated.
fn both_find(property: Property, made_up: impl Fn(&State<Proposals>) -> Option<Vec<Message<Tape>>>) {
    for seed in 0..100 * WALKS {
        let mut comparison = Comparison::new();
        if comparison.walk_until(seed, |state| made_up(state).is_some()) {
            let messages = made_up(&comparison.state).expect("it is there");
            let judged: Vec<_> = messages.into_iter().map(|message| comparison.deliver(message)).collect();
            let (last, before) = judged.split_last().expect("a message arrives");
            assert!(before.iter().all(|judged| *judged == [None, None]), "{judged:?}");
            assert_eq!(*last, [Some(property), Some(property)]);
            return;
        }
    }
    panic!("no walk leads to such a state");
}

fn servers(state: &State<Proposals>) -> impl Iterator<Item = &Node<Tape>> {
    state.servers.iter().map(|replica| &replica.node)
}

fn noop(term: Term, index: u64, payload: Payload<u8>) -> Entry<u8> {
    Entry { term, index: Index(index), stamp: Stamp(0), payload }
}

fn append(from: NodeId, to: NodeId, term: Term, entry: Entry<u8>, commit: u64) -> Message<Tape> {
    let body = Body::AppendEntries {
        prev: Position::default(),
        entries: vec![entry],
        commit: Index(commit),
        stamp: Stamp(0),
        round: ReadRound(0),
    };
    Message { from, to, term, body }
}

#[test]
fn both_judge_a_correct_run_correct() {
    let mut comparisons = Vec::new();
    for seed in 0..WALKS {
        comparisons.push(Comparison::new());
        comparisons.last_mut().expect("it was pushed").walk_until(seed, |_| false);
    }
    let sum = |count: fn(palisade_spec::checker::Counts) -> u64| -> u64 {
        comparisons.iter().map(|comparison| count(comparison.checker.counts())).sum()
    };
    let agreed = |comparison: &Comparison| comparison.checker.reference().map_or(0, |agreed| agreed.last().0);
    assert!(sum(|counts| counts.elections) > WALKS / 2 && sum(|counts| counts.restarts) > WALKS / 2);
    assert!(comparisons.iter().map(agreed).sum::<u64>() > WALKS / 4, "entries are committed");
    for comparison in &comparisons {
        assert_eq!(
            comparison.state.history.committed.len() as u64,
            agreed(comparison),
            "both agree on the same entries"
        );
    }
}

#[test]
fn both_find_a_second_leader() {
    both_find(Property::ElectionSafety, |state| {
        let leader = servers(state).find(|node| node.is_leader())?;
        let candidate = servers(state).find(|node| {
            matches!(node.role(), palisade_spec::raft::Role::Candidate { .. }) && node.term() == leader.term()
        })?;
        let from = servers(state).find(|node| ![leader.id(), candidate.id()].contains(&node.id()))?.id();
        let body = Body::RequestVoteReply { granted: true };
        Some(vec![Message { from, to: candidate.id(), term: candidate.term(), body }])
    });
}

#[test]
fn both_find_a_commit_without_a_majority() {
    both_find(Property::CommittedByMajority, |state| {
        let leader = servers(state).find(|node| node.is_leader() && node.commit() == Index(0))?;
        let without = |node: &&Node<Tape>| node.log().last().index == Index(0);
        let from = servers(state).find(without)?.id();
        if !servers(state).all(|node| node.id() == leader.id() || without(&node)) {
            return None;
        }
        let body = Body::AppendAccepted { matched: leader.log().last().index, round: ReadRound(0) };
        Some(vec![Message { from, to: leader.id(), term: leader.term(), body }])
    });
}

#[test]
fn both_find_another_entry_at_a_position() {
    both_find(Property::LogMatching, |state| {
        let leader = servers(state).find(|node| node.is_leader() && node.log().last().index > Index(0))?;
        let first = leader.log().get(Index(1)).filter(|entry| entry.term == leader.term())?;
        let to = servers(state).find(|node| node.log().last().index == Index(0) && node.term() == leader.term())?;
        let other = noop(first.term, 1, Payload::Command(99));
        Some(vec![append(leader.id(), to.id(), leader.term(), other, 0)])
    });
}

#[test]
fn both_find_another_committed_entry() {
    both_find(Property::StateMachineSafety, |state| {
        let committed = state.history.committed.get(&Index(1))?;
        let to = servers(state).find(|node| node.log().last().index == Index(0))?;
        let from = servers(state).find(|node| node.id() != to.id())?.id();
        let term = Term(servers(state).map(|node| node.term().0).max()? + 1).max(committed.term);
        Some(vec![append(from, to.id(), term, noop(term, 1, Payload::Noop), 1)])
    });
}

#[test]
fn both_find_another_state_in_a_snapshot() {
    both_find(Property::ReplicaAgreement, |state| {
        let committed = state.history.committed.get(&Index(1))?;
        let to = servers(state).find(|node| node.commit() == Index(0))?;
        let from = servers(state).find(|node| node.id() != to.id())?.id();
        let members = to.log().members_at(Index(0)).clone();
        let (last, stamp) = (committed.position(), committed.stamp);
        let snapshot = Snapshot { last, stamp, members, machine: Tape(vec![98]) };
        let body = Body::InstallSnapshot { snapshot: snapshot.into() };
        Some(vec![Message { from, to: to.id(), term: to.term().max(last.term), body }])
    });
}

/// A message lets a follower compare its log with the end of another leader's.
#[test]
fn both_find_an_acknowledgement_of_another_entry() {
    both_find(Property::AcknowledgementsMatchLog, |state| {
        let leader = servers(state).find(|node| node.is_leader())?;
        let term = leader.term();
        let differs = |node: &&Node<Tape>| {
            let last = node.log().last();
            node.term() == term && !node.is_leader() && leader.log().term_at(last.index) != Some(last.term)
        };
        let to = servers(state).filter(|node| node.log().last() != Position::default()).find(differs)?;
        let (stamp, round) = (Stamp(0), ReadRound(0));
        let body = Body::AppendEntries { prev: to.log().last(), entries: Vec::new(), commit: Index(0), stamp, round };
        Some(vec![Message { from: leader.id(), to: to.id(), term, body }])
    });
}

/// What only one of both can see: the model compares a restarted server with its memory before, the
/// checker its disk with what was reported durable.
#[test]
fn both_find_a_forgotten_vote() {
    for seed in 0..WALKS {
        let mut comparison = Comparison::new();
        let voted =
            |state: &State<Proposals>| state.crashes > 0 && servers(state).any(|node| node.hard_state().vote.is_some());
        if !comparison.walk_until(seed, voted) {
            continue;
        }
        let server = servers(&comparison.state).find(|node| node.hard_state().vote.is_some()).expect("one voted").id();
        let mut replica = (*comparison.state.server(server)).clone();
        replica.disk.hard.vote = None;
        comparison.state.servers[usize::from(server.number()) - 1] = comparison.world.caches.replica(replica);
        let next = comparison
            .world
            .next_state(&comparison.state, Action::Crash(server))
            .expect("the crash changes the server");
        let judged = comparison.take(&Action::Crash(server), next);
        assert_eq!(judged, [Some(Property::OneVotePerTerm), Some(Property::AcknowledgedWritesSurvive)]);
        return;
    }
    panic!("no walk leads to a vote");
}
