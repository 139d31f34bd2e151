//! The promise that a wait ends: a leader that goes on committing what clients ask for answers every wait that ran out.
//!
//! Nothing is timed here, for a leader may stand still or be cut off. What counts is what the leader shows that it can do.
//! Twice it has to take a client's command and then commit everything that stands in its log: the first time after the wait
//! ran out (by then it knows of the wait), the second time after that (with the second command it proposes to withdraw
//! the wait, if it does not before). If the client still waits then, the leader has forgotten the wait.

use std::collections::HashMap;
use std::time::Duration;

use palisade::core::{Acquirer, Request};
use palisade_spec::lock::{Key, LockTable, SessionId};
use palisade_spec::raft::{Index, Node, NodeId, Term};

use super::super::call::CallId;
use super::super::clock::longest;
use super::super::judge::Commanded;
use super::super::reference_state::broken;
use super::World;

/// A wait at a node.
#[derive(Debug)]
pub(super) struct OpenWait {
    node: NodeId,
    boot: u64,
    call: CallId,
    /// The place in a queue that it is for, if the session is known: whoever asks again joins the wait.
    place: Option<(SessionId, Key)>,
    /// When this client gives up, by any clock. A wait lasts until the last of those gives up who still ask for its place.
    ends: Duration,
    /// Once it ran out.
    seen: Option<Seen>,
}

/// What the leader of a term was seen doing for a wait that ran out.
#[derive(Clone, Copy, Debug)]
struct Seen {
    term: Term,
    /// Commands count that are taken after this.
    after: Duration,
    /// One was, when the log ended here.
    through: Option<Index>,
    /// How often all of the log was committed after one was taken.
    times: u8,
}

impl World {
    /// A request arrives at a node. Waits are looked after.
    pub(super) fn watch_wait(&mut self, node: NodeId, call: CallId, ask: &Request) {
        let Request::Acquire { wait, session, key } = ask else { return };
        if wait.is_zero() {
            return;
        }
        let place = match session {
            Acquirer::Session(session, _) => Some((*session, key.clone())),
            Acquirer::Once(_) => None,
        };
        let ends = self.now + longest(*wait);
        self.waits.push(OpenWait { node, boot: self.servers[&node].boot(), call, place, ends, seen: None });
    }

    /// A node had a round: no wait may be left that it should have ended by now.
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
            let Some(place) = &wait.place else { continue };
            let last = last_ends.entry(place.clone()).or_insert(wait.ends);
            *last = wait.ends.max(*last);
        }
        for wait in waits.iter_mut().filter(|wait| wait.node == id) {
            let ends = wait.place.as_ref().map_or(wait.ends, |place| last_ends[place]);
            if ends >= now {
                wait.seen = None;
                continue;
            }
            tally.late_waits += u64::from(wait.seen.is_none_or(|seen| seen.term != node.term()));
            let seen = wait.seen.get_or_insert_with(|| Seen::begin(node.term(), now));
            seen.look(node, commanded, now);
            if seen.times >= 2 {
                let detail = format!("{:?} waits at node {id}, and ran out before {ends:?}", wait.call);
                judge.note(broken("waits end", detail));
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
