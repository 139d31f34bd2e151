//! Translates the events of an entry for watchers: the one place where events of the protocol become events of watches.
//!
//! An event of a watch is about one key. The end of a session is an event of the protocol without a key:
//! it is told at each key at which the session loses something, before the loss, and the loss says why.

use palisade_client::wire::{self, Because, Change};
use palisade_spec::lock::{Event, Key, Mode, SessionId, Token, Value};

/// An event of a watch.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    /// The event of the protocol: its number in the entry.
    source: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// As the event of the protocol says.
    Plain,
    /// The loss of a grant or of a queue position, for this reason.
    Lost(Because),
    /// The session of the loss has expired.
    Expired,
}

/// The key that the event is about, if it is about one that watchers are told of.
pub(super) fn key(event: &Event) -> Option<&Key> {
    match event {
        Event::Granted { key, .. }
        | Event::Queued { key, .. }
        | Event::Proclaimed { key, .. }
        | Event::Released { key, .. }
        | Event::Withdrawn { key, .. }
        | Event::Broken { key, .. }
        | Event::Put { key, .. }
        | Event::Deleted { key, .. } => Some(key),
        Event::Expired { .. } | Event::Closed { .. } | Event::Denied { .. } | Event::Overdue { .. } => None,
    }
}

/// Bytes of the value that the event shows.
pub(super) fn value_bytes(event: &Event) -> usize {
    match event {
        Event::Proclaimed { value, .. } | Event::Granted { value: Some(value), .. } => value.as_str().len(),
        _ => 0,
    }
}

/// The events that watchers are told of, in order. They depend on the entry alone, so each has the same
/// number at every node.
pub(super) fn notices(events: &[Event]) -> Box<[Notice]> {
    let mut notices = Vec::with_capacity(events.len());
    let mut reasons: Vec<(SessionId, Because)> = Vec::new();
    let mut broken: Vec<Token> = Vec::new();
    for (source, event) in events.iter().enumerate() {
        let mut add = |kind| notices.push(Notice { source, kind });
        let reason = |id: &SessionId| {
            reasons.iter().rev().find(|(session, _)| session == id).map_or(Because::Request, |(_, because)| *because)
        };
        match event {
            Event::Granted { .. }
            | Event::Queued { .. }
            | Event::Proclaimed { .. }
            | Event::Put { .. }
            | Event::Deleted { .. } => add(Kind::Plain),
            Event::Broken { token, .. } => {
                broken.push(*token);
                add(Kind::Plain);
            }
            Event::Released { token, .. } if broken.contains(token) => add(Kind::Lost(Because::Broken)),
            Event::Released { session, .. } | Event::Withdrawn { session, .. } => {
                let because = reason(session);
                if because == Because::Expired {
                    add(Kind::Expired);
                }
                add(Kind::Lost(because));
            }
            Event::Expired { session, .. } | Event::Overdue { session, .. } => {
                reasons.push((*session, Because::Expired));
            }
            Event::Closed { session } => reasons.push((*session, Because::Closed)),
            Event::Denied { session, .. } => reasons.push((*session, Because::Denied)),
        }
    }
    notices.into()
}

impl Notice {
    /// The key.
    pub(super) fn key<'a>(&self, events: &'a [Event]) -> &'a Key {
        key(&events[self.source]).expect("only events with a key are told")
    }

    /// Bytes of the value that it shows.
    pub(super) fn value_bytes(&self, events: &[Event]) -> usize {
        value_bytes(&events[self.source])
    }

    /// The keys of the claim, if the event shows them and there are several.
    pub(super) fn keys<'a>(&self, events: &'a [Event]) -> Vec<&'a Key> {
        let is_same = |event: &Event| match (&events[self.source], event) {
            (Event::Granted { token, .. }, Event::Granted { token: other, .. }) => token == other,
            (Event::Queued { session, .. }, Event::Queued { session: other, .. }) => session == other,
            _ => false,
        };
        // The events of one claim follow one another.
        let before = events[..self.source].iter().rev().take_while(|event| is_same(event)).count();
        let claim = events[self.source - before..].iter().take_while(|event| is_same(event));
        let keys: Vec<&Key> = claim.filter_map(key).collect();
        if keys.len() > 1 { keys } else { Vec::new() }
    }

    /// The event as the wire has it, with those keys of the claim that the reader may see.
    pub(super) fn change(&self, events: &[Event], may_see: impl Fn(&Key) -> bool) -> Change {
        let keys = || {
            let seen = self.keys(events).into_iter().filter(|key| may_see(key));
            seen.map(Key::to_string).collect::<Vec<String>>()
        };
        match (&events[self.source], self.kind) {
            (Event::Released { session, token, .. }, Kind::Expired) => {
                Change::Expired { session: session.number, token: Some(token.0) }
            }
            (Event::Released { session, token, .. }, kind) => {
                Change::Released { session: session.number, token: token.0, because: kind.because() }
            }
            (Event::Withdrawn { session, .. }, Kind::Expired) => {
                Change::Expired { session: session.number, token: None }
            }
            (Event::Withdrawn { session, .. }, kind) => {
                Change::Withdrawn { session: session.number, because: kind.because() }
            }
            (Event::Granted { session, token, mode, owner, value, .. }, _) => {
                let (mode, permits, of) = share(*mode);
                let (session, owner, value) = (session.number, owner.to_string(), value.as_ref().map(Value::to_string));
                Change::Granted { session, owner, token: token.0, mode, permits, of, keys: keys(), value }
            }
            (Event::Queued { session, mode, owner, ahead, .. }, _) => {
                let (mode, permits, of) = share(*mode);
                let (session, owner, ahead) = (session.number, owner.to_string(), *ahead);
                Change::Queued { session, owner, mode, permits, of, keys: keys(), ahead }
            }
            (Event::Proclaimed { session, token, value, .. }, _) => {
                Change::Value { session: session.number, token: token.0, value: value.to_string() }
            }
            (Event::Broken { session, token, .. }, _) => Change::Broken { session: session.number, token: token.0 },
            (Event::Put { version, fence, .. }, _) => {
                Change::Put { version: version.0, fence: fence.map(|fence| fence.0) }
            }
            (Event::Deleted { version, .. }, _) => Change::Deleted { version: version.0 },
            (Event::Expired { .. } | Event::Closed { .. } | Event::Denied { .. } | Event::Overdue { .. }, _) => {
                unreachable!("only events with a key are told")
            }
        }
    }
}

impl Kind {
    fn because(self) -> Because {
        match self {
            Kind::Lost(because) => because,
            Kind::Plain | Kind::Expired => Because::Request,
        }
    }
}

/// A mode, the permits that it takes, and all of them, as clients write them.
pub(crate) fn share(mode: Mode) -> (wire::Mode, Option<u32>, Option<u32>) {
    match mode.as_semaphore() {
        Some((permits, of)) => (wire::Mode::Semaphore, Some(permits), Some(of)),
        None if mode == Mode::SHARED => (wire::Mode::Shared, None, None),
        None => (wire::Mode::Exclusive, None, None),
    }
}
