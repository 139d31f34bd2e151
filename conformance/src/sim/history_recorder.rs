//! The clients' observations as a [history](palisade_history), checked at the end by checkers that
//! know nothing of nodes.

use std::time::Duration;

use palisade_client::wire::{self, Code, Failure};
use palisade_spec::invariants::{Check, Property};
use palisade_spec::{lock, violated};

use super::clock::DRIFT_PPM;
use crate::shown;
use palisade_history::check::check_fast;
use palisade_history::event::VERSION;
use palisade_history::{Answer, Call, Client, Event, History, Key, Keys, Mode, Note, OpId, Refusal, Time};

/// The history of all clients.
#[derive(Debug, Default)]
pub(super) struct HistoryRecorder {
    events: Vec<Event>,
    operations: u64,
}

impl HistoryRecorder {
    /// A client starts an operation.
    pub(super) fn invoke(&mut self, client: &Client, now: Duration, call: Call) -> OpId {
        self.operations += 1;
        let op = OpId(self.operations);
        self.events.push(Event::Invoke { op, client: client.clone(), time: time(now), call });
        op
    }

    /// An intermediate observation.
    pub(super) fn note(&mut self, op: OpId, now: Duration, note: Note) {
        self.events.push(Event::Note { op, time: time(now), note });
    }

    /// The operation succeeded.
    pub(super) fn ok(&mut self, op: OpId, now: Duration, value: Answer) {
        self.events.push(Event::Ok { op, time: time(now), value });
    }

    /// The operation was certainly not done.
    pub(super) fn fail(&mut self, op: OpId, now: Duration, error: Refusal) {
        self.events.push(Event::Fail { op, time: time(now), error });
    }

    /// The outcome is unknown.
    pub(super) fn info(&mut self, op: OpId, now: Duration, why: &str) {
        self.events.push(Event::Info { op, time: time(now), why: why.to_owned() });
    }

    /// The header and all events.
    pub(super) fn lines(&self) -> Vec<Event> {
        let header = Event::History { version: VERSION, drift_ppm: DRIFT_PPM };
        std::iter::once(header).chain(self.events.iter().cloned()).collect()
    }

    /// Whether a correct lock service could have produced this history.
    pub(super) fn check(&self) -> Check {
        let history = match History::from_events(self.lines()) {
            Ok(history) => history,
            Err(error) => return violated!(Property::HistoriesAreWellFormed, "{error}"),
        };
        match check_fast(&history).into_iter().find(|verdict| !verdict.violations.is_empty()) {
            Some(verdict) => violated!(Property::History(verdict.checker), "{}", verdict.violations[0]),
            None => Ok(()),
        }
    }
}

fn time(now: Duration) -> Time {
    Time(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn key(key: &lock::Key) -> Key {
    Key::from(key.as_str())
}

pub(super) fn keys(keys: &lock::Keys) -> Keys {
    Keys::new(keys.iter().map(key).collect()).expect("each key of a claim occurs once")
}

pub(super) fn mode(mode: lock::Mode) -> Mode {
    match mode.as_semaphore() {
        Some((permits, of)) => Mode::Semaphore { permits, of },
        None if mode == lock::Mode::SHARED => Mode::Shared,
        None => Mode::Exclusive,
    }
}

/// An answer in the history's form.
pub(super) fn answer(answer: &wire::Answer) -> Answer {
    match answer {
        wire::Answer::Session(lease) => Answer::Opened { session: shown::session(lease.session) },
        wire::Answer::SessionClosed => Answer::Closed,
        wire::Answer::Acquired(acquired) => {
            Answer::Granted { session: shown::session(acquired.session), token: acquired.token }
        }
        wire::Answer::Released => Answer::Released,
        wire::Answer::StillHeld { holds } => Answer::StillHeld { holds: *holds },
        wire::Answer::Withdrawn => Answer::Withdrawn,
        wire::Answer::Broken(broken) => Answer::Broken { session: shown::numbered_session(broken.session) },
        wire::Answer::Access(rules) => Answer::AccessSet { revision: rules.revision },
        wire::Answer::Lock(view) => shown::lock(view, None),
        wire::Answer::StaleLock(stale) => shown::lock(&stale.view, stale.age_ms),
        wire::Answer::Written { version } => Answer::Written { version: *version },
        wire::Answer::Proclaimed => Answer::Proclaimed,
        wire::Answer::Record(view) | wire::Answer::StaleRecord(wire::Stale { view, .. }) => shown::record(view),
        other => unreachable!("no client here asks for what {other:?} answers"),
    }
}

/// A refusal that says that nothing was done and never will be; `None` if the outcome is unknown,
/// or the client repeats the request.
pub(super) fn refusal(failure: &Failure) -> Option<Refusal> {
    match failure.error {
        Code::Held => Some(Refusal::Held { token: failure.holder.as_ref().map(|holder| holder.token) }),
        Code::Invalid => Some(Refusal::NotTaken { message: failure.message.clone() }),
        Code::Timeout => Some(Refusal::Timeout),
        Code::Withdrawn => Some(Refusal::Withdrawn),
        Code::NotHolder => Some(Refusal::NotHolder),
        Code::NoSession => Some(Refusal::NoSession),
        Code::Denied => Some(Refusal::Denied),
        Code::StaleToken => Some(Refusal::StaleToken),
        Code::OtherVersion => Some(Refusal::OtherVersion { version: failure.version? }),
        _ => None,
    }
}
