//! The driver: it hands a node one input after the other and carries out the outputs in their order, exactly as
//! `palisade_spec::raft::interface` demands of any driver.
//!
//! What it did is kept step by step, with every place at which the server could have crashed, so that people can read
//! it and programs can do it again with a live server.

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

/// Carries out what nodes ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    /// How elections go.
    elections: Elections,
    /// Where servers can crash.
    crashes: Crashes,
}

/// Where servers can crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crashes {
    Nowhere,
    /// Before a write, and in the middle of one. Where messages take their time, a crash anywhere else is one of these,
    /// or one after the step, and the messages that were not sent are some that never arrive.
    AtWrites,
    /// Before and after everything that is done.
    Anywhere,
}

/// An input, and what a node asked for when it was given it.
pub(super) struct Fed<S: StateMachine> {
    pub(super) input: Input<S>,
    pub(super) outputs: Vec<Output<S>>,
    /// Whether what it asked for was done. If it was not, it was no more than to send messages, and they are lost.
    pub(super) done: bool,
    /// The node afterwards.
    after: Node<S>,
}

/// What comes of a stimulus.
pub(super) struct Taken<S: StateMachine> {
    /// The server afterwards.
    pub(super) replica: Replica<S>,
    /// The inputs of its node. One that stops itself gets no more of them.
    pub(super) fed: Vec<Fed<S>>,
    /// What it said.
    pub(super) said: Vec<Message<S>>,
    /// Where in that a run begins: messages with nothing in between, which might have been said in another order.
    pub(super) runs: Vec<usize>,
    /// What it told those who wait for it.
    pub(super) answers: Vec<Answer<S>>,
    /// The crashes that could have happened on the way.
    pub(super) crashes: Vec<Crash<S>>,
    /// What went wrong.
    pub(super) violation: Option<Violation>,
}

/// What a server tells whoever waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<S: StateMachine> {
    /// An entry is committed, and what it did.
    Applied(Applied<S>),
    /// A read can be answered from what is applied.
    Ready(ReadId),
}

/// An entry that a server applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<S: StateMachine> {
    /// Its index.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// What it did.
    pub outcome: S::Outcome,
}

/// A crash at a place in a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crash<S: StateMachine> {
    /// At which input, counted from 0.
    pub(super) input: usize,
    /// How many of what it asked for had been done.
    pub(super) outputs: usize,
    /// How many entries of the write that is next were done, after the removal of what was in their place, or of a
    /// snapshot, without the removal of what it replaces; nothing of the write, if `None`.
    pub(super) entries: Option<usize>,
    /// What the disk has.
    pub(super) disk: Durable<S>,
    /// How many messages had been sent.
    pub(super) said: usize,
    /// How many answers had been given.
    pub(super) answers: usize,
    /// The node, if it had given any: somebody may have seen that.
    pub(super) node: Option<Node<S>>,
}

impl Driver {
    /// A driver of servers within these bounds.
    pub(super) fn new(bounds: &Bounds) -> Driver {
        let crashes = match (bounds.crashes, bounds.delivery) {
            (0, _) => Crashes::Nowhere,
            (_, Delivery::AnyTime { .. }) => Crashes::AtWrites,
            (_, Delivery::Prompt { .. }) => Crashes::Anywhere,
        };
        Driver { elections: bounds.elections, crashes }
    }

    /// The same where nobody crashes.
    pub(super) fn undisturbed(self) -> Driver {
        Driver { crashes: Crashes::Nowhere, ..self }
    }

    /// Hands `stimulus` to a server and carries out what it asks for.
    pub(super) fn take<S: StateMachine>(self, before: &Replica<S>, stimulus: Stimulus<S>) -> Taken<S> {
        let mut feeder = Feeder { node: before.node.clone(), fed: Vec::new() };
        // A failed assertion is how a node stops itself, and its disk likewise. In a sound protocol none ever fails.
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

    /// A server comes back with what its disk has.
    ///
    /// # Errors
    /// If it stops itself at once: its disk has what no sound server could have written.
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

    /// A crash right before a write, and after any proper prefix of its entries.
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

    /// A crash before a message is sent, or when everything is done.
    fn crash_elsewhere<S: StateMachine>(self, taken: &mut Taken<S>, (input, outputs): (usize, usize), after: &Node<S>) {
        if self.crashes == Crashes::Anywhere {
            let (said, answers) = (taken.said.len(), taken.answers.len());
            // What is answered has been written before, all of it: see `carry_out`.
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

/// A node and what it was given.
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

    /// Whoever waits in vain for a leader to be heard need not wait.
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

    /// Election timers run out until the server knows no leader: once for a follower, twice for a leader that was
    /// answered. All that these inputs ask for is to send requests for pre-votes, which may be lost.
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

/// Whether an election timeout changes something that makes no difference. Where elections are held at will, it makes none
/// whether a server that is neither leader nor candidate hears from a leader, nor who has answered a leader lately: a
/// request for a vote arrives only after the timers have run out. So let them run out at once, and there are fewer states.
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

/// What a server said when it stopped itself.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a node stopped itself").to_string()
}
