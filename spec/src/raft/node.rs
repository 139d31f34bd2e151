//! The node: its state, its start, and the dispatch of inputs.
//!
//! Methods come in three kinds: getters; `on_*`, one per input or message; and the transitions they
//! share. The rules are in [`election`](super::election), [`replication`](super::replication),
//! [`commit`](super::commit), [`snapshot`](super::snapshot), [`membership`](super::membership),
//! [`read`](super::read) and [`transfer`](super::transfer).

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::replication::AppendMeta;
use super::{
    Body, Config, DropReason, Durable, HardState, Hint, Index, Input, Log, MAX_TERM_ADVANCE, Message, NodeId, Output,
    Persist, Position, ReadRound, Role, Stamp, StateMachine, Term,
};

/// One server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub struct Node<S: StateMachine> {
    pub(super) config: Arc<Config>,
    pub(super) hard: HardState,
    pub(super) role: Role,
    pub(super) log: Log<S::Command>,
    /// The highest index known to be committed; everything up to it is applied to `machine`.
    pub(super) commit: Index,
    pub(super) machine: S,
    /// Cluster time, as far as the node knows; never behind the log's last stamp.
    pub(super) clock: Stamp,
}

impl<S: StateMachine> Node<S> {
    /// Creates the node that `durable` describes: its first start on a blank disk, otherwise a
    /// restart after a crash. The driver starts the election timer.
    pub fn recover(config: Config, durable: Durable<S>) -> Node<S> {
        let last = durable.snapshot.last;
        assert_eq!(durable.log.term_at(last.index), Some(last.term), "the log goes on from the snapshot");
        Node {
            config: Arc::new(config),
            hard: durable.hard,
            role: Role::Follower { leader: None },
            commit: durable.snapshot.last.index,
            machine: durable.snapshot.machine,
            clock: durable.log.last_stamp(),
            log: durable.log,
        }
    }

    /// Processes one input and appends the requested outputs to `out`. Deterministic and
    /// infallible: see the [contract](super::interface).
    pub fn step(&mut self, input: Input<S>, out: &mut Vec<Output<S>>) {
        match input {
            Input::Receive(message) => self.on_message(message, out),
            Input::Propose { id, payloads } => self.on_propose(id, payloads, out),
            Input::Read(id) => self.on_read(id, out),
            Input::Change { id, change } => self.on_change(id, &change, out),
            Input::Transfer { id, to } => self.on_transfer(id, to, out),
            Input::ElectionTimeout => self.on_election_timeout(out),
            Input::HeartbeatTimeout => self.on_heartbeat_timeout(out),
            Input::ClockAdvanced(milliseconds) => self.on_clock(milliseconds, out),
            Input::Compact(through) => self.on_compact(through, out),
        }
        debug_assert_eq!(crate::invariants::node_is_sound(self), Ok(()), "after a step");
    }

    /// The node's identity.
    pub fn id(&self) -> NodeId {
        self.config.id
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its term and vote.
    pub fn hard_state(&self) -> HardState {
        self.hard
    }

    /// Its term.
    pub fn term(&self) -> Term {
        self.hard.term
    }

    /// Its role.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Whether it leads its term.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// The leader that the node knows of: itself, or the one that it hears from.
    pub fn leader(&self) -> Option<NodeId> {
        match self.role {
            Role::Leader(_) => Some(self.id()),
            Role::Follower { leader } => leader,
            Role::PreCandidate { .. } | Role::Candidate { .. } => None,
        }
    }

    /// Its log.
    pub fn log(&self) -> &Log<S::Command> {
        &self.log
    }

    /// The highest index known to be committed. The node has applied everything up to it.
    pub fn commit(&self) -> Index {
        self.commit
    }

    /// The state machine after the last committed entry.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// Cluster time, as far as the node knows.
    pub fn clock(&self) -> Stamp {
        self.clock
    }

    /// Dispatches a message by term (figure 3.1, "All Servers"), then by kind.
    fn on_message(&mut self, message: Message<S>, out: &mut Vec<Output<S>>) {
        let in_range = message.in_range() && self.is_plausible_term(message.term);
        let Message { from, to, term, body } = message;
        // Members that are not in this node's log yet may lead it or ask for its vote (§4.1): the
        // configuration of the server that counts the votes decides.
        if to != self.id() || from == self.id() {
            return out.push(Output::Dropped { from, reason: DropReason::UnknownPeer });
        }
        if !in_range {
            return out.push(Output::Dropped { from, reason: DropReason::Malformed });
        }
        let asks_for_vote = matches!(body, Body::PreVote { .. } | Body::RequestVote { transfer: false, .. });
        if asks_for_vote && self.leader().is_some() {
            return out.push(Output::Dropped { from, reason: DropReason::LeaderKnown });
        }
        if term < self.term() {
            return self.on_stale(from, body, out);
        }
        if term > self.term() {
            self.adopt_term(term, out);
        }
        match body {
            Body::PreVote { last } => self.on_pre_vote(from, last, out),
            Body::PreVoteReply { granted } => self.on_pre_vote_reply(from, granted, out),
            Body::RequestVote { last, .. } => self.on_request_vote(from, last, out),
            Body::RequestVoteReply { granted } => self.on_request_vote_reply(from, granted, out),
            Body::AppendEntries { prev, entries, commit, stamp, round } => {
                self.on_append_entries(from, prev, entries, AppendMeta { commit, stamp, round }, out);
            }
            Body::AppendAccepted { matched, round } => self.on_append_accepted(from, matched, round, out),
            Body::AppendRejected { prev, hint, round } => self.on_append_rejected(from, prev, hint, round, out),
            Body::TimeoutNow => self.on_timeout_now(from, out),
            Body::InstallSnapshot { snapshot } => self.on_install_snapshot(from, snapshot, out),
        }
    }

    /// Whether a message may carry this term: a term far ahead only if this node has no history.
    fn is_plausible_term(&self, term: Term) -> bool {
        self.term() == Term(0) || term.0 <= self.term().0.saturating_add(MAX_TERM_ADVANCE)
    }

    /// Handles a message of an earlier term. A request is rejected, so that its sender learns the
    /// current term and steps down; a reply is dropped.
    fn on_stale(&mut self, from: NodeId, body: Body<S>, out: &mut Vec<Output<S>>) {
        match body {
            Body::PreVote { .. } => self.send(from, Body::PreVoteReply { granted: false }, out),
            Body::RequestVote { .. } => self.send(from, Body::RequestVoteReply { granted: false }, out),
            Body::AppendEntries { prev: last, .. } => self.reject_stale_leader(from, last, out),
            Body::InstallSnapshot { snapshot } => self.reject_stale_leader(from, snapshot.last, out),
            Body::PreVoteReply { .. }
            | Body::RequestVoteReply { .. }
            | Body::TimeoutNow
            | Body::AppendAccepted { .. }
            | Body::AppendRejected { .. } => out.push(Output::Dropped { from, reason: DropReason::Stale }),
        }
    }

    /// Tells the leader of an earlier term the current term. The old leader ignores the hint.
    fn reject_stale_leader(&self, leader: NodeId, prev: Position, out: &mut Vec<Output<S>>) {
        let hint = Hint::Short { next: self.log.last().index.next() };
        self.send(leader, Body::AppendRejected { prev: prev.index, hint, round: ReadRound::default() }, out);
    }

    /// Adopts a later term: the node becomes a follower that has not voted.
    fn adopt_term(&mut self, term: Term, out: &mut Vec<Output<S>>) {
        debug_assert!(term > self.term());
        self.set_hard_state(HardState { term, vote: None }, out);
        self.role = Role::Follower { leader: None };
    }

    /// Changes term or vote, durably before any later output. Two consecutive changes are one
    /// write.
    pub(super) fn set_hard_state(&mut self, hard: HardState, out: &mut Vec<Output<S>>) {
        if self.hard == hard {
            return;
        }
        self.hard = hard;
        if let Some(Output::Persist(Persist::HardState(last))) = out.last_mut() {
            *last = hard;
        } else {
            out.push(Output::Persist(Persist::HardState(hard)));
        }
    }

    /// Sends `body` to `to`, in this node's term.
    pub(super) fn send(&self, to: NodeId, body: Body<S>, out: &mut Vec<Output<S>>) {
        out.push(Output::Send(Message { from: self.id(), to, term: self.term(), body }));
    }
}
