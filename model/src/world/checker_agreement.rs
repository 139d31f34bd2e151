//! The model's view of the properties and the spec's `ClusterChecker` agree.
//!
//! The models check the functions of `spec::invariants` over states that they intern; the checker
//! is fed events. These tests walk through a model at random and feed each step to both. Then a
//! message that no server sent reaches a server of the same cluster, or a server goes back to an
//! earlier state: both must find the same property violated. There are three clusters: of consensus
//! alone, of changes of the members, and of reads.
//!
//! What an entry does to a lock table needs no such test: the models and the checker judge it by the
//! same function ([`palisade_spec::checker::check_lock_entry`]), and the spec's tests show it an entry that
//! violates each property of the table.

use std::collections::BTreeMap;

use palisade_spec::checker::{Checked, ClusterChecker, Counts, Execution, Feed, Slot};
use palisade_spec::invariants::{Check, Property};
use palisade_spec::raft::{
    Body, Entry, Index, Input, Members, Message, Node, NodeId, Output, Payload, Position, ReadRound, Role, Snapshot,
    Stamp, Term,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stateright::Model;

use super::action::Action;
use super::action_parts::Turn;
use super::bounds::Bounds;
use super::environment::Environment;
use super::intern::Ref;
use super::judge::judge;
use super::replica::{Replica, Stimulus};
use super::setup::World;
use super::state::State;
use crate::layers::EACH;
use crate::membership::Operators;
use crate::raft::{Proposals, Tape};
use crate::reads::Readers;

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

fn consensus() -> World<Proposals> {
    let bounds = Bounds { terms: 3, log: 3, crashes: 2, snapshots: 1, ..Bounds::default() };
    World::new(bounds, Tape::default(), Proposals::new(2, 1))
}

fn membership() -> World<Operators> {
    let bounds = Bounds { joiners: 1, terms: 3, log: 5, crashes: 2, snapshots: 1, ..Bounds::default() };
    World::new(bounds, Tape::default(), Operators::new(EACH, 1, 5))
}

fn reads() -> World<Readers> {
    let bounds = Bounds { terms: 3, log: 3, crashes: 2, snapshots: 1, ..Bounds::default() };
    World::new(bounds, Tape::default(), Readers::new(3, 1, 3))
}

/// The property that the model finds violated, and the one that the checker finds.
type Judged = [Option<Property>; 2];

/// Compares a model with a checker: a cluster that the model steps, and that feeds the checker.
struct Comparison<E: Environment<Machine = Tape>> {
    world: World<E>,
    state: State<E>,
    checker: ClusterChecker<Tape>,
    nodes: BTreeMap<NodeId, Node<Tape>>,
}

impl<E: Environment<Machine = Tape>> Comparison<E> {
    fn new(world: World<E>) -> Comparison<E> {
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
    fn take(&mut self, action: &Action<E>, next: State<E>) -> Judged {
        let judged = self.feed(action, &next);
        self.state = next;
        [self.state.violation.map(|violation| violation.property), judged.err().map(|violation| violation.property)]
    }

    fn feed(&mut self, action: &Action<E>, next: &State<E>) -> Check {
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

    fn recover(&mut self, server: NodeId, next: &State<E>) -> Check {
        let after = next.server(server);
        self.nodes.insert(server, after.node.clone());
        self.checker.recovered(slot(server), server, &after.disk)
    }

    /// Executes the outputs as the model's driver does, up to a crash.
    fn feed_turn(&mut self, turn: &Turn<E>) -> Check {
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
    fn deliver(&mut self, message: Message<Tape>) -> Judged {
        let server = message.to;
        let made_up = self.world.caches.messages.intern(message, &self.world.caches.renamings);
        let stimulus = Stimulus::Deliver(made_up);
        self.state.network.push(made_up);
        let action = Action::Step { server, stimulus, again: false, fault: None };
        let next = self.world.next_state(&self.state, action.clone()).expect("the message changes the receiver");
        self.take(&action, next)
    }

    /// A server's step leads back to a state that it has had before.
    fn go_back(&mut self, earlier: Ref<Replica<Tape>>) -> Judged {
        let id = earlier.node.id();
        let step = judge(&self.state.server(id), &earlier);
        self.world.replace_server(&mut self.state, id, earlier, &[]);
        let modelled = step.as_ref().or(self.state.violation).map(|violation| violation.property);
        let judged = self.checker.stepped(slot(id), &earlier.node, &Input::HeartbeatTimeout, &[]);
        [modelled, judged.err().map(|violation| violation.property)]
    }

    /// Takes something from a server's disk, unknown to the running node.
    fn change_disk(&mut self, server: NodeId, change: impl Fn(&mut Replica<Tape>)) {
        let mut replica = (*self.state.server(server)).clone();
        change(&mut replica);
        self.checker.disk_changed(slot(server), replica.disk.clone());
        self.state.servers[usize::from(server.number()) - 1] = self.world.caches.replica(replica);
    }

    /// Walks until the cluster is in such a state.
    fn walk_until(&mut self, seed: u64, mut is_there: impl FnMut(&State<E>) -> bool) -> bool {
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

/// Finds a walk to a state in which the messages can be made up; both must then find the property
/// violated by the last of them.
fn both_find<E: Environment<Machine = Tape>>(
    property: Property,
    world: fn() -> World<E>,
    made_up: impl Fn(&State<E>) -> Option<Vec<Message<Tape>>>,
) {
    for seed in 0..100 * WALKS {
        let mut comparison = Comparison::new(world());
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

/// Finds a walk in which a server has had such a state before its present one; both must find the
/// property violated if its next step leads back to that.
fn both_find_a_step_back(property: Property, is_before: impl Fn(&Node<Tape>, &Node<Tape>) -> bool) {
    for seed in 0..100 * WALKS {
        let mut comparison = Comparison::new(consensus());
        let (mut past, mut found) = (Vec::<Ref<Replica<Tape>>>::new(), None);
        comparison.walk_until(seed, |state| {
            let goes_back = |now: &Ref<Replica<Tape>>| {
                past.iter().find(|then| then.node.id() == now.node.id() && is_before(&then.node, &now.node)).copied()
            };
            found = state.servers.iter().find_map(goes_back);
            past.extend(&state.servers);
            found.is_some()
        });
        if let Some(earlier) = found {
            assert_eq!(comparison.go_back(earlier), [Some(property), Some(property)]);
            return;
        }
    }
    panic!("no walk leads to such a state");
}

fn servers<E: Environment<Machine = Tape>>(state: &State<E>) -> impl Iterator<Item = &Node<Tape>> {
    state.servers.iter().map(|replica| &replica.node)
}

/// A made-up vote for a server.
fn vote(from: NodeId, to: &Node<Tape>) -> Message<Tape> {
    Message { from, to: to.id(), term: to.term(), body: Body::RequestVoteReply { granted: true } }
}

fn is_candidate(node: &&Node<Tape>) -> bool {
    matches!(node.role(), Role::Candidate { .. })
}

/// A made-up snapshot with the effect of the first entry, for a server that has committed nothing.
fn first_snapshot<E: Environment<Machine = Tape>>(state: &State<E>) -> Option<(Message<Tape>, Snapshot<Tape>)> {
    let committed = state.history.committed.get(&Index(1))?;
    let is_behind = |node: &&Node<Tape>| node.commit() == Index(0) && node.members().ids().next().is_some();
    let to = servers(state).find(is_behind)?;
    let from = servers(state).find(|node| node.id() != to.id())?.id();
    let members = to.log().members_at(Index(0)).clone();
    let (last, stamp, machine) = (committed.position(), committed.stamp, state.history.machines[1].clone());
    let term = to.term().max(last.term);
    let message = Message { from, to: to.id(), term, body: Body::TimeoutNow };
    Some((message, Snapshot { last, stamp, members, machine }))
}

fn offer((message, snapshot): (Message<Tape>, Snapshot<Tape>)) -> Vec<Message<Tape>> {
    vec![Message { body: Body::InstallSnapshot { snapshot: snapshot.into() }, ..message }]
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

/// Walks; both must judge every step correct, and agree on the same entries.
fn correct_walks<E: Environment<Machine = Tape>>(world: fn() -> World<E>) -> Vec<Comparison<E>> {
    let walk = |seed| {
        let mut comparison = Comparison::new(world());
        comparison.walk_until(seed, |_| false);
        let agreed = comparison.checker.reference().map_or(0, |agreed| agreed.last().0);
        assert_eq!(comparison.state.history.committed.len() as u64, agreed, "both agree on the same entries");
        comparison
    };
    let comparisons: Vec<_> = (0..WALKS).map(walk).collect();
    let sum = |count: fn(Counts) -> u64| comparisons.iter().map(|walk| count(walk.checker.counts())).sum::<u64>();
    assert!(sum(|counts| counts.elections) > WALKS / 2 && sum(|counts| counts.restarts) > WALKS / 2);
    assert!(sum(|counts| counts.commits) > WALKS / 4, "entries are committed");
    comparisons
}

#[test]
fn both_judge_a_correct_run_correct() {
    correct_walks(consensus);
}

#[test]
fn both_judge_changes_of_members_correct() {
    let walks = correct_walks(membership);
    let changes: u64 = walks.iter().map(|walk| walk.checker.counts().changes).sum();
    let is_committed = |walk: &&Comparison<Operators>| {
        walk.state.history.committed.values().any(|entry| matches!(entry.payload, Payload::Members(_)))
    };
    let committed = walks.iter().filter(is_committed).count();
    assert!(changes > 20 && committed > 2, "{changes} changes, {committed} walks with a committed one");
}

#[test]
fn both_judge_reads_correct() {
    let walks = correct_walks(reads);
    let answered = walks.iter().filter(|walk| walk.state.environment.open.contains(&None)).count();
    assert!(answered > 2, "{answered} walks with an answered read");
}

#[test]
fn both_find_a_second_leader() {
    both_find(Property::ElectionSafety, consensus, |state| {
        let leader = servers(state).find(|node| node.is_leader())?;
        let candidate = servers(state).filter(is_candidate).find(|node| node.term() == leader.term())?;
        let from = servers(state).find(|node| ![leader.id(), candidate.id()].contains(&node.id()))?.id();
        Some(vec![vote(from, candidate)])
    });
}

#[test]
fn both_find_a_commit_without_a_majority() {
    both_find(Property::CommittedByMajority, consensus, |state| {
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
    both_find(Property::LogMatching, consensus, |state| {
        let leader = servers(state).find(|node| node.is_leader() && node.log().last().index > Index(0))?;
        let first = leader.log().get(Index(1)).filter(|entry| entry.term == leader.term())?;
        let to = servers(state).find(|node| node.log().last().index == Index(0) && node.term() == leader.term())?;
        let other = noop(first.term, 1, Payload::Command(99));
        Some(vec![append(leader.id(), to.id(), leader.term(), other, 0)])
    });
}

#[test]
fn both_find_another_committed_entry() {
    both_find(Property::StateMachineSafety, consensus, |state| {
        let committed = state.history.committed.get(&Index(1))?;
        let to = servers(state).find(|node| node.log().last().index == Index(0))?;
        let from = servers(state).find(|node| node.id() != to.id())?.id();
        let term = Term(servers(state).map(|node| node.term().0).max()? + 1).max(committed.term);
        Some(vec![append(from, to.id(), term, noop(term, 1, Payload::Noop), 1)])
    });
}

#[test]
fn both_find_another_state_in_a_snapshot() {
    both_find(Property::ReplicaAgreement, consensus, |state| {
        let (message, snapshot) = first_snapshot(state)?;
        Some(offer((message, Snapshot { machine: Tape(vec![98]), ..snapshot })))
    });
}

#[test]
fn both_find_another_entry_in_a_snapshot() {
    both_find(Property::SnapshotsMatchLog, consensus, |state| {
        let (message, snapshot) = first_snapshot(state)?;
        Some(offer((message, Snapshot { stamp: Stamp(snapshot.stamp.0 + 1), ..snapshot })))
    });
}

#[test]
fn both_find_other_members_in_a_snapshot() {
    both_find(Property::MembersSurviveCompaction, membership, |state| {
        let (message, snapshot) = first_snapshot(state)?;
        let members = Members::of([1, 2, 4].map(NodeId)).into();
        Some(offer((message, Snapshot { members, ..snapshot })))
    });
}

/// A made-up leader of a later term changes the members of a follower.
fn changes(state: &State<Operators>, changes: &[&[u32]]) -> Option<Vec<Message<Tape>>> {
    let to = servers(state).find(|node| !node.is_leader() && node.members().ids().next().is_some())?;
    let from = servers(state).find(|node| node.id() != to.id())?.id();
    let term = Term(servers(state).map(|node| node.term().0).max()? + 1);
    let (prev, stamp) = (to.log().last(), to.log().last_stamp());
    let payload = |ids: &&[u32]| Payload::Members(Members::of(ids.iter().copied().map(NodeId)).into());
    let entries =
        (prev.index.0 + 1..).zip(changes).map(|(index, ids)| Entry { stamp, ..noop(term, index, payload(ids)) });
    let body = Body::AppendEntries { prev, entries: entries.collect(), commit: Index(0), stamp, round: ReadRound(0) };
    Some(vec![Message { from, to: to.id(), term, body }])
}

#[test]
fn both_find_a_second_change_of_the_members() {
    both_find(Property::OneChangeAtATime, membership, |state| changes(state, &[&[1, 2, 3, 4], &[1, 2, 3, 4]]));
}

#[test]
fn both_find_members_that_forget_a_removed_one() {
    both_find(Property::MembersFollowLog, membership, |state| changes(state, &[&[1, 2, 4]]));
}

#[test]
fn both_find_a_leader_without_a_majority() {
    both_find(Property::ElectedByMajority, membership, |state| {
        let is_first = |node: &&Node<Tape>| !state.history.leaders.contains_key(&node.term());
        let candidate = servers(state).filter(is_candidate).find(is_first)?;
        if !state.history.committed.is_empty() {
            return None;
        }
        let has_not_voted = |node: &&Node<Tape>| {
            candidate.members().is_voter(node.id())
                && (node.term() < candidate.term() || node.hard_state().vote != Some(candidate.id()))
        };
        Some(vec![vote(servers(state).find(has_not_voted)?.id(), candidate)])
    });
}

/// A voter gives its vote to a candidate that claims a longer log.
#[test]
fn both_find_a_leader_without_a_committed_entry() {
    both_find(Property::LeaderCompleteness, consensus, |state| {
        // The network has room for the voter's true answer.
        let committed_in = *state.history.committed_in.get(&Index(1)).filter(|_| state.network.len() < 3)?;
        let lacks = |node: &&Node<Tape>| {
            node.log().last().index == Index(0)
                && node.term() > committed_in
                && !state.history.leaders.contains_key(&node.term())
        };
        let candidate = servers(state).filter(is_candidate).find(lacks)?;
        let from = servers(state).find(|node| node.term() < candidate.term())?.id();
        let last = Position { term: committed_in, index: Index(9) };
        let body = Body::RequestVote { last, transfer: false };
        let request = Message { from: candidate.id(), to: from, term: candidate.term(), body };
        Some(vec![request, vote(from, candidate)])
    });
}

#[test]
fn both_find_a_promise_that_is_not_durable() {
    for seed in 0..WALKS {
        let mut comparison = Comparison::new(consensus());
        let voted = |node: &&Node<Tape>| !node.is_leader() && node.hard_state().vote.is_some_and(|id| id != node.id());
        if !comparison.walk_until(seed, |state| servers(state).any(|node| voted(&node))) {
            continue;
        }
        let server = servers(&comparison.state).find(voted).expect("one voted").clone();
        comparison.change_disk(server.id(), |replica| replica.disk.hard.vote = None);
        let from = server.hard_state().vote.expect("it voted");
        let body = Body::RequestVote { last: Position { term: server.term(), index: Index(9) }, transfer: false };
        let judged = comparison.deliver(Message { from, to: server.id(), term: server.term(), body });
        assert_eq!(judged, [Some(Property::PersistBeforeSend); 2]);
        return;
    }
    panic!("no walk leads to a vote");
}

#[test]
fn both_find_a_clock_that_goes_back() {
    both_find_a_step_back(Property::ClockMonotonicity, |then, now| {
        then.hard_state() == now.hard_state()
            && then.log() == now.log()
            && then.commit() == now.commit()
            && then.clock() < now.clock()
    });
}

#[test]
fn both_find_a_commit_that_goes_back() {
    both_find_a_step_back(Property::CommitOnlyGrows, |then, now| {
        then.hard_state() == now.hard_state() && then.log() == now.log() && then.commit() < now.commit()
    });
}

#[test]
fn both_find_a_term_that_goes_back() {
    both_find_a_step_back(Property::TermsOnlyGrow, |then, now| {
        then.term() < now.term() && then.log() == now.log() && then.commit() == now.commit()
    });
}

/// A message lets a follower compare its log with the end of another leader's.
#[test]
fn both_find_an_acknowledgement_of_another_entry() {
    both_find(Property::AcknowledgementsMatchLog, consensus, |state| {
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
        let mut comparison = Comparison::new(consensus());
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
