//! The promise that a wait ends: a leader that goes on committing what clients ask for answers every wait that ran out.
//!
//! Nothing is timed here, for a leader may stand still or be cut off. What counts is what the leader shows that it can do.
//! Twice it has to take a client's command and then commit everything that stands in its log: the first time after the wait
//! ran out (by then it knows of the wait), the second time after that (with the second command it proposes to withdraw
//! the wait, if it does not before). If the client still waits then, the leader has forgotten the wait.

use std::time::Duration;

use palisade::core::{Ask, Asker};
use palisade_spec::lock::{Key, LockTable, SessionId};
use palisade_spec::raft::{Index, Node, NodeId, Term};

use super::super::call::CallId;
use super::super::clock::longest;
use super::super::ghost::broken;
use super::super::judge::Commanded;
use super::World;

/// A wait at a node.
#[derive(Debug)]
pub(super) struct OpenWait {
    node: NodeId,
    boot: u64,
    call: CallId,
    /// The place in a queue that it is for, if the session is known: whoever asks again joins the wait.
    place: Option<(SessionId, Key)>,
    /// It ran out, by any clock.
    over: Duration,
    seen: Seen,
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
    pub(super) fn watch_wait(&mut self, node: NodeId, call: CallId, ask: &Ask) {
        let Ask::Acquire { wait, session, key } = ask else { return };
        if wait.is_zero() {
            return;
        }
        let place = match session {
            Asker::Session(session, _) => Some((*session, key.clone())),
            Asker::Once(_) => None,
        };
        let over = self.now + longest(*wait);
        let seen = Seen { term: Term(0), after: over, through: None, times: 0 };
        // What was asked for over an earlier connection ends with the last.
        let same = |wait: &&mut OpenWait| wait.node == node && wait.place.is_some() && wait.place == place;
        for wait in self.waits.iter_mut().filter(same) {
            (wait.over, wait.seen) = (wait.over.max(over), seen);
        }
        self.waits.push(OpenWait { node, boot: self.servers[&node].boot(), call, place, over, seen });
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
        for wait in waits.iter_mut().filter(|wait| wait.node == id && wait.over < now) {
            tally.late_waits += u64::from(wait.seen.term != node.term());
            wait.seen.look(node, commanded, now);
            if wait.seen.times >= 2 {
                let detail = format!("{:?} waits at node {id}, and ran out before {:?}", wait.call, wait.over);
                judge.note(broken("waits end", detail));
            }
        }
    }
}

impl Seen {
    fn look(&mut self, node: &Node<LockTable>, commanded: Commanded, now: Duration) {
        if self.term != node.term() {
            *self = Seen { term: node.term(), after: now, through: None, times: 0 };
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
