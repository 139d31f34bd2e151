//! The property that waits end: a leader that keeps committing clients' commands answers every wait
//! that ran out.
//!
//! The check measures no time, because a leader may be paused or cut off. It counts what the leader
//! shows that it can do. Twice the leader must take a client's command and then commit its whole
//! log: the first time after the wait ran out (by then it knows of the wait), the second
//! time after that (with the second command it proposes to withdraw the waiter, at the latest). If
//! the client still waits then, the leader has forgotten the wait.

use palisade_spec::invariants::Property;
use palisade_spec::violated;
use std::collections::HashMap;
use std::time::Duration;

use palisade::core::Request;
use palisade_spec::lock::{Command, Keys, LockTable, SessionId};
use palisade_spec::raft::{Index, Node, NodeId, Term};

use super::super::call::CallId;
use super::super::clock::longest;
use super::super::judge::Commanded;
use super::World;

/// A wait at a node.
#[derive(Debug)]
pub(super) struct OpenWait {
    node: NodeId,
    boot: u64,
    call: CallId,
    /// The session and the keys that it waits for, if the session is known: a repeated request joins
    /// the same wait.
    position: Option<(SessionId, Keys)>,
    /// When this client gives up, by any clock. A wait lasts until the last client that still asks
    /// for the queue position gives up.
    ends: Duration,
    /// Set once the wait ran out.
    seen: Option<Seen>,
}

/// What the leader of a term did since a wait ran out.
#[derive(Clone, Copy, Debug)]
struct Seen {
    term: Term,
    /// Only commands taken after this count.
    after: Duration,
    /// Index of the log's end when such a command was taken.
    through: Option<Index>,
    /// How often the whole log was committed after such a command.
    times: u8,
}

impl World {
    /// A request arrives at a node: registers its wait, if it has one.
    pub(super) fn watch_wait(&mut self, node: NodeId, call: CallId, ask: &Request) {
        let Request::Propose { command, wait, .. } = ask else { return };
        let position = match command {
            Command::Acquire { session, request, .. } if request.waits() => Some((*session, request.keys.clone())),
            Command::AcquireOnce { request, .. } if request.waits() => None,
            _ => return,
        };
        let ends = self.now + longest(*wait);
        self.waits.push(OpenWait { node, boot: self.servers[&node].boot(), call, position, ends, seen: None });
    }

    /// After a driver iteration: checks that no wait is open which the leader should have ended.
    pub(super) fn check_waits(&mut self, id: NodeId) {
        let now = self.now;
        let World { servers, waits, judge, tally, .. } = self;
        waits.retain(|wait| servers.get(&wait.node).is_some_and(|server| server.waits(wait.boot, wait.call)));
        let Some(node) = servers.get(&id).and_then(|server| server.node()).filter(|node| node.is_leader()) else {
            return;
        };
        let mut judge = judge.lock();
        let Some(commanded) = judge.commanded(id) else { return };
        let mut last_ends = HashMap::new();
        for wait in waits.iter().filter(|wait| wait.node == id) {
            let Some(position) = &wait.position else { continue };
            let last = last_ends.entry(position.clone()).or_insert(wait.ends);
            *last = wait.ends.max(*last);
        }
        for wait in waits.iter_mut().filter(|wait| wait.node == id) {
            let ends = wait.position.as_ref().map_or(wait.ends, |position| last_ends[position]);
            if ends >= now {
                wait.seen = None;
                continue;
            }
            tally.late_waits += u64::from(wait.seen.is_none_or(|seen| seen.term != node.term()));
            let seen = wait.seen.get_or_insert_with(|| Seen::begin(node.term(), now));
            seen.look(node, commanded, now);
            if seen.times >= 2 {
                let detail = format!("{:?} still waits at node {id}; its wait ran out at {ends:?}", wait.call);
                judge.note(violated!(Property::WaitsEnd, "{detail}"));
            }
        }
    }
}

impl Seen {
    fn begin(term: Term, now: Duration) -> Seen {
        Seen { term, after: now, through: None, times: 0 }
    }

    fn look(&mut self, node: &Node<LockTable>, commanded: Commanded, now: Duration) {
        if self.term != node.term() {
            *self = Seen::begin(node.term(), now);
        }
        match self.through {
            None if commanded.term == self.term && commanded.born > self.after => {
                self.through = Some(node.log().last().index);
            }
            Some(through) if node.commit() >= through => {
                (self.through, self.after, self.times) = (None, now, self.times + 1);
            }
            _ => {}
        }
    }
}
