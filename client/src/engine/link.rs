//! The engine's side of the connection: what was sent on it and is not answered yet, and whether it still lives.
//!
//! Requests get ids that are never used again, so an answer to a request that was given up or replaced, or a second
//! answer to the same request, finds no open flight and is dropped.
//!
//! So many exchanges may be under way at once, the **window**; the others stand in line, first come, first served. So
//! a program that asks for ten thousand locks at once does not have its ten thousand requests answered so late that
//! they are repeated, and the keep-alives of its guards, which do not stand in line, never come behind more than a
//! window's worth of requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::Task;
use crate::clock::BootInstant;
use crate::connection::Outgoing;
use crate::wire::{Op, Request};
use crate::{Options, codec};

/// How many exchanges may be under way. Below the 1,024 requests after which the server reads no more, so that there is
/// always room for keep-alives.
const WINDOW: usize = 900;

/// How often the cluster's members are asked for, while there is something to do.
const MEMBERS_EVERY: Duration = Duration::from_secs(5);

/// Which of a task's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The one that its next step waits for.
    Step,
    /// The keep-alive of its session.
    KeepAlive,
}

/// One attempt that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) task: Task,
    pub(super) part: Part,
    /// Taken before it was handed over for sending.
    pub(super) sent: BootInstant,
}

/// The connection, as the engine knows it.
pub(crate) struct Link {
    up: bool,
    next_id: u64,
    flights: HashMap<u64, Flight>,
    /// How many exchanges are in the window.
    under_way: usize,
    /// Tasks that wait for room in it, in order; the set has the same.
    line: VecDeque<Task>,
    in_line: HashSet<Task>,
    outbox: VecDeque<Outgoing>,
    last_answer: BootInstant,
    last_heard: BootInstant,
    probed: Option<BootInstant>,
    doubt: Option<&'static str>,
    /// The latest question for the cluster's members, and when the next is due.
    members_asked: Option<u64>,
    members_due: BootInstant,
}

impl Link {
    pub(super) fn new(now: BootInstant) -> Link {
        Link {
            up: false,
            next_id: 0,
            flights: HashMap::new(),
            under_way: 0,
            line: VecDeque::new(),
            in_line: HashSet::new(),
            outbox: VecDeque::new(),
            last_answer: now,
            last_heard: now,
            probed: None,
            doubt: None,
            members_asked: None,
            members_due: now,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    pub(super) fn connected(&mut self, now: BootInstant) {
        self.disconnected();
        self.up = true;
        self.last_answer = now;
        self.last_heard = now;
        self.members_due = now + MEMBERS_EVERY;
    }

    pub(super) fn disconnected(&mut self) {
        self.up = false;
        self.flights.clear();
        self.under_way = 0;
        self.line.clear();
        self.in_line.clear();
        self.outbox.clear();
        self.probed = None;
        self.doubt = None;
        self.members_asked = None;
    }

    /// Takes an exchange of `task` into the window, or puts the task in line.
    pub(super) fn enter(&mut self, task: Task) -> bool {
        let room = self.under_way < WINDOW;
        if room {
            self.under_way += 1;
        } else if self.in_line.insert(task) {
            self.line.push_back(task);
        }
        room
    }

    /// An exchange in the window has ended.
    pub(super) fn leave(&mut self) {
        self.under_way -= 1;
    }

    /// The first in line, if there is room in the window: to be driven, so that it enters.
    pub(super) fn next_in_line(&mut self) -> Option<Task> {
        let task = if self.under_way < WINDOW { self.line.pop_front() } else { None }?;
        self.in_line.remove(&task);
        Some(task)
    }

    /// Puts a request into the outbox.
    pub(super) fn send(&mut self, now: BootInstant, task: Task, part: Part, op: Op) -> u64 {
        let id = self.push(op);
        self.flights.insert(id, Flight { task, part, sent: now });
        id
    }

    fn push(&mut self, op: Op) -> u64 {
        assert!(self.up, "nothing is sent without a connection");
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::with_capacity(128);
        codec::encode_into(&Request { id, op }, &mut frame);
        self.outbox.push_back(Outgoing::Frame(frame));
        id
    }

    /// The attempt that the answer with this id belongs to, once.
    pub(super) fn land(&mut self, now: BootInstant, id: u64) -> Option<Flight> {
        self.last_answer = now;
        self.flights.remove(&id)
    }

    /// The answer to this request is not needed any more: drop it if it comes.
    pub(super) fn forget(&mut self, id: u64) {
        self.flights.remove(&id);
    }

    pub(super) fn last_answer(&self) -> BootInstant {
        self.last_answer
    }

    /// A frame of any kind came in.
    pub(super) fn heard(&mut self, now: BootInstant) {
        self.last_heard = now;
        self.probed = None;
    }

    /// Probes a connection that has been silent, and doubts it when the probe is not answered.
    pub(super) fn probe(&mut self, now: BootInstant, options: &Options) {
        if self.probe_at(options).is_none_or(|at| now < at) {
            return;
        }
        if self.probed.is_some() {
            self.doubt("the node went silent");
        } else {
            self.outbox.push_back(Outgoing::Ping);
            self.probed = Some(now);
        }
    }

    /// Asks the node for the cluster's members, now and then: those that the client was told of may all be replaced while it
    /// runs.
    pub(super) fn ask_for_members(&mut self, now: BootInstant) {
        if self.up && now >= self.members_due {
            let id = self.push(Op::Status);
            (self.members_asked, self.members_due) = (Some(id), now + MEMBERS_EVERY);
        }
    }

    /// When it is time for that.
    pub(super) fn members_at(&self) -> Option<BootInstant> {
        self.up.then_some(self.members_due)
    }

    /// Whether this is the answer to that.
    pub(super) fn is_about_members(&self, id: u64) -> bool {
        self.members_asked == Some(id)
    }

    /// When the silence has lasted long enough for the next measure.
    pub(super) fn probe_at(&self, options: &Options) -> Option<BootInstant> {
        let at = match self.probed {
            None => self.last_heard + options.probe_after,
            Some(probed) => probed + options.attempt_timeout,
        };
        self.up.then_some(at)
    }

    /// The connection seems to be of no use any more.
    pub(super) fn doubt(&mut self, why: &'static str) {
        self.doubt = Some(why);
    }

    pub(super) fn doubted(&self) -> Option<&'static str> {
        self.doubt
    }

    pub(super) fn outbox(&mut self) -> &mut VecDeque<Outgoing> {
        &mut self.outbox
    }
}

#[cfg(test)]
impl Link {
    pub(super) fn open_flights(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }
}
