//! The engine's side of the connection: what was sent on it and is not answered yet, and whether it still lives.
//!
//! Requests get ids that are never used again, so an answer to a request that nobody waits for any more, or a second
//! answer to the same request, finds no open flight and is dropped.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use super::Task;
use crate::connection::Outgoing;
use crate::wire::{Op, Request};
use crate::{Options, codec};

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
    pub(super) sent: Instant,
}

/// The connection, as the engine knows it.
pub(crate) struct Link {
    up: bool,
    next_id: u64,
    flights: HashMap<u64, Flight>,
    outbox: VecDeque<Outgoing>,
    last_answer: Instant,
    last_heard: Instant,
    probed: Option<Instant>,
    doubt: Option<&'static str>,
}

impl Link {
    pub(super) fn new(now: Instant) -> Link {
        Link {
            up: false,
            next_id: 0,
            flights: HashMap::new(),
            outbox: VecDeque::new(),
            last_answer: now,
            last_heard: now,
            probed: None,
            doubt: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    pub(super) fn connected(&mut self, now: Instant) {
        self.disconnected();
        self.up = true;
        self.last_answer = now;
        self.last_heard = now;
    }

    pub(super) fn disconnected(&mut self) {
        self.up = false;
        self.flights.clear();
        self.outbox.clear();
        self.probed = None;
        self.doubt = None;
    }

    /// Puts a request into the outbox.
    pub(super) fn send(&mut self, now: Instant, task: Task, part: Part, op: Op) -> u64 {
        assert!(self.up, "nothing is sent without a connection");
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::with_capacity(128);
        codec::encode_into(&Request { id, op }, &mut frame);
        self.outbox.push_back(Outgoing::Frame(frame));
        self.flights.insert(id, Flight { task, part, sent: now });
        id
    }

    /// The attempt that the answer with this id belongs to, once.
    pub(super) fn land(&mut self, now: Instant, id: u64) -> Option<Flight> {
        self.last_answer = now;
        self.flights.remove(&id)
    }

    /// Nobody waits for this answer any more.
    pub(super) fn forget(&mut self, id: u64) {
        self.flights.remove(&id);
    }

    pub(super) fn last_answer(&self) -> Instant {
        self.last_answer
    }

    /// A frame of any kind came in.
    pub(super) fn heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.probed = None;
    }

    /// Probes a connection that has been silent, and doubts it when the probe is not answered.
    pub(super) fn probe(&mut self, now: Instant, options: &Options) {
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

    /// When the silence has lasted long enough for the next measure.
    pub(super) fn probe_at(&self, options: &Options) -> Option<Instant> {
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
