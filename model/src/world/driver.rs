//! The driver: hands a node its inputs one after the other and carries out the outputs in order, as
//! `palisade_spec::raft::interface` requires of every driver.
//!
//! The driver records every step, with every point at which the server could have crashed. The
//! record can be printed, and replayed with a live server.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use palisade_spec::invariants::{Violation, node_is_sound};
use palisade_spec::raft::{
    Body, Durable, Index, Input, Message, Node, Output, Persist, ReadId, Role, Snapshot, StateMachine, Term,
};

use super::bounds::{Bounds, Delivery, Elections};
use super::inputs::judge_input;
use super::judge::{answers_name_entries, judge, vote_is_written};
use super::replica::{Replica, Stimulus};

/// Carries out the outputs of nodes.
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
pub(super) struct Fed<S: StateMachine> {
    pub(super) input: Input<S>,
    pub(super) outputs: Vec<Output<S>>,
    /// Whether the driver carried out the outputs. If it did not, they only send messages, and
    /// these are lost.
    pub(super) done: bool,
    /// The node after the input.
    after: Node<S>,
}

/// The result of a stimulus.
pub(super) struct Taken<S: StateMachine> {
    /// The server after the step.
    pub(super) replica: Replica<S>,
    /// The inputs of the node. A node that panics gets no further inputs.
    pub(super) fed: Vec<Fed<S>>,
    /// The messages that the server sent.
    pub(super) said: Vec<Message<S>>,
    /// The start of each run in `said`. A run is a sequence of messages without another output
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
    Ready(ReadId),
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
    /// The number of outputs of that input that the driver had carried out.
    pub(super) outputs: usize,
    /// How much of the next write was on disk: the number of entries, after the removal of
    /// conflicting entries; or `Some(0)` for a snapshot whose write did not yet remove the log that
    /// it replaces. `None` if nothing of the write was on disk.
    pub(super) entries: Option<usize>,
    /// The disk's contents.
    pub(super) disk: Durable<S>,
    /// The number of messages sent.
    pub(super) said: usize,
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

    /// Hands `stimulus` to a server and carries out the outputs.
    pub(super) fn take<S: StateMachine>(self, before: &Replica<S>, stimulus: Stimulus<S>) -> Taken<S> {
        let mut feeder = Feeder { node: before.node.clone(), fed: Vec::new() };
        // A failed assertion is how a node or its disk stops itself. A correct protocol never fails
        // one.
        let stepped = catch_unwind(AssertUnwindSafe(|| feeder.run(stimulus, self.elections)));
        let Feeder { node, fed } = feeder;
        let mut taken = Taken {
            replica: Replica { node, ..before.clone() },
            fed: Vec::new(),
            said: Vec::new(),
            runs: Vec::new(),
            answers: Vec::new(),
            crashes: Vec::new(),
            violation: None,
        };
        let carried_out = catch_unwind(AssertUnwindSafe(|| {
            for (place, fed) in fed.iter().enumerate().filter(|(_, fed)| fed.done) {
                self.carry_out(&mut taken, place, fed);
            }
        }));
        taken.fed = fed;
        taken.violation = match stepped.and(carried_out) {
            Ok(()) => taken.violation.take().or_else(|| judge(before, &taken.replica)).or_else(|| {
                let nodes = std::iter::once(&before.node).chain(taken.fed.iter().map(|fed| &fed.after));
                let judged = |(before, fed): (&Node<S>, &Fed<S>)| {
                    answers_name_entries(before, &fed.outputs, &fed.after)?;
                    judge_input(before, &fed.input, &fed.outputs, &fed.after)
                };
                nodes.zip(&taken.fed).map(judged).find_map(Result::err)
            }),
            Err(panic) => Some(Violation { property: "assertions", detail: panic_text(panic.as_ref()) }),
        };
        taken
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
        let stopped =
            |panic: Box<dyn Any + Send>| Violation { property: "assertions", detail: panic_text(panic.as_ref()) };
        let mut feeder = Feeder { node: recovered.map_err(stopped)?, fed: Vec::new() };
        node_is_sound(&feeder.node)?;
        feeder.stop_waiting(self.elections);
        let node = feeder.node;
        Ok(Replica { node, disk, cut: crashed.cut })
    }

    fn carry_out<S: StateMachine>(self, taken: &mut Taken<S>, input: usize, fed: &Fed<S>) {
        let mut goes_on = false;
        for (outputs, output) in fed.outputs.iter().enumerate() {
            let says = matches!(output, Output::Send(_) | Output::SendSnapshot { .. });
            if says && !goes_on {
                taken.runs.push(taken.said.len());
            }
            goes_on = says;
            match output {
                Output::Persist(write) => {
                    self.crash_at_write(taken, (input, outputs), write);
                    taken.replica.disk.apply(write);
                }
                Output::Send(message) => {
                    self.crash_elsewhere(taken, (input, outputs), &fed.after);
                    if taken.violation.is_none() {
                        taken.violation = vote_is_written(message, &fed.after, &taken.replica.disk).err();
                    }
                    taken.said.push(message.clone());
                }
                Output::Applied { index, term, outcome, .. } => {
                    let disk = &taken.replica.disk;
                    let is_written = *index <= disk.snapshot.last.index || disk.log.term_at(*index) == Some(*term);
                    if !is_written && taken.violation.is_none() {
                        let detail = format!("server {} applied entry {index} before it was written", fed.after.id());
                        taken.violation = Some(Violation { property: "memory matches disk", detail });
                    }
                    let applied = Applied { index: *index, term: *term, outcome: outcome.clone() };
                    taken.answers.push(Answer::Applied(applied));
                }
                Output::ReadReady(id) => taken.answers.push(Answer::Ready(*id)),
                Output::SendSnapshot { to, term } => {
                    self.crash_elsewhere(taken, (input, outputs), &fed.after);
                    let body = Body::InstallSnapshot { snapshot: Arc::new(taken.replica.disk.snapshot.clone()) };
                    taken.said.push(Message { from: fed.after.id(), to: *to, term: *term, body });
                }
                Output::Accepted { .. }
                | Output::Refused { .. }
                | Output::ChangeRefused(_)
                | Output::TransferRefused { .. }
                | Output::ReadRefused { .. }
                | Output::ArmElectionTimer
                | Output::ArmHeartbeatTimer
                | Output::LostEntries { .. }
                | Output::Dropped { .. } => {}
            }
        }
        self.crash_elsewhere(taken, (input, fed.outputs.len()), &fed.after);
    }

    /// Records a crash right before a write, and one after every proper prefix of its entries.
    fn crash_at_write<S: StateMachine>(
        self,
        taken: &mut Taken<S>,
        (input, outputs): (usize, usize),
        write: &Persist<S>,
    ) {
        if self.crashes == Crashes::Nowhere {
            return;
        }
        let (said, answers) = (taken.said.len(), taken.answers.len());
        let mut disk = taken.replica.disk.clone();
        let mut crash = |entries, disk: &Durable<S>| {
            taken.crashes.push(Crash { input, outputs, entries, disk: disk.clone(), said, answers, node: None });
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
            for (place, entry) in entries[..entries.len() - 1].iter().enumerate() {
                disk.log.push(entry.clone());
                crash(Some(place + 1), &disk);
            }
        }
    }

    /// Records a crash before a message is sent, or after the last output.
    fn crash_elsewhere<S: StateMachine>(self, taken: &mut Taken<S>, (input, outputs): (usize, usize), after: &Node<S>) {
        if self.crashes == Crashes::Anywhere {
            let (said, answers) = (taken.said.len(), taken.answers.len());
            // Every answer follows the write that it depends on (`carry_out` checks that).
            let (disk, node) = (taken.replica.disk.clone(), (answers > 0).then(|| after.clone()));
            let crash = Crash { input, outputs, entries: None, disk, said, answers, node };
            let alike = |other: &Crash<S>| {
                (other.said, other.answers) == (said, answers) && other.disk == crash.disk && other.node == crash.node
            };
            if !taken.crashes.last().is_some_and(alike) {
                taken.crashes.push(crash);
            }
        }
    }
}

/// A node, and the inputs that it was given.
struct Feeder<S: StateMachine> {
    node: Node<S>,
    fed: Vec<Fed<S>>,
}

impl<S: StateMachine> Feeder<S> {
    fn run(&mut self, stimulus: Stimulus<S>, elections: Elections) {
        match stimulus {
            Stimulus::Deliver(message) => {
                if elections == Elections::AtWill && matches!(message.body, Body::RequestVote { .. }) {
                    self.stop_hearing();
                }
                self.give(Input::Receive((*message).clone()), true);
            }
            Stimulus::Campaign => self.campaign(),
            Stimulus::ElectionTimeout => self.give(Input::ElectionTimeout, true),
            Stimulus::HeartbeatTimeout => self.give(Input::HeartbeatTimeout, true),
            Stimulus::Propose(payloads) => self.give(Input::Propose((*payloads).clone()), true),
            Stimulus::Change(change) => self.give(Input::Change((*change).clone()), true),
            Stimulus::Read(id) => self.give(Input::Read(id), true),
            Stimulus::Transfer(to) => self.give(Input::Transfer(to), true),
            Stimulus::Clock(milliseconds) => self.give(Input::ClockAdvanced(milliseconds), true),
            Stimulus::Compact(through) => self.give(Input::Compact(through), true),
        }
        self.stop_waiting(elections);
    }

    /// Lets the election timer of a server that waits for its leader run out, with
    /// `Elections::AtWill`.
    fn stop_waiting(&mut self, elections: Elections) {
        if elections == Elections::AtWill && hears_or_is_heard(&self.node) {
            self.give(Input::ElectionTimeout, false);
        }
    }

    fn campaign(&mut self) {
        self.stop_hearing();
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
    fn stop_hearing(&mut self) {
        while self.node.leader().is_some() {
            self.give(Input::ElectionTimeout, false);
        }
    }

    fn give(&mut self, input: Input<S>, done: bool) {
        let mut outputs = Vec::new();
        self.node.step(input.clone(), &mut outputs);
        let lasts =
            |output: &Output<S>| matches!(output, Output::Persist(_) | Output::Applied { .. } | Output::ReadReady(_));
        assert!(done || !outputs.iter().any(lasts), "an election timeout changes nothing durable");
        self.fed.push(Fed { input, outputs, done, after: self.node.clone() });
    }
}

/// Whether an election timeout would change only state that makes no difference. With
/// [`Elections::AtWill`] it makes no difference whether a server that is neither leader nor
/// candidate hears from a leader, nor which followers answered a leader lately: a RequestVote
/// arrives only after the timers have run out. So the model lets them run out at once, which gives
/// fewer states.
pub(crate) fn hears_or_is_heard<S: StateMachine>(node: &Node<S>) -> bool {
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

/// The message of a node's panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a node stopped itself").to_string()
}
