//! The events of a run: the last ones as text, and all of them as one hash. Equal seeds must give
//! equal hashes.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use palisade::core::{Query, Request};
use palisade_client::wire::{Code, Consistency};
use palisade_spec::lock::{Claim, Command, LockRequest, LockTable};
use palisade_spec::raft::{Body, Index, Message, NodeId, Term};
use parking_lot::Mutex;

use super::call::CallId;

/// Number of events kept for the report of a failure.
const REMEMBERED: usize = 120;

/// The event log; shared so that it outlives a panic of the simulation.
pub(super) type SharedEventLog = Arc<Mutex<EventLog>>;

/// The hash of all events, and the last events.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    hash: DefaultHasher,
    last: VecDeque<(Duration, Note)>,
}

/// One event.
#[derive(Clone, Debug, Hash)]
pub(super) enum Note {
    /// A node's state after a driver iteration.
    Iteration { node: NodeId, role: &'static str, term: Term, commit: Index, last: Index },
    /// A message arrived.
    Message { from: NodeId, to: NodeId, name: &'static str, term: Term, what: [u64; 4] },
    /// A request arrived.
    Request { node: NodeId, call: CallId, what: String },
    /// An answer arrived; `None` is success.
    Reply { call: CallId, refused: Option<&'static str> },
    /// A fault, a repair, or another event of the world, as text.
    Event(String),
}

impl EventLog {
    /// Appends an event.
    pub(super) fn record(&mut self, at: Duration, note: Note) {
        (at, &note).hash(&mut self.hash);
        let is_routine = match &note {
            Note::Iteration { .. } => true,
            Note::Message { name, what, .. } => {
                matches!(*name, "AppendEntries" if what[2] == 0) || matches!(*name, "AppendAccepted")
            }
            _ => false,
        };
        if is_routine {
            return;
        }
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back((at, note));
    }

    /// Hash of all events so far.
    pub(super) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// The last events, one a line.
    pub(super) fn last(&self) -> String {
        let mut text = String::new();
        for (at, note) in &self.last {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{:>14.6} s  {note}", at.as_secs_f64());
        }
        text
    }
}

impl Note {
    /// The arrival of a message.
    pub(super) fn of_message(message: &Message<LockTable>) -> Note {
        let what = match &message.body {
            Body::AppendEntries { prev, entries, commit, .. } => {
                [prev.index.0, prev.term.0, entries.len() as u64, commit.0]
            }
            Body::AppendAccepted { matched, .. } => [matched.0, 0, 0, 0],
            Body::AppendRejected { prev, .. } => [prev.0, 0, 0, 0],
            Body::PreVote { last } | Body::RequestVote { last, .. } => [last.index.0, last.term.0, 0, 0],
            Body::PreVoteReply { granted } | Body::RequestVoteReply { granted } => [u64::from(*granted), 0, 0, 0],
            Body::InstallSnapshot { snapshot } => [snapshot.last.index.0, snapshot.last.term.0, 0, 0],
            Body::TimeoutNow => [0; 4],
        };
        let Message { from, to, term, body } = message;
        Note::Message { from: *from, to: *to, name: body.name(), term: *term, what }
    }

    /// The arrival of a request.
    pub(super) fn of_request(node: NodeId, call: CallId, request: &Request) -> Note {
        let what = match request {
            Request::Propose { command, wait, .. } => describe(command, *wait),
            Request::KeepAlive { session, .. } => format!("keep session {} alive", session.number),
            Request::Read(Query::Lock(key), Consistency::Linearizable, _) => format!("read {key}"),
            Request::Read(Query::Lock(key), Consistency::Stale, _) => format!("read {key}, stale"),
            other => format!("{other:?}"),
        };
        Note::Request { node, call, what }
    }

    /// The arrival of an answer.
    pub(super) fn of_reply(call: CallId, refused: Option<Code>) -> Note {
        let refused = refused.map(|code| match code {
            Code::Held => "held",
            Code::Timeout => "timeout",
            Code::NotHolder => "not the holder",
            Code::NoSession => "no session",
            Code::Denied => "denied",
            Code::Gone => "gone",
            Code::Withdrawn => "withdrawn",
            Code::NotLeader => "not the leader",
            Code::NoLeader => "no leader",
            Code::LeadershipLost => "leadership lost",
            Code::NoSpace => "no space",
            _ => "refused",
        });
        Note::Reply { call, refused }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Iteration { node, role, term, commit, last } => {
                write!(f, "node {node} is {role} of term {term}, last entry {last}, commit {commit}")
            }
            Note::Message { from, to, name, term, what: [a, b, c, d] } => {
                write!(f, "{name} of term {term} from {from} to {to} (")?;
                match *name {
                    "AppendEntries" => write!(f, "{c} entries after {a} of term {b}, {d} committed)"),
                    "PreVote" | "RequestVote" => write!(f, "its log ends with {a} of term {b})"),
                    "InstallSnapshot" => write!(f, "up to {a} of term {b})"),
                    "PreVoteReply" | "RequestVoteReply" => {
                        write!(f, "{})", if *a == 1 { "granted" } else { "refused" })
                    }
                    _ => write!(f, "{a})"),
                }
            }
            Note::Request { node, call, what } => write!(f, "client {} asks node {node} to {what}", call.client.0),
            Note::Reply { call, refused: None } => write!(f, "client {} is answered", call.client.0),
            Note::Reply { call, refused: Some(why) } => write!(f, "client {} is refused: {why}", call.client.0),
            Note::Event(text) => f.write_str(text),
        }
    }
}

/// A command in words.
fn describe(command: &Command, wait: Duration) -> String {
    match command {
        Command::Open { opening } => format!("open a session of {} ms", opening.ttl),
        Command::Close { session } => format!("close session {}", session.number),
        Command::Acquire { session, sequence, request: LockRequest { keys, mode, .. } } => {
            format!("acquire {keys}, {mode}, for session {}, sequence {sequence:?}, wait {wait:?}", session.number)
        }
        Command::AcquireOnce { request: LockRequest { keys, mode, .. }, .. } => {
            format!("acquire {keys}, {mode}, with a new session, wait {wait:?}")
        }
        Command::Release { session, sequence, keys, claim } => {
            let claim = match claim {
                Claim::Held(token) => format!("with token {token}"),
                Claim::Waiting | Claim::Either => "held or waiting".to_owned(),
            };
            format!("release {keys} for session {}, sequence {sequence:?}, {claim}", session.number)
        }
        Command::Proclaim { session, key, token, .. } => {
            format!("proclaim a value of {key}, held with token {token} by session {}", session.number)
        }
        Command::Break { key, token, .. } => format!("break {key}, held with token {token}"),
        Command::SetAccess { revision, .. } => format!("replace the access rules of revision {revision}"),
        Command::Transact { transaction, .. } => format!("write {} records", transaction.changes.len()),
        Command::KeepAlive { sessions } => format!("keep {} sessions alive", sessions.len()),
    }
}
