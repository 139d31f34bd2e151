//! A step of a server taken apart: the inputs that its node was given, one by one, what each asked for, and where the
//! server could have crashed on the way.
//!
//! [`take`](super::seat::take) does the same as a whole. What is found here is for people who read it, and for programs
//! that do it again with a live server; tests compare the two in every reachable state of a small cluster.

use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade_spec::raft::{Body, Durable, Input, Message, Node, Output, Persist};

use super::bounds::Elections;
use super::environment::Machine;
use super::seat::{Seat, Stimulus, forget_leader};

/// An input, and what a node asked for when it was given it.
pub(super) struct Fed<S: Machine> {
    pub(super) input: Input<S::Command>,
    pub(super) outputs: Vec<Output<S>>,
    /// Whether what it asked for was done. If it was not, it was no more than to send messages, and they are lost.
    pub(super) done: bool,
}

/// A crash at a place in a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CrashPoint<S: Machine> {
    /// At which input, counted from 0.
    pub(super) input: usize,
    /// How many of what it asked for had been done. The next is a write.
    pub(super) outputs: usize,
    /// How many entries of that write were done, after the removal of what was in their place; nothing of it, if `None`.
    pub(super) entries: Option<usize>,
    /// What the disk has.
    pub(super) disk: Durable<S>,
}

struct Feeder<S: Machine> {
    node: Node<S>,
    fed: Vec<Fed<S>>,
}

impl<S: Machine> Feeder<S> {
    fn give(&mut self, input: Input<S::Command>, done: bool) {
        let mut outputs = Vec::new();
        let stepped = catch_unwind(AssertUnwindSafe(|| self.node.step(input.clone(), &mut outputs)));
        self.fed.push(Fed { input, outputs, done });
        if let Err(panic) = stepped {
            std::panic::resume_unwind(panic);
        }
    }

    fn stop_hearing(&mut self) {
        while self.node.leader().is_some() {
            self.give(Input::ElectionTimeout, false);
        }
    }

    fn run(&mut self, stimulus: Stimulus<S::Command>, elections: Elections) {
        match stimulus {
            Stimulus::Deliver(message) => {
                if matches!(message.body, Body::RequestVote { .. }) {
                    self.stop_hearing();
                }
                self.give(Input::Receive((*message).clone()), true);
            }
            Stimulus::Campaign => {
                self.stop_hearing();
                self.give(Input::ElectionTimeout, false);
                let to = self.node.id();
                let peers: Vec<_> = self.node.config().peers().take(self.node.config().majority() - 1).collect();
                for from in peers {
                    let body = Body::PreVoteReply { granted: true };
                    self.give(Input::Receive(Message { from, to, term: self.node.term(), body }), true);
                }
            }
            Stimulus::ElectionTimeout => self.give(Input::ElectionTimeout, true),
            Stimulus::HeartbeatTimeout => self.give(Input::HeartbeatTimeout, true),
            Stimulus::Propose(payloads) => self.give(Input::Propose((*payloads).clone()), true),
            Stimulus::Clock(milliseconds) => self.give(Input::ClockAdvanced(milliseconds), true),
        }
        if elections == Elections::AtWill {
            let mut forgetful = self.node.clone();
            forget_leader(&mut forgetful);
            if forgetful != self.node {
                self.give(Input::ElectionTimeout, false);
            }
        }
    }
}

/// The inputs of a step. A node that stops itself gets no more of them.
pub(super) fn feed<S: Machine>(before: &Seat<S>, stimulus: Stimulus<S::Command>, elections: Elections) -> Vec<Fed<S>> {
    let mut feeder = Feeder { node: before.node.clone(), fed: Vec::new() };
    // That it stopped itself is in the step's own verdict.
    let _ = catch_unwind(AssertUnwindSafe(|| feeder.run(stimulus, elections)));
    feeder.fed
}

/// The places at which the server could have crashed, in the order in which the model counts them.
pub(super) fn crash_points<S: Machine>(before: &Seat<S>, fed: &[Fed<S>]) -> Vec<CrashPoint<S>> {
    let mut points = Vec::new();
    let mut disk = before.disk.clone();
    for (input, fed) in fed.iter().enumerate().filter(|(_, fed)| fed.done) {
        for (outputs, output) in fed.outputs.iter().enumerate() {
            let Output::Persist(write) = output else { continue };
            let mut point = |entries, disk: &Durable<S>| {
                points.push(CrashPoint { input, outputs, entries, disk: disk.clone() });
            };
            point(None, &disk);
            if let Persist::Entries(entries) = write {
                let mut partial = disk.clone();
                partial.log.truncate(entries[0].index);
                if partial != disk {
                    point(Some(0), &partial);
                }
                for (place, entry) in entries[..entries.len() - 1].iter().enumerate() {
                    partial.log.push(entry.clone());
                    point(Some(place + 1), &partial);
                }
            }
            disk.apply(write);
        }
    }
    points
}
