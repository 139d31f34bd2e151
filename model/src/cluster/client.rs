//! A client: what it asks for, what it is told, and how long it relies on that.

use palisade_spec::lock::{Claim, Command, Event, Key, LockTable, Outcome, Reply, Sequence, SessionId, Token};
use palisade_spec::raft::{Entry, Node, NodeId, Payload, Position};
use serde::Serialize;

/// A client that takes a lock once. Several may share a session, each for a lock of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    /// Its session.
    pub session: SessionId,
    /// The lock that it takes.
    pub key: Key,
    /// The number of its acquire, and that of its release: the session numbers the requests of all its clients.
    pub numbers: [Option<Sequence>; 2],
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KeepAlive {
    /// When it was sent.
    pub sent: u64,
    /// Where it is.
    pub place: Place,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Place {
    /// It arrives at a server.
    Arriving(NodeId),
    /// It is an entry of the log.
    Entry(Position),
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
    /// A client that has asked for nothing yet.
    pub(crate) fn new(session: SessionId, key: Key) -> Client {
        Client {
            session,
            key,
            numbers: [None, None],
            arrivals: [0; 3],
            asked: 0,
            token: None,
            lease: 0,
            keepalives: Vec::new(),
            wrote: false,
        }
    }

    /// The greatest number that it has given to a request.
    pub(crate) fn last_number(&self) -> Sequence {
        self.numbers.iter().flatten().copied().max().unwrap_or_default()
    }

    /// A request arrives at a server at this moment: what it says. `last` is the greatest number that the session has given.
    pub(crate) fn ask(&mut self, request: Request, server: NodeId, now: u64, last: Sequence) -> Command {
        match request {
            Request::Acquire if self.arrivals[0] == 0 => self.asked = now,
            Request::KeepAlive => self.keepalives.push(KeepAlive { sent: now, place: Place::Arriving(server) }),
            Request::Acquire | Request::Release => {}
        }
        self.arrivals[request as usize] += 1;
        let (session, key) = (self.session, self.key.clone());
        let mut number = || Some(*self.numbers[request as usize].get_or_insert(Sequence(last.0 + 1)));
        match request {
            Request::Acquire => Command::Acquire { session, sequence: number(), key, wait: true },
            Request::Release => {
                let token = self.token.expect("who releases was granted the lock");
                Command::Release { session, sequence: number(), key, claim: Claim::Held(token) }
            }
            Request::KeepAlive => Command::KeepAlive { sessions: vec![session] },
        }
    }

    /// Sees what becomes of a keepalive that arrived at a server: it is the last entry of its log, or was not taken.
    pub(crate) fn follow(&mut self, node: &Node<LockTable>) {
        let last = node.log().last();
        let keeps_alive = |entry: &Entry<Command>| {
            let Payload::Command(Command::KeepAlive { sessions }) = &entry.payload else { return false };
            sessions.contains(&self.session)
        };
        let is_taken = node.is_leader() && node.log().get(last.index).is_some_and(keeps_alive);
        let here = Place::Arriving(node.id());
        if is_taken && let Some(keepalive) = self.keepalives.iter_mut().find(|keepalive| keepalive.place == here) {
            keepalive.place = Place::Entry(last);
        } else if !node.is_leader() {
            self.keepalives.retain(|keepalive| keepalive.place != here);
        }
    }

    /// Hears what an entry did, as far as it is about this client's session and lock. `asked_for` is the lock that the
    /// entry asks for, if it asks for one.
    pub(crate) fn hear(&mut self, entry: Position, asked_for: Option<&Key>, outcome: &Outcome) {
        let own = self.session;
        let reply = outcome.reply.iter().filter_map(|reply| match reply {
            Reply::Granted { session, token } => Some((*session, asked_for?, *token)),
            _ => None,
        });
        let events = outcome.events.iter().filter_map(|event| match event {
            Event::Granted { key, session, token } => Some((*session, key, *token)),
            _ => None,
        });
        let is_own = |(session, key, _): &(SessionId, &Key, Token)| *session == own && **key == self.key;
        if let Some((.., token)) = reply.chain(events).find(is_own)
            && self.token.is_none()
        {
            (self.token, self.lease) = (Some(token), self.lease.max(self.asked));
        }
        let answered = |keepalive: &KeepAlive| keepalive.place == Place::Entry(entry);
        if let Some(Reply::KeptAlive { missing }) = &outcome.reply
            && let Some(keepalive) = self.keepalives.iter().find(|keepalive| answered(keepalive))
            && !missing.contains(&own)
        {
            self.lease = self.lease.max(keepalive.sent);
        }
        // What else is answered counts from later, or not at all: of two entries in one place only one is committed.
        let (lease, decided) = (self.lease, entry.index);
        self.keepalives.retain(|keepalive| {
            let is_open = !matches!(keepalive.place, Place::Entry(place) if place.index <= decided);
            is_open && keepalive.sent > lease
        });
    }

    /// Its keepalives under way that would prolong its lease.
    pub(crate) fn open_keepalives(&self) -> impl Iterator<Item = &KeepAlive> {
        self.keepalives.iter().filter(|keepalive| keepalive.sent > self.lease)
    }

    /// Whether it may still rely on its lease: it was told of a grant, has not given it back, and by its own count its
    /// TTL has not passed.
    pub fn relies(&self, now: u64, ttl: u64) -> bool {
        self.token.is_some() && self.arrivals[Request::Release as usize] == 0 && now <= self.lease + ttl
    }
}
