//! A client: what it asks for, what it is told, and how long it relies on that.

use palisade_spec::lock::{Claim, Command, Event, LockTable, Outcome, Reply, Sequence, SessionId, Token};
use palisade_spec::raft::{Index, Node, NodeId, Payload};
use serde::Serialize;

use super::key;

/// A client that takes the lock once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Client {
    /// How often each of its requests arrived at a server.
    pub arrivals: [u8; 3],
    /// When it first asked for the lock.
    pub asked: u64,
    /// The grant that it was told of.
    pub token: Option<Token>,
    /// The moment from which its lease counts.
    pub lease: u64,
    /// Its keepalives that may be answered yet, and would prolong its lease.
    pub keepalives: Vec<KeepAlive>,
    /// Whether it has written.
    pub wrote: bool,
}

/// A keepalive under way. Its answer counts from the moment at which it was sent, and from no other's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeepAlive {
    /// When it was sent.
    pub sent: u64,
    /// The leader that answers it, unless it steps down before.
    pub server: NodeId,
    /// Its place in that leader's log, once it is there.
    pub index: Option<Index>,
}

/// What a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The lock.
    Acquire = 0,
    /// To give it back.
    Release = 1,
    /// A longer life.
    KeepAlive = 2,
}

impl Client {
    /// A request arrives at a server at this moment: what it says.
    pub(super) fn ask(&mut self, session: SessionId, request: Request, server: NodeId, now: u64) -> Command {
        match request {
            Request::Acquire if self.arrivals[0] == 0 => self.asked = now,
            Request::KeepAlive => self.keepalives.push(KeepAlive { sent: now, server, index: None }),
            Request::Acquire | Request::Release => {}
        }
        self.arrivals[request as usize] += 1;
        match request {
            Request::Acquire => Command::Acquire { session, sequence: Some(Sequence(1)), key: key(), wait: true },
            Request::Release => {
                let token = self.token.expect("who releases was granted the lock");
                Command::Release { session, sequence: Some(Sequence(2)), key: key(), claim: Claim::Held(token) }
            }
            Request::KeepAlive => Command::KeepAlive { sessions: vec![session] },
        }
    }

    /// Sees what becomes of its keepalives at a server: they are in its log now, or it will not answer them.
    pub(super) fn follow(&mut self, own: SessionId, node: &Node<LockTable>) {
        if !node.is_leader() {
            self.keepalives.retain(|keepalive| keepalive.server != node.id());
        }
        let last = node.log().last().index;
        let is_last = node.log().get(last).is_some_and(|entry| keeps_alive(&entry.payload, own));
        let arriving = |keepalive: &&mut KeepAlive| keepalive.server == node.id() && keepalive.index.is_none();
        if let Some(keepalive) = self.keepalives.iter_mut().find(arriving).filter(|_| is_last) {
            keepalive.index = Some(last);
        }
    }

    /// Hears from a leader what one of its entries did, as far as it is about this client's session.
    pub(super) fn hear(&mut self, own: SessionId, leader: NodeId, index: Index, outcome: &Outcome) {
        let reply = outcome.reply.iter().filter_map(|reply| match reply {
            Reply::Granted { session, token } => Some((*session, *token)),
            _ => None,
        });
        let events = outcome.events.iter().filter_map(|event| match event {
            Event::Granted { session, token, .. } => Some((*session, *token)),
            _ => None,
        });
        if let Some((_, token)) = reply.chain(events).find(|(session, _)| *session == own)
            && self.token.is_none()
        {
            (self.token, self.lease) = (Some(token), self.lease.max(self.asked));
        }
        let answered = |keepalive: &KeepAlive| keepalive.server == leader && keepalive.index == Some(index);
        if let Some(Reply::KeptAlive { missing }) = &outcome.reply
            && let Some(place) = self.keepalives.iter().position(answered)
        {
            let sent = self.keepalives.remove(place).sent;
            if !missing.contains(&own) {
                self.lease = self.lease.max(sent);
            }
        }
        let lease = self.lease;
        self.keepalives.retain(|keepalive| keepalive.sent > lease);
    }

    /// Whether it may still rely on its lease: it was told of a grant, has not given it back, and by its own count its
    /// TTL has not passed.
    pub(super) fn relies(&self, now: u64, ttl: u64) -> bool {
        self.token.is_some() && self.arrivals[Request::Release as usize] == 0 && now <= self.lease + ttl
    }
}

fn keeps_alive(payload: &Payload<Command>, own: SessionId) -> bool {
    matches!(payload, Payload::Command(Command::KeepAlive { sessions }) if sessions.contains(&own))
}
