//! The driver: hands a node its inputs one after the other and executes the outputs in order, as
//! `palisade_spec::raft::interface` requires of every driver.
//!
//! The driver records every step, with every point at which the server could have crashed. The
//! record can be printed, and replayed with a live server.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use palisade_spec::checker::{check_input, transfer_clock};
use palisade_spec::invariants::{
    Property, Violation, node_is_sound, open_reads, persist_before_send, replies_name_entries, replies_name_requests,
};
use palisade_spec::raft::{
    Body, Durable, Index, Input, Message, Node, Output, Persist, RequestId, Role, Snapshot, StateMachine, Term,
};
use palisade_spec::require;

use super::bounds::{Bounds, Delivery, Elections};
use super::judge::{judge, transfers_end_in_time};
use super::replica::{Replica, Stimulus};

/// The id of every request that its node answers in the same step, if at all: one value, so that ids
/// do not distinguish states. The environment numbers the reads, which a leader remembers, from 0.
const AT_ONCE: RequestId = RequestId(1000);

/// Executes the outputs of nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    /// How the model holds elections.
    elections: Elections,
    /// Where servers can crash.
    crashes: Crashes,
}

/// Where servers can crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crashes {
    Nowhere,
    /// Before a write, and in the middle of one. With [`Delivery::AnyTime`], a crash at any other
    /// point is equivalent to one of these, or to one after the step: the messages that the crash
    /// leaves unsent are messages that never arrive.
    AtWrites,
    /// Before and after every output.
    Anywhere,
}

/// An input, and the node's outputs.
pub(super) struct NodeStep<S: StateMachine> {
    pub(super) input: Input<S>,
    pub(super) outputs: Vec<Output<S>>,
    /// Whether the driver executed the outputs. If it did not, they only send messages, and
    /// these are lost.
    pub(super) done: bool,
    /// The node after the input.
    after: Node<S>,
}

/// The result of a stimulus.
pub(super) struct StepResult<S: StateMachine> {
    /// The server after the step.
    pub(super) replica: Replica<S>,
    /// The inputs of the node. A node that panics gets no further inputs.
    pub(super) node_steps: Vec<NodeStep<S>>,
    /// The messages that the server sent.
    pub(super) sent: Vec<Message<S>>,
    /// The start of each run in `sent`. A run is a sequence of messages without another output
    /// between them, so the node could have sent them in another order.
    pub(super) runs: Vec<usize>,
    /// The answers to waiting clients.
    pub(super) answers: Vec<Answer<S>>,
    /// The crashes that could have happened in the step.
    pub(super) crashes: Vec<Crash<S>>,
    /// The first violation of the step.
    pub(super) violation: Option<Violation>,
}

/// An answer of a server to a waiting client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<S: StateMachine> {
    /// The server applied the entry that the client waits for.
    Applied(Applied<S>),
    /// The server can answer a read from its applied state.
    Ready(RequestId),
}

/// An entry that a server applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<S: StateMachine> {
    /// The entry's index.
    pub index: Index,
    /// The entry's term.
    pub term: Term,
    /// The outcome of the entry.
    pub outcome: S::Outcome,
}

/// A crash at one point in a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crash<S: StateMachine> {
    /// The input at which the server crashes, counted from 0.
    pub(super) input: usize,
    /// The number of outputs of that input that the driver had executed.
    pub(super) outputs: usize,
    /// How much of the next write was on disk: the number of entries, after the removal of
    /// conflicting entries; or `Some(0)` for a snapshot whose write did not yet remove the log that
    /// it replaces. `None` if nothing of the write was on disk.
    pub(super) entries: Option<usize>,
    /// The disk's contents.
    pub(super) disk: Durable<S>,
    /// The number of messages sent.
    pub(super) sent: usize,
    /// The number of answers given.
    pub(super) answers: usize,
    /// The node at that point, if it had given an answer: a client may have seen the answer.
    pub(super) node: Option<Node<S>>,
}

impl Driver {
    /// Creates a driver for servers within these bounds.
    pub(super) fn new(bounds: &Bounds) -> Driver {
        let crashes = match (bounds.crashes, bounds.delivery) {
            (0, _) => Crashes::Nowhere,
            (_, Delivery::AnyTime { .. }) => Crashes::AtWrites,
            (_, Delivery::Prompt { .. }) => Crashes::Anywhere,
        };
        Driver { elections: bounds.elections, crashes }
    }

    /// Returns a driver that records no crashes.
    pub(super) fn undisturbed(self) -> Driver {
        Driver { crashes: Crashes::Nowhere, ..self }
    }

    /// Hands `stimulus` to a server and executes the outputs.
    pub(super) fn take<S: StateMachine>(self, before: &Replica<S>, stimulus: Stimulus<S>) -> StepResult<S> {
        let mut feeder = NodeFeeder { node: before.node.clone(), node_steps: Vec::new() };
        // A failed assertion is how a node or its disk stops itself. A correct protocol never fails
        // one.
        let stepped = catch_unwind(AssertUnwindSafe(|| feeder.run(stimulus, self.elections)));
        let NodeFeeder { node, node_steps } = feeder;
        let mut result = StepResult {
            replica: Replica { node, ..before.clone() },
            node_steps: Vec::new(),
            sent: Vec::new(),
            runs: Vec::new(),
            answers: Vec::new(),
            crashes: Vec::new(),
            violation: None,
        };
        let executed = catch_unwind(AssertUnwindSafe(|| {
            for (position, node_step) in node_steps.iter().enumerate().filter(|(_, node_step)| node_step.done) {
                self.execute_outputs(&mut result, position, node_step);
            }
        }));
        result.node_steps = node_steps;
        result.violation = match stepped.and(executed) {
            Ok(()) => result.violation.take().or_else(|| judge(before, &result.replica)).or_else(|| {
                let nodes =
                    std::iter::once(&before.node).chain(result.node_steps.iter().map(|node_step| &node_step.after));
                let judged = |(before, node_step): (&Node<S>, &NodeStep<S>)| {
                    let was = (before.commit(), before.log().last().index);
                    replies_name_entries(was, &node_step.outputs, &node_step.after)?;
                    replies_name_requests(
                        &mut open_reads(before),
                        &node_step.input,
                        &node_step.outputs,
                        &node_step.after,
                    )?;
                    transfers_end_in_time(before, &node_step.outputs, &node_step.after)?;
                    check_input(transfer_clock(before), &node_step.input, &node_step.outputs, &node_step.after)
                };
                nodes.zip(&result.node_steps).map(judged).find_map(Result::err)
            }),
            Err(panic) => Some(panicked(panic)),
        };
        result
    }

    /// Restarts a server from its disk.
    ///
    /// # Errors
    /// If the node panics: no correct server could have written what the disk holds.
    pub(super) fn recover<S: StateMachine>(
        self,
        crashed: &Replica<S>,
        mut disk: Durable<S>,
    ) -> Result<Replica<S>, Violation> {
        disk.settle();
        let config = crashed.node.config().clone();
        let recovered = catch_unwind(AssertUnwindSafe(|| Node::recover(config, disk.clone())));
        let mut feeder = NodeFeeder { node: recovered.map_err(panicked)?, node_steps: Vec::new() };
        node_is_sound(&feeder.node)?;
        feeder.expire_redundant_timeout(self.elections);
        let node = feeder.node;
        Ok(Replica { node, disk, cut: crashed.cut })
    }

    fn execute_outputs<S: StateMachine>(self, result: &mut StepResult<S>, input: usize, node_step: &NodeStep<S>) {
        let mut goes_on = false;
        for (outputs, output) in node_step.outputs.iter().enumerate() {
            let says = matches!(output, Output::Send(_) | Output::SendSnapshot { .. });
            if says && !goes_on {
                result.runs.push(result.sent.len());
            }
            goes_on = says;
            match output {
                Output::Persist(write) => {
                    self.crash_at_write(result, (input, outputs), write);
                    result.replica.disk.apply(write);
                }
                Output::Send(message) => {
                    self.crash_elsewhere(result, (input, outputs), &node_step.after);
                    if result.violation.is_none() {
                        result.violation = persist_before_send(message, &result.replica.disk).err();
                    }
                    result.sent.push(message.clone());
                }
                Output::Applied { index, term, outcome, .. } => {
                    let disk = &result.replica.disk;
                    let is_written = *index <= disk.snapshot.last.index || disk.log.term_at(*index) == Some(*term);
                    if result.violation.is_none() {
                        let (name, id) = (Property::MemoryMatchesDisk, node_step.after.id());
                        let check =
                            require!(name, is_written, "server {id} applied entry {index} before it was written");
                        result.violation = check.err();
                    }
                    let applied = Applied { index: *index, term: *term, outcome: outcome.clone() };
                    result.answers.push(Answer::Applied(applied));
                }
                Output::ReadReady(id) => result.answers.push(Answer::Ready(*id)),
                Output::SendSnapshot { to, term } => {
                    self.crash_elsewhere(result, (input, outputs), &node_step.after);
                    let body = Body::InstallSnapshot { snapshot: Arc::new(result.replica.disk.snapshot.clone()) };
                    result.sent.push(Message { from: node_step.after.id(), to: *to, term: *term, body });
                }
                Output::Accepted { .. }
                | Output::Refused { .. }
                | Output::ChangeRefused { .. }
                | Output::TransferRefused { .. }
                | Output::ReadRefused { .. }
                | Output::ArmElectionTimer
                | Output::ArmHeartbeatTimer
                | Output::LostEntries { .. }
                | Output::Dropped { .. } => {}
            }
        }
        self.crash_elsewhere(result, (input, node_step.outputs.len()), &node_step.after);
    }

    /// Records a crash right before a write, and one after every proper prefix of its entries.
    fn crash_at_write<S: StateMachine>(
        self,
        result: &mut StepResult<S>,
        (input, outputs): (usize, usize),
        write: &Persist<S>,
    ) {
        if self.crashes == Crashes::Nowhere {
            return;
        }
        let (sent, answers) = (result.sent.len(), result.answers.len());
        let mut disk = result.replica.disk.clone();
        let mut crash = |entries, disk: &Durable<S>| {
            result.crashes.push(Crash { input, outputs, entries, disk: disk.clone(), sent, answers, node: None });
        };
        crash(None, &disk);
        if let Persist::Snapshot(snapshot) = write {
            disk.snapshot = Snapshot::clone(snapshot);
            crash(Some(0), &disk);
        }
        if let Persist::Entries(entries) = write {
            let length = disk.log.last();
            disk.log.truncate(entries[0].index);
            if disk.log.last() != length {
                crash(Some(0), &disk);
            }
            for (position, entry) in entries[..entries.len() - 1].iter().enumerate() {
                disk.log.push(entry.clone());
                crash(Some(position + 1), &disk);
            }
        }
    }

    /// Records a crash before a message is sent, or after the last output.
    fn crash_elsewhere<S: StateMachine>(
        self,
        result: &mut StepResult<S>,
        (input, outputs): (usize, usize),
        after: &Node<S>,
    ) {
        if self.crashes == Crashes::Anywhere {
            let (sent, answers) = (result.sent.len(), result.answers.len());
            // Every answer follows the write that it depends on (`execute_outputs` checks that).
            let (disk, node) = (result.replica.disk.clone(), (answers > 0).then(|| after.clone()));
            let crash = Crash { input, outputs, entries: None, disk, sent, answers, node };
            let alike = |other: &Crash<S>| {
                (other.sent, other.answers) == (sent, answers) && other.disk == crash.disk && other.node == crash.node
            };
            if !result.crashes.last().is_some_and(alike) {
                result.crashes.push(crash);
            }
        }
    }
}

/// A node, and the inputs that it was given.
struct NodeFeeder<S: StateMachine> {
    node: Node<S>,
    node_steps: Vec<NodeStep<S>>,
}

impl<S: StateMachine> NodeFeeder<S> {
    fn run(&mut self, stimulus: Stimulus<S>, elections: Elections) {
        match stimulus {
            Stimulus::Deliver(message) => {
                if elections == Elections::AtWill && matches!(message.body, Body::RequestVote { .. }) {
                    self.lose_contact();
                }
                self.give(Input::Receive((*message).clone()), true);
            }
            Stimulus::Campaign => self.campaign(),
            Stimulus::ElectionTimeout => self.give(Input::ElectionTimeout, true),
            Stimulus::HeartbeatTimeout => self.give(Input::HeartbeatTimeout, true),
            Stimulus::Propose(payloads) => {
                self.give(Input::Propose { id: AT_ONCE, payloads: (*payloads).clone() }, true);
            }
            Stimulus::Change(change) => self.give(Input::Change { id: AT_ONCE, change: (*change).clone() }, true),
            Stimulus::Read(id) => self.give(Input::Read(id), true),
            Stimulus::Transfer(to) => self.give(Input::Transfer { id: AT_ONCE, to }, true),
            Stimulus::Clock(milliseconds) => self.give(Input::ClockAdvanced(milliseconds), true),
            Stimulus::Compact(through) => self.give(Input::Compact(through), true),
        }
        self.expire_redundant_timeout(elections);
    }

    /// Lets the election timer of a server that waits for its leader run out, with
    /// `Elections::AtWill`.
    fn expire_redundant_timeout(&mut self, elections: Elections) {
        if elections == Elections::AtWill && timeout_is_redundant(&self.node) {
            self.give(Input::ElectionTimeout, false);
        }
    }

    fn campaign(&mut self) {
        self.lose_contact();
        self.give(Input::ElectionTimeout, false);
        let to = self.node.id();
        let voters: Vec<_> = self.node.members().voters().filter(|&voter| voter != to).collect();
        for from in voters {
            if matches!(self.node.role(), Role::PreCandidate { .. }) {
                let body = Body::PreVoteReply { granted: true };
                self.give(Input::Receive(Message { from, to, term: self.node.term(), body }), true);
            }
        }
    }

    /// Lets election timers run out until the server knows no leader: one for a follower, two for a
    /// leader whose followers answered. These inputs only send PreVote requests, which may be lost.
    fn lose_contact(&mut self) {
        while self.node.leader().is_some() {
            self.give(Input::ElectionTimeout, false);
        }
    }

    fn give(&mut self, input: Input<S>, done: bool) {
        let mut outputs = Vec::new();
        self.node.step(input.clone(), &mut outputs);
        let has_effect =
            |output: &Output<S>| matches!(output, Output::Persist(_) | Output::Applied { .. } | Output::ReadReady(_));
        assert!(done || !outputs.iter().any(has_effect), "a driver may skip only messages");
        self.node_steps.push(NodeStep { input, outputs, done, after: self.node.clone() });
    }
}

/// Whether an election timeout would change only state that makes no difference. With
/// [`Elections::AtWill`] it makes no difference whether a server that is neither leader nor
/// candidate hears from a leader, nor which followers answered a leader lately: a RequestVote
/// arrives only after the timers have run out. So the model lets them run out at once, which gives
/// fewer states.
pub(crate) fn timeout_is_redundant<S: StateMachine>(node: &Node<S>) -> bool {
    match node.role() {
        Role::Follower { .. } => true,
        Role::PreCandidate { .. } | Role::Candidate { .. } => false,
        Role::Leader(leadership) => {
            let active = |voter| leadership.progress.get(&voter).is_some_and(|progress| progress.active);
            let answered = leadership.progress.values().any(|progress| progress.active);
            answered && node.members().is_majority(|voter| voter == node.id() || active(voter))
        }
    }
}

/// A node's panic, as a violation of its assertions.
pub fn panicked(panic: Box<dyn Any + Send>) -> Violation {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    Violation::new(Property::Assertions, format_args!("{}", text.unwrap_or("a node stopped itself")))
}
