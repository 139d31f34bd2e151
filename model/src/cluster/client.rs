//! A client: its requests, the replies it receives, and how long it relies on its lease.

use palisade_spec::lock::{
    Claim, Command, Event, Key, LockRequest, LockTable, Outcome, Reply, Sequence, SessionId, Token,
};
use palisade_spec::raft::{Entry, Node, NodeId, Payload, Position};
use serde::Serialize;

/// A client that acquires a lock once. Several clients may share a session, each with a lock of its
/// own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    /// The client's session.
    pub session: SessionId,
    /// The lock that the client acquires.
    pub key: Key,
    /// The sequence numbers of its acquire and its release. A session numbers the requests of all
    /// its clients.
    pub numbers: [Option<Sequence>; 2],
    /// The number of times that each of its requests arrived at a server.
    pub arrivals: [u8; 3],
    /// When its acquire first arrived, in ticks.
    pub asked: u64,
    /// The token of its grant, once the client knows it.
    pub token: Option<Token>,
    /// The start of its lease, in ticks.
    pub lease: u64,
    /// Its keepalives whose answer would still extend its lease.
    pub keepalives: Vec<KeepAlive>,
    /// Whether the client has written to the resource.
    pub wrote: bool,
}

/// A keepalive in flight. Its answer extends the lease from the moment at which this keepalive was
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KeepAlive {
    /// When the keepalive was sent, in ticks.
    pub sent: u64,
    /// Where the keepalive is.
    pub location: RequestLocation,
}

/// The location of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RequestLocation {
    /// The request is arriving at this server.
    Arriving(NodeId),
    /// The request is this entry of the log.
    Entry(Position),
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Acquire the lock.
    Acquire = 0,
    /// Release the lock.
    Release = 1,
    /// Keep the session alive.
    KeepAlive = 2,
}

impl Client {
    /// Creates a client that has sent no request.
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

    /// The greatest sequence number among its requests.
    pub(crate) fn last_number(&self) -> Option<Sequence> {
        self.numbers.iter().flatten().copied().max()
    }

    /// The command of a request that arrives at a server at time `now`. `last` is the greatest
    /// sequence number of the session.
    pub(crate) fn ask(&mut self, request: Request, server: NodeId, now: u64, last: Option<Sequence>) -> Command {
        match request {
            Request::Acquire if self.arrivals[0] == 0 => self.asked = now,
            Request::KeepAlive => {
                self.keepalives.push(KeepAlive { sent: now, location: RequestLocation::Arriving(server) })
            }
            Request::Acquire | Request::Release => {}
        }
        self.arrivals[request as usize] += 1;
        let (session, key) = (self.session, self.key.clone());
        let mut number = || {
            let number = &mut self.numbers[request as usize];
            *number = number.or_else(|| Sequence::new(last.map_or(0, u64::from) + 1));
            *number
        };
        match request {
            Request::Acquire => {
                let request = LockRequest::exclusive(key, true);
                Command::Acquire { session, sequence: number(), request }
            }
            Request::Release => {
                let token = self.token.expect("a client that releases has a token");
                Command::Release { session, sequence: number(), keys: key.into(), claim: Claim::Held(token) }
            }
            Request::KeepAlive => Command::KeepAlive { sessions: vec![session] },
        }
    }

    /// Observes a server after a keepalive arrived there: the keepalive is the last entry of the
    /// server's log, or the server rejected it.
    pub(crate) fn observe_keepalive(&mut self, node: &Node<LockTable>) {
        let last = node.log().last();
        let keeps_alive = |entry: &Entry<Command>| {
            let Payload::Command(Command::KeepAlive { sessions }) = &entry.payload else { return false };
            sessions.contains(&self.session)
        };
        let is_taken = node.is_leader() && node.log().get(last.index).is_some_and(keeps_alive);
        let here = RequestLocation::Arriving(node.id());
        if is_taken && let Some(keepalive) = self.keepalives.iter_mut().find(|keepalive| keepalive.location == here) {
            keepalive.location = RequestLocation::Entry(last);
        } else if !node.is_leader() {
            self.keepalives.retain(|keepalive| keepalive.location != here);
        }
    }

    /// Observes the outcome of an entry, as far as it concerns this client's session and lock.
    /// `asked_for` has the keys of the entry's acquire, if the entry is one.
    pub(crate) fn observe_outcome(&mut self, entry: Position, asked_for: &[Key], outcome: &Outcome) {
        let own = self.session;
        let reply = outcome.reply.iter().flat_map(|reply| {
            let granted = match reply {
                Reply::Granted { session, token } => Some((*session, *token)),
                _ => None,
            };
            granted.into_iter().flat_map(|(session, token)| asked_for.iter().map(move |key| (session, key, token)))
        });
        let events = outcome.events.iter().filter_map(|event| match event {
            Event::Granted { key, session, token, .. } => Some((*session, key, *token)),
            _ => None,
        });
        let is_own = |(session, key, _): &(SessionId, &Key, Token)| *session == own && **key == self.key;
        if let Some((.., token)) = reply.chain(events).find(is_own)
            && self.token.is_none()
        {
            (self.token, self.lease) = (Some(token), self.lease.max(self.asked));
        }
        let answered = |keepalive: &KeepAlive| keepalive.location == RequestLocation::Entry(entry);
        if let Some(Reply::KeptAlive { missing }) = &outcome.reply
            && let Some(keepalive) = self.keepalives.iter().find(|keepalive| answered(keepalive))
            && !missing.contains(&own)
        {
            self.lease = self.lease.max(keepalive.sent);
        }
        // Drops the keepalives that would no longer extend the lease, and those whose entry lost
        // its index to another one: only one entry is committed at an index.
        let (lease, decided) = (self.lease, entry.index);
        self.keepalives.retain(|keepalive| {
            let is_open = !matches!(keepalive.location, RequestLocation::Entry(entry) if entry.index <= decided);
            is_open && keepalive.sent > lease
        });
    }

    /// The keepalives in flight that would extend the lease.
    pub(crate) fn open_keepalives(&self) -> impl Iterator<Item = &KeepAlive> {
        self.keepalives.iter().filter(|keepalive| keepalive.sent > self.lease)
    }

    /// Whether the client may still rely on its lease: it knows of its grant, has sent no release,
    /// and at most the TTL has passed since its lease began.
    pub fn relies(&self, now: u64, ttl: u64) -> bool {
        self.token.is_some() && self.arrivals[Request::Release as usize] == 0 && now <= self.lease + ttl
    }
}
