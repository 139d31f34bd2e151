//! A client: what it asks for, what it is told, and how long it relies on that.

use palisade_spec::lock::{Claim, Command, Event, Outcome, Reply, Sequence, SessionId, Token};
use palisade_spec::raft::Payload;
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
    /// When it sent the first of the keepalives that are not answered yet.
    pub keepalive: Option<u64>,
    /// Whether it has written.
    pub wrote: bool,
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
    pub(super) fn ask(&mut self, session: SessionId, request: Request, now: u64) -> Command {
        match request {
            Request::Acquire if self.arrivals[0] == 0 => self.asked = now,
            Request::KeepAlive => self.keepalive = self.keepalive.or(Some(now)),
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

    /// Hears what an entry did, as far as it is about this client's session.
    pub(super) fn hear(&mut self, own: SessionId, entry: Option<&Payload<Command>>, outcome: &Outcome) {
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
        // Whichever keepalive was answered, it was sent no earlier than the first of them.
        if let (Some(Reply::KeptAlive { missing }), Some(Payload::Command(Command::KeepAlive { sessions }))) =
            (&outcome.reply, entry)
            && sessions.contains(&own)
            && !missing.contains(&own)
            && let Some(sent) = self.keepalive.take()
        {
            self.lease = self.lease.max(sent);
        }
    }

    /// Whether it may still rely on its lease: it was told of a grant, has not given it back, and by its own count its
    /// TTL has not passed.
    pub(super) fn relies(&self, now: u64, ttl: u64) -> bool {
        self.token.is_some() && self.arrivals[Request::Release as usize] == 0 && now <= self.lease + ttl
    }
}
