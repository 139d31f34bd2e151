//! A history: operations, built from the lines of a record.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{self, BufRead, Write};

use super::event::VERSION;
use super::{Answer, Call, Change, Client, Event, Holder, Mode, Note, OpId, Refusal, Time};

/// An operation's index in its history.
pub(super) type OperationIndex = usize;

/// A client's operation: its request and what the client learned of the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number in the record.
    pub id: OpId,
    /// The client.
    pub client: Client,
    /// A time before the request was sent.
    pub invoked: Time,
    /// The request.
    pub call: Call,
    /// What the client learned before the operation ended.
    pub notes: Vec<(Time, Note)>,
    /// A time after the operation ended, and how it ended; `None` if it was still under way when
    /// the record ended.
    pub end: Option<(Time, End)>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was done.
    Ok(Answer),
    /// It was certainly not done.
    Fail(Refusal),
    /// The outcome is unknown, for this reason.
    Info(String),
}

/// What clients observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// How much faster than the recorder's clock the service's clocks may run, in millionths.
    pub drift_ppm: u32,
    /// The operations, in the order of their invocations.
    pub operations: Vec<Operation>,
}

/// Why a record is not a valid history.
#[derive(Debug, thiserror::Error)]
pub enum BadHistory {
    /// The record could not be read or written.
    #[error("the record cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is not an event.
    #[error("line {line} is not an event of a history: {error}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        error: String,
    },
    /// The record's format has another version.
    #[error("the record has version {0} of the format; this program reads version {VERSION}")]
    Version(u32),
    /// An operation is invalid.
    #[error("operation {}: {problem}", op.0)]
    Operation {
        /// The operation.
        op: OpId,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Operation {
    /// The answer, if it was done.
    pub fn answer(&self) -> Option<&Answer> {
        match &self.end {
            Some((_, End::Ok(answer))) => Some(answer),
            _ => None,
        }
    }

    /// The refusal, if it was certainly not done.
    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.end {
            Some((_, End::Fail(refusal))) => Some(refusal),
            _ => None,
        }
    }

    /// The latest time at which it can take effect: when its answer arrived. An operation without
    /// an answer can take effect at any later time.
    pub fn completed(&self) -> Time {
        match &self.end {
            Some((time, End::Ok(_) | End::Fail(_))) => *time,
            Some((_, End::Info(_))) | None => Time::NEVER,
        }
    }

    /// Whether its connection broke while it waited, or it was sent again.
    pub fn was_disconnected(&self) -> bool {
        self.repetitions() > 0
    }

    /// Whether it was sent again under its number: then it was done once at most, and the sending that was answered may
    /// have done nothing.
    pub(crate) fn was_repeated_by_number(&self) -> bool {
        self.call.number().is_some() && self.was_disconnected()
    }

    /// How often it was sent again.
    pub(crate) fn repetitions(&self) -> usize {
        self.notes.iter().filter(|(_, note)| *note == Note::Disconnected).count()
    }

    /// Whether a refusal is certain although the request was sent more than once. A refusal answers
    /// one sending. An acquire with a number is done once at most, and every sending returns its
    /// outcome. Another sending of any other request may be executed later, or may have been
    /// executed before.
    fn settles_all_sendings(&self, refusal: &Refusal) -> bool {
        match &self.call {
            Call::Read { .. } | Call::ReadRecord { .. } => true,
            Call::WriteRecord { number: Some(_), .. } => {
                matches!(refusal, Refusal::StaleToken | Refusal::OtherVersion { .. })
            }
            Call::Acquire { number: Some(_), .. } => {
                matches!(refusal, Refusal::Held { .. } | Refusal::Timeout | Refusal::Withdrawn | Refusal::Denied)
            }
            _ => false,
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        if let Call::Acquire { mode, .. } = &self.call
            && !mode.is_possible()
        {
            return Err("an acquire takes at least one permit and at most all");
        }
        let mut texts = self.call.changes().filter_map(|(_, change)| change.text());
        if texts.any(|text| !text.ends_with(';') || text.matches(';').count() > 1) {
            return Err("a record's text ends with a semicolon and has no other");
        }
        let mut records = BTreeSet::new();
        if !self.call.changes().all(|(record, _)| records.insert(record)) {
            return Err("a transaction changes each record once");
        }
        let Some((time, end)) = &self.end else { return Ok(()) };
        if *time < self.invoked {
            return Err("the completion is earlier than the invocation");
        }
        if let End::Fail(refusal) = end
            && self.was_disconnected()
            && !self.settles_all_sendings(refusal)
        {
            return Err("the request was sent more than once, so a refusal is not certain: record an `info`");
        }
        let fits = match (&self.call, end) {
            (_, End::Info(_) | End::Fail(Refusal::NotTaken { .. })) => true,
            (Call::OpenSession { .. }, End::Ok(answer)) => matches!(answer, Answer::Opened { .. }),
            (Call::KeepAlive { .. }, End::Ok(answer)) => matches!(answer, Answer::KeptAlive),
            (Call::CloseSession { .. }, End::Ok(answer)) => matches!(answer, Answer::Closed),
            (Call::Acquire { session: Some(asked), .. }, End::Ok(Answer::Granted { session, .. })) => asked == session,
            (Call::Acquire { .. }, End::Ok(answer)) => matches!(answer, Answer::Granted { .. }),
            (Call::Withdraw { .. }, End::Ok(answer)) => matches!(answer, Answer::Withdrawn | Answer::StillHeld { .. }),
            (Call::Release { .. }, End::Ok(answer)) => matches!(answer, Answer::Released | Answer::StillHeld { .. }),
            (Call::Proclaim { .. }, End::Ok(answer)) => matches!(answer, Answer::Proclaimed),
            (Call::Break { .. }, End::Ok(answer)) => matches!(answer, Answer::Broken { .. }),
            (Call::SetAccess { .. }, End::Ok(answer)) => matches!(answer, Answer::AccessSet { .. }),
            (Call::Read { .. }, End::Ok(answer)) => matches!(answer, Answer::Lock { .. }),
            (Call::WriteRecord { .. }, End::Ok(answer)) => matches!(answer, Answer::Written { .. }),
            (Call::ReadRecord { .. }, End::Ok(answer)) => matches!(answer, Answer::Record { .. } | Answer::NoRecord),
            (Call::Access { .. }, End::Ok(answer)) => matches!(answer, Answer::Accepted),
            (Call::NoteLoss { .. }, End::Ok(answer)) => matches!(answer, Answer::Noted),
            (Call::KeepAlive { .. }, End::Fail(refusal)) => matches!(refusal, Refusal::NoSession),
            (Call::Acquire { wait_ms: 0, .. }, End::Fail(refusal)) => {
                matches!(refusal, Refusal::Held { .. } | Refusal::NoSession | Refusal::Denied)
            }
            (Call::Acquire { max_queue: Some(_), .. }, End::Fail(Refusal::Held { .. })) => true,
            (Call::Acquire { .. }, End::Fail(refusal)) => {
                matches!(refusal, Refusal::Timeout | Refusal::Withdrawn | Refusal::NoSession | Refusal::Denied)
            }
            (Call::Release { .. }, End::Fail(refusal)) => matches!(refusal, Refusal::NotHolder),
            (Call::Proclaim { .. }, End::Fail(refusal)) => matches!(refusal, Refusal::NotHolder | Refusal::NoSession),
            (Call::Break { .. }, End::Fail(refusal)) => matches!(refusal, Refusal::NotHolder | Refusal::Denied),
            (Call::SetAccess { .. } | Call::Read { .. } | Call::ReadRecord { .. }, End::Fail(refusal)) => {
                matches!(refusal, Refusal::Denied)
            }
            (Call::WriteRecord { .. }, End::Fail(Refusal::OtherVersion { .. })) => {
                self.call.must_have().next().is_some()
            }
            (Call::WriteRecord { .. }, End::Fail(refusal)) => {
                matches!(refusal, Refusal::StaleToken | Refusal::NoSession | Refusal::Denied)
            }
            (Call::Access { .. }, End::Fail(refusal)) => matches!(refusal, Refusal::Refused),
            (_, End::Fail(_)) => false,
        };
        if fits { Ok(()) } else { Err("the answer does not fit the call") }
    }
}

impl History {
    /// Reads the lines of a record, in any order.
    ///
    /// # Errors
    /// [`BadHistory`], with the invalid line or operation.
    pub fn read(lines: impl BufRead) -> Result<History, BadHistory> {
        let mut events = Vec::new();
        for (line, text) in (1..).zip(lines.lines()) {
            let text = text?;
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let event = serde_json::from_str(text);
            events.push(event.map_err(|error| BadHistory::Line { line, error: error.to_string() })?);
        }
        History::from_events(events)
    }

    /// Builds operations from events.
    ///
    /// # Errors
    /// [`BadHistory::Version`], [`BadHistory::Operation`].
    pub fn from_events(events: impl IntoIterator<Item = Event>) -> Result<History, BadHistory> {
        let mut history = History::default();
        let mut indices = HashMap::new();
        let mut later = Vec::new();
        for event in events {
            match event {
                Event::History { version, drift_ppm } => {
                    if version != VERSION {
                        return Err(BadHistory::Version(version));
                    }
                    history.drift_ppm = history.drift_ppm.max(drift_ppm);
                }
                Event::Invoke { op, client, time, call } => {
                    if indices.insert(op, history.operations.len()).is_some() {
                        return Err(BadHistory::Operation { op, problem: "the operation is invoked twice" });
                    }
                    let operation = Operation { id: op, client, invoked: time, call, notes: Vec::new(), end: None };
                    history.operations.push(operation);
                }
                Event::Note { op, time, note } => later.push((op, time, Later::Note(note))),
                Event::Ok { op, time, value } => later.push((op, time, Later::End(End::Ok(value)))),
                Event::Fail { op, time, error } => later.push((op, time, Later::End(End::Fail(error)))),
                Event::Info { op, time, why } => later.push((op, time, Later::End(End::Info(why)))),
            }
        }
        for (op, time, what) in later {
            let problem = |problem| BadHistory::Operation { op, problem };
            let index = *indices.get(&op).ok_or_else(|| problem("the operation was never invoked"))?;
            let operation = &mut history.operations[index];
            match what {
                Later::Note(note) => operation.notes.push((time, note)),
                Later::End(_) if operation.end.is_some() => return Err(problem("the operation is completed twice")),
                Later::End(end) => operation.end = Some((time, end)),
            }
        }
        for operation in &mut history.operations {
            operation.notes.sort_by_key(|(time, _)| *time);
            operation.check().map_err(|problem| BadHistory::Operation { op: operation.id, problem })?;
        }
        history.operations.sort_by_key(|operation| operation.invoked);
        Ok(history)
    }

    /// The lines of a record with this history, in the order of their times.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for operation in &self.operations {
            let Operation { id: op, client, invoked, call, notes, end } = operation.clone();
            events.push((invoked, Event::Invoke { op, client, time: invoked, call }));
            events.extend(notes.into_iter().map(|(time, note)| (time, Event::Note { op, time, note })));
            events.extend(end.map(|(time, end)| {
                let event = match end {
                    End::Ok(value) => Event::Ok { op, time, value },
                    End::Fail(error) => Event::Fail { op, time, error },
                    End::Info(why) => Event::Info { op, time, why },
                };
                (time, event)
            }));
        }
        events.sort_by_key(|(time, _)| *time);
        let header = Event::History { version: VERSION, drift_ppm: self.drift_ppm };
        std::iter::once(header).chain(events.into_iter().map(|(_, event)| event)).collect()
    }

    /// Writes the lines of a record.
    ///
    /// # Errors
    /// If writing to `into` fails.
    pub fn write(&self, mut into: impl Write) -> io::Result<()> {
        for event in self.events() {
            serde_json::to_writer(&mut into, &event)?;
            into.write_all(b"\n")?;
        }
        Ok(())
    }

    /// What was known at that moment, without later invocations and answers.
    #[must_use]
    pub fn until(&self, moment: Time) -> History {
        let begun = self.operations.iter().filter(|operation| operation.invoked <= moment).cloned();
        let cut = begun.map(|mut operation| {
            operation.notes.retain(|(time, _)| *time <= moment);
            operation.end = operation.end.filter(|(time, _)| *time <= moment);
            operation
        });
        History { drift_ppm: self.drift_ppm, operations: cut.collect() }
    }

    /// The minimum lifetime of a session after a sign of life, in nanoseconds of the recorder's
    /// clock.
    pub fn at_least(&self, ttl_ms: u64) -> u64 {
        let (ttl, drift) = (u128::from(ttl_ms) * 1_000_000, u128::from(self.drift_ppm));
        u64::try_from(ttl * 1_000_000 / (1_000_000 + drift)).unwrap_or(u64::MAX)
    }
}

enum Later {
    Note(Note),
    End(End),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'s ", self.client)?;
        match &self.call {
            Call::OpenSession { ttl_ms } => write!(f, "opening of a session of {ttl_ms} ms")?,
            Call::KeepAlive { session } => write!(f, "keepalive of session {session}")?,
            Call::CloseSession { session } => write!(f, "close of session {session}")?,
            Call::Acquire { keys, session, mode, .. } => {
                match mode {
                    Mode::Exclusive => write!(f, "acquire of {keys}")?,
                    Mode::Shared => write!(f, "shared acquire of {keys}")?,
                    Mode::Semaphore { permits, of } => write!(f, "acquire of {permits} of {of} permits of {keys}")?,
                }
                if let Some(session) = session {
                    write!(f, " for session {session}")?;
                }
            }
            Call::Withdraw { keys, session, .. } => write!(f, "withdrawal of session {session} from {keys}")?,
            Call::Release { keys, session, token, .. } => {
                write!(f, "release of {keys} with token {token} by session {session}")?;
            }
            Call::Proclaim { key, session, token, value, .. } => {
                write!(f, "proclamation of {value:?} at {key} with token {token} by session {session}")?;
            }
            Call::Break { key, token } => write!(f, "break of {key} with token {token}")?,
            Call::SetAccess { revision } => write!(f, "change of the access rules of revision {revision}")?,
            Call::Read { key, stale: false } => write!(f, "read of {key}")?,
            Call::Read { key, stale: true } => write!(f, "stale read of {key}")?,
            Call::Access { key, token, reads: false } => write!(f, "access to {key} with token {token}")?,
            Call::Access { key, token, reads: true } => write!(f, "reader's access to {key} with token {token}")?,
            Call::WriteRecord { record: first, .. } => {
                for (number, (record, change)) in self.call.changes().enumerate() {
                    f.write_str(if number == 0 { "" } else { " and " })?;
                    match change {
                        Change::Put(text) => write!(f, "write of {text:?} to record {record}")?,
                        Change::Append(text) => write!(f, "append of {text:?} to record {record}")?,
                        Change::Delete => write!(f, "deletion of record {record}")?,
                    }
                }
                for (lock, token) in self.call.must_hold() {
                    write!(f, " with token {token}")?;
                    if lock != first {
                        write!(f, " of {lock}")?;
                    }
                }
                for (record, version) in self.call.must_have() {
                    match version {
                        0 => write!(f, " if there is no record {record}")?,
                        _ => write!(f, " if record {record} has version {version}")?,
                    }
                }
            }
            Call::ReadRecord { record, stale: false } => write!(f, "read of record {record}")?,
            Call::ReadRecord { record, stale: true } => write!(f, "stale read of record {record}")?,
            Call::NoteLoss { session } => write!(f, "note that session {session} is lost")?,
        }
        write!(f, " (operation {}, invoked at {}, ", self.id.0, self.invoked)?;
        if self.was_disconnected() {
            f.write_str("then its connection broke, ")?;
        }
        match &self.end {
            None => write!(f, "not answered)"),
            Some((time, End::Info(why))) => write!(f, "unknown at {time}: {why})"),
            Some((time, End::Ok(answer))) => write!(f, "answered at {time}: {answer})"),
            Some((time, End::Fail(refusal))) => write!(f, "refused at {time}: {refusal})"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Opened { session } => write!(f, "session {session}"),
            Answer::KeptAlive => f.write_str("kept alive"),
            Answer::Closed => f.write_str("closed"),
            Answer::Granted { session, token } => write!(f, "granted to {session} with token {token}"),
            Answer::Withdrawn => f.write_str("withdrawn"),
            Answer::Released => f.write_str("released"),
            Answer::StillHeld { holds } => write!(f, "still held, {holds} times"),
            Answer::Proclaimed => f.write_str("proclaimed"),
            Answer::Broken { session } => write!(f, "taken from session {session}"),
            Answer::AccessSet { revision } => write!(f, "revision {revision}"),
            Answer::Lock { holders, queue, .. } => {
                for (index, Holder { session, token, mode, value }) in holders.iter().enumerate() {
                    let what = if index == 0 { "held by " } else { ", by " };
                    write!(f, "{what}{session} with token {token}")?;
                    if !mode.is_exclusive() {
                        write!(f, " ({mode})")?;
                    }
                    if let Some(value) = value {
                        write!(f, " and value {value:?}")?;
                    }
                }
                if holders.is_empty() {
                    f.write_str("free")?;
                }
                for (index, waiter) in queue.iter().enumerate() {
                    write!(f, "{}{waiter}", if index == 0 { ", then " } else { ", " })?;
                }
                Ok(())
            }
            Answer::Written { version } => write!(f, "version {version}"),
            Answer::Record { version, value } => write!(f, "version {version}, {value:?}"),
            Answer::NoRecord => f.write_str("no such record"),
            Answer::Accepted => f.write_str("accepted"),
            Answer::Noted => f.write_str("noted"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Held { token: Some(token) } => write!(f, "held with token {token}"),
            Refusal::Held { token: None } => f.write_str("waited for by others"),
            Refusal::Timeout => f.write_str("the wait ended"),
            Refusal::Withdrawn => f.write_str("withdrawn"),
            Refusal::NotHolder => f.write_str("not the holder"),
            Refusal::NoSession => f.write_str("no such session"),
            Refusal::Denied => f.write_str("denied by the access rules"),
            Refusal::StaleToken => f.write_str("not under a token that is held"),
            Refusal::OtherVersion { version: 0 } => f.write_str("there is no such record"),
            Refusal::OtherVersion { version } => write!(f, "the record has version {version}"),
            Refusal::Refused => f.write_str("the token is too low"),
            Refusal::NotTaken { message } => f.write_str(message),
        }
    }
}
