//! The records, and their lines.

use std::fmt::Display;
use std::io::Write;

use palisade_client::escaped_json;
use palisade_spec::lock::{Key, Principal, Token};
use palisade_spec::raft::NodeId;
use serde::Serialize;

use super::chain::Hash;
use crate::addresses::RemoteAddress;

/// A client: the name that it has proved, and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// None without TLS, and for what no client has caused.
    pub principal: Principal,
    /// Known to the node that the client is connected to.
    pub address: Option<RemoteAddress>,
}

/// What an applied entry did. Every node has the same of these for an entry, in the same order; only the
/// client's address is known to one node alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuditEvent {
    Granted { key: Key, session: u64, token: Token },
    Released { key: Key, session: u64, token: Token },
    Broken { key: Key, session: u64, token: Token, operator: Principal },
    Withdrawn { key: Key, session: u64 },
    Expired { session: u64 },
    Closed { session: u64 },
    Denied { key: Key, session: u64 },
    AccessSet { revision: u64, rules: Option<usize> },
    MemberAdded { member: NodeId, member_addr: String },
    MemberPromoted { member: NodeId },
    MemberRemoved { member: NodeId },
    MemberReplaced { member: NodeId, lost: NodeId, member_addr: String },
}

impl AuditEvent {
    /// Whether it was an administrative act, which has an intent and its result in the log too.
    pub(super) fn is_administrative(&self) -> bool {
        match self {
            AuditEvent::Broken { .. }
            | AuditEvent::AccessSet { .. }
            | AuditEvent::MemberAdded { .. }
            | AuditEvent::MemberPromoted { .. }
            | AuditEvent::MemberRemoved { .. }
            | AuditEvent::MemberReplaced { .. } => true,
            AuditEvent::Granted { .. }
            | AuditEvent::Released { .. }
            | AuditEvent::Withdrawn { .. }
            | AuditEvent::Expired { .. }
            | AuditEvent::Closed { .. }
            | AuditEvent::Denied { .. } => false,
        }
    }
}

/// An administrative act that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// To break a grant.
    Break {
        /// The key of the lock.
        key: String,
        /// The token of the grant.
        token: u64,
        /// What the operator gave as the reason.
        reason: String,
    },
    /// To replace the access rules of this revision.
    SetAccess {
        /// The revision.
        revision: u64,
    },
    /// To change the members.
    ChangeMembers {
        /// `add`, `promote`, `remove` or `replace`.
        change: &'static str,
        /// The member's node ID.
        member: u16,
    },
    /// To transfer leadership.
    Transfer {
        /// The voter that is to lead, if one is named.
        to: Option<u16>,
    },
    /// To take a snapshot.
    TakeSnapshot,
    /// To download the newest snapshot.
    ReadSnapshot,
}

/// The cluster of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cluster {
    pub(super) name: String,
    /// In hexadecimal digits, as the status shows it. Another cluster counts its entries anew.
    pub(super) id: String,
}

/// A record: what one line says.
#[derive(Clone, Debug)]
pub(super) enum Record {
    /// The first line of a file.
    File { number: u32, cluster: Cluster, position: Position, prev: Hash },
    /// The process has started.
    Started,
    /// The process stops in an orderly way; everything up to this index is recorded.
    Stopped { through: u64 },
    /// Everything up to this index is recorded, and the log may lose its entries.
    Checkpoint { through: u64 },
    /// The node did not apply these entries itself: a snapshot replaced them.
    Unseen { from: u64, through: u64 },
    /// This many bytes of an unfinished line were cut off.
    Cut { bytes: u64 },
    /// This many records were not written.
    Dropped { records: u64, why: String },
    /// An applied entry did this.
    Entry { index: u64, term: u64, event: AuditEvent, client: Client },
    /// A client requests an administrative act.
    Intent { act: Act, client: Client },
    /// The result of an intent: `done`, or an error code.
    Answered { intent: u64, result: String },
    /// This node refused what the client may not do, and has refused the same so many times since it was last recorded.
    Refused { why: String, repeats: u64, client: Client },
}

/// How far the log of the cluster is recorded: the last index, and how many of its records there are;
/// `None` means all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) index: u64,
    pub(super) parts: Option<u64>,
}

impl Position {
    /// The position after a record of this entry.
    pub(super) fn after_entry(self, index: u64) -> Position {
        let before = if self.index == index { self.parts.unwrap_or(0) } else { 0 };
        Position { index, parts: Some(before.saturating_add(1)) }
    }

    /// The position when everything up to `through` is recorded, or was never seen.
    pub(super) fn through(self, through: u64) -> Position {
        if through >= self.index { Position { index: through, parts: None } } else { self }
    }

    /// The position after a record.
    pub(super) fn after(self, record: &Record) -> Position {
        match record {
            Record::Entry { index, .. } => self.after_entry(*index),
            Record::Stopped { through } | Record::Checkpoint { through } | Record::Unseen { through, .. } => {
                self.through(*through)
            }
            _ => self,
        }
    }
}

impl AuditEvent {
    fn name(&self) -> &'static str {
        match self {
            AuditEvent::Granted { .. } => "granted",
            AuditEvent::Released { .. } => "released",
            AuditEvent::Broken { .. } => "broken",
            AuditEvent::Withdrawn { .. } => "withdrawn",
            AuditEvent::Expired { .. } => "expired",
            AuditEvent::Closed { .. } => "closed",
            AuditEvent::Denied { .. } => "denied",
            AuditEvent::AccessSet { .. } => "access_set",
            AuditEvent::MemberAdded { .. } => "member_added",
            AuditEvent::MemberPromoted { .. } => "member_promoted",
            AuditEvent::MemberRemoved { .. } => "member_removed",
            AuditEvent::MemberReplaced { .. } => "member_replaced",
        }
    }

    fn write(&self, line: &mut Line<'_>) {
        match self {
            AuditEvent::Granted { key, session, token } | AuditEvent::Released { key, session, token } => {
                line.text("key", key.as_str()).number("token", token.0).number("session", *session);
            }
            AuditEvent::Broken { key, session, token, operator } => {
                line.text("key", key.as_str()).number("token", token.0).number("session", *session);
                line.named("operator", operator);
            }
            AuditEvent::Withdrawn { key, session } | AuditEvent::Denied { key, session } => {
                line.text("key", key.as_str()).number("session", *session);
            }
            AuditEvent::Expired { session } | AuditEvent::Closed { session } => {
                line.number("session", *session);
            }
            AuditEvent::AccessSet { revision, rules } => {
                line.number("revision", *revision).flag("enabled", rules.is_some());
                line.number("rules", rules.map_or(0, |rules| rules as u64));
            }
            AuditEvent::MemberAdded { member, member_addr } => {
                line.shown("member", member).text("member_addr", member_addr);
            }
            AuditEvent::MemberPromoted { member } | AuditEvent::MemberRemoved { member } => {
                line.shown("member", member);
            }
            AuditEvent::MemberReplaced { member, lost, member_addr } => {
                line.shown("member", member).shown("lost", lost).text("member_addr", member_addr);
            }
        }
    }
}

impl Act {
    fn write(&self, line: &mut Line<'_>) {
        match self {
            Act::Break { key, token, reason } => {
                line.text("act", "break").text("key", key).number("token", *token).text("reason", reason);
            }
            Act::SetAccess { revision } => {
                line.text("act", "set_access").number("revision", *revision);
            }
            Act::ChangeMembers { change, member } => {
                line.text("act", &format!("{change}_member")).shown("member", member);
            }
            Act::Transfer { to } => {
                line.text("act", "transfer_leadership");
                if let Some(to) = to {
                    line.shown("to", to);
                }
            }
            Act::TakeSnapshot => {
                line.text("act", "take_snapshot");
            }
            Act::ReadSnapshot => {
                line.text("act", "read_snapshot");
            }
        }
    }
}

impl Record {
    /// Whether it is about an administrative act that an entry has done.
    pub(super) fn is_of_an_act(&self) -> bool {
        matches!(self, Record::Entry { event, .. } if event.is_administrative())
    }

    fn event(&self) -> &'static str {
        match self {
            Record::File { .. } => "file",
            Record::Started => "started",
            Record::Stopped { .. } => "stopped",
            Record::Checkpoint { .. } => "checkpoint",
            Record::Unseen { .. } => "unseen",
            Record::Cut { .. } => "cut",
            Record::Dropped { .. } => "dropped",
            Record::Entry { event, .. } => event.name(),
            Record::Intent { .. } => "intent",
            Record::Answered { .. } => "answered",
            Record::Refused { .. } => "refused",
        }
    }

    /// Appends the record's line without its hash.
    pub(super) fn write(&self, n: u64, time: &str, node: &str, text: &mut Vec<u8>) {
        text.push(b'{');
        let mut line = Line { text };
        line.first_number("n", n).word("time", time).word("node", node).word("event", self.event());
        match self {
            Record::File { number, cluster, position, prev } => {
                line.number("format", FORMAT).text("cluster", &cluster.name).text("cluster_id", &cluster.id);
                line.number("file", u64::from(*number));
                line.number("through", position.index);
                if let Some(parts) = position.parts {
                    line.number("parts", parts);
                }
                line.shown("prev", prev);
            }
            Record::Started => {
                line.text("version", env!("CARGO_PKG_VERSION"));
            }
            Record::Stopped { through } | Record::Checkpoint { through } => {
                line.number("through", *through);
            }
            Record::Unseen { from, through } => {
                line.number("from", *from).number("through", *through);
            }
            Record::Cut { bytes } => {
                line.number("bytes", *bytes);
            }
            Record::Dropped { records, why } => {
                line.number("records", *records).text("why", why);
            }
            Record::Entry { index, term, event, client } => {
                line.number("index", *index).number("term", *term);
                event.write(&mut line);
                line.client(client);
            }
            Record::Intent { act, client } => {
                act.write(&mut line);
                line.client(client);
            }
            Record::Answered { intent, result } => {
                line.number("intent", *intent).text("result", result);
            }
            Record::Refused { why, repeats, client } => {
                line.text("why", why).number("repeats", *repeats).client(client);
            }
        }
    }
}

/// The version of the records.
pub(super) const FORMAT: u64 = 1;

/// A JSON object under construction. Each lock that changes hands makes two lines at each node, so this
/// takes no detour over `format!`.
struct Line<'a> {
    text: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn first_number(&mut self, name: &str, value: u64) -> &mut Self {
        self.first_name(name).value(&value)
    }

    fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.name(name).value(&value)
    }

    fn flag(&mut self, name: &str, value: bool) -> &mut Self {
        self.name(name).value(&value)
    }

    /// A name or a sentence: an operator reads the file on a terminal, so what a terminal obeys is an escape of JSON.
    fn text(&mut self, name: &str, value: &str) -> &mut Self {
        if value.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
            return self.word(name, value);
        }
        self.name(name);
        let json = serde_json::to_string(value).expect("every text has a JSON form");
        self.text.extend_from_slice(escaped_json(&json).as_bytes());
        self
    }

    /// A text that needs no escape.
    fn word(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name).text.push(b'"');
        self.text.extend_from_slice(value.as_bytes());
        self.text.push(b'"');
        self
    }

    /// A value whose text needs no escape.
    fn shown(&mut self, name: &str, value: &impl Display) -> &mut Self {
        self.name(name);
        let _ = write!(self.text, "\"{value}\"");
        self
    }

    fn named(&mut self, name: &str, principal: &Principal) -> &mut Self {
        if principal.is_none() { self } else { self.text(name, principal.as_str()) }
    }

    fn client(&mut self, client: &Client) -> &mut Self {
        self.named("principal", &client.principal);
        match client.address {
            Some(address) => self.shown("address", &address),
            None => self,
        }
    }

    fn name(&mut self, name: &str) -> &mut Self {
        self.text.push(b',');
        self.first_name(name)
    }

    fn first_name(&mut self, name: &str) -> &mut Self {
        self.text.push(b'"');
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b"\":");
        self
    }

    fn value<V: Serialize + ?Sized>(&mut self, value: &V) -> &mut Self {
        serde_json::to_writer(&mut *self.text, value).expect("a vector takes all that is written to it");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a record is one line, and no terminal obeys what a client has put into it; it has the true values.
    #[test]
    fn record_is_one_shown_line_whatever_its_names_are() {
        let client = Client { principal: "a\"b\n\u{7f}ä".into(), address: Some("[::1]:7".parse().unwrap()) };
        let key = "k\\\n\u{7}\u{2028}\u{9b}2J\u{202e}";
        let event = AuditEvent::Granted { key: Key::from(key), session: 3, token: Token(9) };
        let mut text = Vec::new();
        Record::Entry { index: 5, term: 2, event, client }.write(1, "now", "1", &mut text);
        text.push(b'}');
        let shown = std::str::from_utf8(&text).unwrap();
        assert_eq!(palisade_client::escaped(shown), shown);
        assert!(shown.contains(r"\u009b2J\u202e") && shown.contains('ä'), "{shown}");
        let parsed: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            parsed,
            serde_json::json!({
                "n": 1, "time": "now", "node": "1", "event": "granted", "index": 5, "term": 2, "key": key,
                "token": 9, "session": 3, "principal": "a\"b\n\u{7f}ä", "address": "[::1]:7"
            })
        );
    }

    #[test]
    fn position_counts_the_records_of_an_entry() {
        let start = Position::default();
        let twice = start.after_entry(4).after_entry(4);
        assert_eq!(twice, Position { index: 4, parts: Some(2) });
        assert_eq!(twice.after_entry(6), Position { index: 6, parts: Some(1) });
        assert_eq!(twice.through(3), twice, "an older checkpoint takes nothing back");
        assert_eq!(twice.through(4), Position { index: 4, parts: None });
    }
}
