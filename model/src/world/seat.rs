//! One server's place: the running node, and the disk that outlives it.
//!
//! [`take`] is the driver. It hands a node one input and executes the outputs in their order, exactly as
//! `palisade_spec::raft::interface` demands of any driver, and lists the crashes that could have happened on the way.

use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade_spec::invariants::{Violation, leader_append_only, node_is_sound};
use palisade_spec::raft::{
    Body, Durable, Index, Input, Message, Node, Output, Payload, Persist, Role, StateMachine, Term,
};
use serde::Serialize;

use super::bounds::Elections;
use super::intern::Ref;

/// A server: what it remembers, and what its disk does.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(bound(serialize = "S: Serialize, S::Command: Serialize"))]
pub struct Seat<S: StateMachine> {
    /// The running node.
    pub node: Node<S>,
    /// What a crash leaves.
    pub disk: Durable<S>,
    /// Whether it neither hears the others nor is heard.
    pub cut: bool,
}

/// Something that happens to a server.
#[derive(Debug)]
pub enum Stimulus<C: 'static> {
    /// A message arrives. Before a request for a vote arrives, the receiver may have stopped hearing from its leader.
    Deliver(Ref<Message<C>>),
    /// The election timer runs out, and whoever is asked would vote for this server: PreVote's messages carry no
    /// promise, so nothing is lost by not following them one by one. (The configuration `elections` does.)
    Campaign,
    /// The election timer runs out.
    ElectionTimeout,
    /// The heartbeat timer runs out.
    HeartbeatTimeout,
    /// Clients ask for entries.
    Propose(Ref<Vec<Payload<C>>>),
    /// The monotonic clock advances.
    Clock(u64),
}

impl<C> Clone for Stimulus<C> {
    fn clone(&self) -> Stimulus<C> {
        *self
    }
}

impl<C> Copy for Stimulus<C> {}

impl<C> PartialEq for Stimulus<C> {
    fn eq(&self, other: &Stimulus<C>) -> bool {
        self.key() == other.key()
    }
}

impl<C> Stimulus<C> {
    /// A number that tells stimuli of one run apart.
    pub(super) fn key(&self) -> u64 {
        match self {
            Stimulus::Campaign => 1,
            Stimulus::ElectionTimeout => 2,
            Stimulus::HeartbeatTimeout => 3,
            Stimulus::Clock(milliseconds) => 8 + (milliseconds << 3) + 4,
            // References are to different allocations, whatever they refer to; none is near zero.
            Stimulus::Deliver(message) => message.address() as u64,
            Stimulus::Propose(payloads) => payloads.address() as u64,
        }
    }
}

/// What came of a stimulus.
pub struct Taken<S: StateMachine> {
    /// The server afterwards.
    pub seat: Seat<S>,
    /// What it said.
    pub said: Vec<Message<S::Command>>,
    /// What it applied.
    pub applied: Vec<Applied<S>>,
    /// The crashes that could have happened on the way.
    pub crashes: Vec<Crash<S>>,
    /// What went wrong.
    pub violation: Option<Violation>,
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

/// A crash before an output, or in the middle of one.
pub struct Crash<S: StateMachine> {
    /// What the disk has.
    pub disk: Durable<S>,
    /// How many of the messages had been sent.
    pub said: usize,
}

/// Hands `stimulus` to the server and carries out what it asks for.
pub fn take<S: StateMachine>(before: &Seat<S>, stimulus: Stimulus<S::Command>, elections: Elections) -> Taken<S> {
    let mut taken =
        Taken { seat: before.clone(), said: Vec::new(), applied: Vec::new(), crashes: Vec::new(), violation: None };
    // A failed assertion is how a node stops itself. In a sound protocol none ever fails.
    let stepped = catch_unwind(AssertUnwindSafe(|| {
        run(&mut taken, stimulus);
        if elections == Elections::AtWill {
            forget_leader(&mut taken.seat.node);
        }
    }));
    let violation = match stepped {
        Ok(()) => judge(before, &taken.seat),
        Err(panic) => Some(Violation { property: "assertions", detail: message(panic.as_ref()) }),
    };
    taken.violation = taken.violation.take().or(violation);
    taken
}

fn run<S: StateMachine>(taken: &mut Taken<S>, stimulus: Stimulus<S::Command>) {
    match stimulus {
        Stimulus::Deliver(message) => {
            if matches!(message.body, Body::RequestVote { .. }) {
                stop_hearing(taken);
            }
            step(taken, Input::Receive((*message).clone()));
        }
        Stimulus::Campaign => {
            stop_hearing(taken);
            let_timer_run_out(&mut taken.seat.node);
            let id = taken.seat.node.id();
            let peers: Vec<_> = taken.seat.node.config().peers().collect();
            for from in peers.into_iter().take(taken.seat.node.config().majority() - 1) {
                let body = Body::PreVoteReply { granted: true };
                step(taken, Input::Receive(Message { from, to: id, term: taken.seat.node.term(), body }));
            }
        }
        Stimulus::ElectionTimeout => step(taken, Input::ElectionTimeout),
        Stimulus::HeartbeatTimeout => step(taken, Input::HeartbeatTimeout),
        Stimulus::Propose(payloads) => step(taken, Input::Propose((*payloads).clone())),
        Stimulus::Clock(milliseconds) => step(taken, Input::ClockAdvanced(milliseconds)),
    }
}

/// Election timers run out until the server knows no leader: once for a follower, twice for a leader that was
/// answered. All that these inputs ask for is to send requests for pre-votes, which may be lost.
fn stop_hearing<S: StateMachine>(taken: &mut Taken<S>) {
    while taken.seat.node.leader().is_some() {
        let_timer_run_out(&mut taken.seat.node);
    }
}

/// Where elections are held at will, it makes no difference whether a server that is neither leader nor candidate
/// hears from a leader, nor who has answered a leader lately: a request for a vote arrives only after the timers have
/// run out. So let them run out at once, and there are fewer states.
pub fn forget_leader<S: StateMachine>(node: &mut Node<S>) {
    let majority = node.config().majority();
    let runs_out = match node.role() {
        Role::Follower { .. } => true,
        Role::PreCandidate { .. } | Role::Candidate { .. } => false,
        Role::Leader(leadership) => {
            let active = leadership.progress.values().filter(|progress| progress.active).count();
            active > 0 && 1 + active >= majority
        }
    };
    if runs_out {
        let_timer_run_out(node);
    }
}

fn let_timer_run_out<S: StateMachine>(node: &mut Node<S>) {
    let mut outputs = Vec::new();
    node.step(Input::ElectionTimeout, &mut outputs);
    let harmless = |output: &Output<S>| !matches!(output, Output::Persist(_) | Output::Applied { .. });
    assert!(outputs.iter().all(harmless), "an election timeout changes nothing durable");
}

/// One step of the protocol, and its outputs carried out in order.
fn step<S: StateMachine>(taken: &mut Taken<S>, input: Input<S::Command>) {
    let mut outputs = Vec::new();
    taken.seat.node.step(input, &mut outputs);
    for output in outputs {
        match output {
            Output::Persist(write) => {
                note_crashes(taken, &write);
                taken.seat.disk.apply(&write);
            }
            Output::Send(message) => taken.said.push(message),
            Output::Applied { index, term, outcome, .. } => taken.applied.push(Applied { index, term, outcome }),
            Output::Accepted { .. }
            | Output::Refused { .. }
            | Output::ArmElectionTimer
            | Output::ArmHeartbeatTimer
            | Output::Dropped { .. } => {}
        }
    }
}

/// A crash right before a write, with everything before it sent, and crashes after any proper prefix of its entries.
/// A crash anywhere else is one of these, or one after the whole step, with some messages lost.
fn note_crashes<S: StateMachine>(taken: &mut Taken<S>, write: &Persist<S::Command>) {
    let said = taken.said.len();
    taken.crashes.push(Crash { disk: taken.seat.disk.clone(), said });
    if let Persist::Entries(entries) = write {
        let mut disk = taken.seat.disk.clone();
        disk.log.truncate(entries[0].index);
        let removes = disk != taken.seat.disk;
        if removes {
            taken.crashes.push(Crash { disk: disk.clone(), said });
        }
        for entry in &entries[..entries.len() - 1] {
            disk.log.push(entry.clone());
            taken.crashes.push(Crash { disk: disk.clone(), said });
        }
    }
}

/// What must hold of a server by itself, over any step.
fn judge<S: StateMachine>(before: &Seat<S>, after: &Seat<S>) -> Option<Violation> {
    let (old, new) = (&before.node, &after.node);
    let broken = |property, detail: String| Some(Violation { property, detail });
    node_is_sound(new).and_then(|()| leader_append_only(old, new)).err().or_else(|| {
        let id = new.id();
        if new.hard_state() != after.disk.hard || new.log() != &after.disk.log {
            return broken("all is written", format!("server {id} remembers what its disk does not have"));
        }
        if new.term() < old.term() {
            return broken("terms only grow", format!("server {id} went from term {} to {}", old.term(), new.term()));
        }
        let (was, is) = (old.hard_state(), new.hard_state());
        if was.term == is.term && was.vote.is_some() && was.vote != is.vote {
            return broken("one vote a term", format!("server {id} changed its vote in term {}", is.term));
        }
        if new.commit() < old.commit() {
            return broken("commit only grows", format!("server {id} forgot that {} is committed", old.commit()));
        }
        if new.clock() < old.clock() {
            return broken("clocks only advance", format!("server {id}'s clock went back to {:?}", new.clock()));
        }
        None
    })
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a node stopped itself").to_string()
}
