//! The core's audit records: everything that the entries which it applies do.
//!
//! Every node applies every entry, so every node's audit log is complete by itself. Entries that a
//! restart applies again are recorded already, and are skipped; entries that a snapshot replaced are
//! named as unseen.

use std::collections::HashMap;

use palisade_spec::lock::{Command, Event, LockTable, Outcome, Principal, Reply, SessionId};
use palisade_spec::raft::{Entry, Index, Members, Node, NodeId, Payload, Standing, Term};

use super::Audit;
use super::record::{AuditEvent, Client, Position, Record};
use crate::addresses::RemoteAddress;

/// The core's side of the audit log.
#[derive(Debug)]
pub struct Trail {
    audit: Audit,
    /// The principals of the sessions that have one: the end of a session is reported when the table
    /// no longer has it.
    principals: HashMap<u64, Principal>,
    /// How far the log was recorded before this process started.
    recorded: Position,
    /// The last index that is recorded or known to be unseen.
    seen: u64,
    records: Vec<Record>,
}

/// The clients that this node knows of.
pub trait Clients {
    /// The client whose request became the entry at this index and term.
    fn requester(&self, index: Index, term: Term) -> Client;

    /// The address of a client that waits here for what the event decides.
    fn waiter(&self, event: &Event) -> Option<RemoteAddress>;
}

impl Trail {
    pub(super) fn new(audit: Audit, recorded: Position) -> Trail {
        Trail { audit, principals: HashMap::new(), recorded, seen: recorded.index, records: Vec::new() }
    }

    /// The node begins with this table.
    pub fn recovered(&mut self, table: &LockTable) {
        let known = table.sessions().iter().filter(|(_, session)| !session.principal.is_none());
        self.principals = known.map(|(id, session)| (id.number, session.principal.clone())).collect();
    }

    /// The node has applied an entry.
    pub fn applied(
        &mut self,
        node: &Node<LockTable>,
        (index, term): (Index, Term),
        outcome: &Outcome,
        clients: &impl Clients,
    ) {
        let skip = match self.recorded {
            Position { index: last, .. } if index.0 > last => 0,
            Position { index: last, parts: Some(parts) } if index.0 == last => usize::try_from(parts).unwrap_or(0),
            _ => usize::MAX,
        };
        if index.0.saturating_sub(1) > self.seen {
            // A snapshot replaced the table and the entries up to this one.
            self.records.push(Record::Unseen { from: self.seen + 1, through: index.0 - 1 });
            self.recovered(node.machine());
        }
        self.seen = self.seen.max(index.0);
        // The entry is missing only if a snapshot that was installed in the same iteration replaced it.
        let entry = node.log().get(index).filter(|entry| entry.term == term);
        self.learn_principal(entry, outcome.reply.as_ref());
        if skip < usize::MAX {
            let first = self.records.len();
            self.record(node, (index, term), entry, outcome, clients);
            let is_administrative = self.records[first..].iter().any(Record::is_of_an_act);
            let skipped = self.records.len().min(first.saturating_add(skip));
            self.records.drain(first..skipped);
            if is_administrative {
                // The core answers the administrator next, and the record of the answer comes after the act's.
                self.hand_over();
            }
        }
        for event in &outcome.events {
            if let Event::Closed { session } | Event::Expired { session, .. } = event {
                self.principals.remove(&session.number);
            }
        }
    }

    /// A session that the entry has opened has this principal.
    fn learn_principal(&mut self, entry: Option<&Entry<Command>>, reply: Option<&Reply>) {
        let opening = match entry.map(|entry| &entry.payload) {
            Some(Payload::Command(Command::Open { opening } | Command::AcquireOnce { opening, .. })) => opening,
            _ => return,
        };
        if opening.principal.is_none() {
            return;
        }
        if let Some(Reply::Opened { session } | Reply::Granted { session, .. } | Reply::Queued { session, .. }) = reply
        {
            self.principals.insert(session.number, opening.principal.clone());
        }
    }

    /// Records what the entry did, each event with the client concerned: the session's principal, and the address of
    /// the request that this node answers with it.
    fn record(
        &mut self,
        node: &Node<LockTable>,
        at: (Index, Term),
        entry: Option<&Entry<Command>>,
        outcome: &Outcome,
        clients: &impl Clients,
    ) {
        let Trail { principals, records, .. } = self;
        let mut record = |event, client| records.push(Record::Entry { index: at.0.0, term: at.1.0, event, client });
        let command = match entry.map(|entry| &entry.payload) {
            Some(Payload::Command(command)) => Some(command),
            Some(Payload::Members(members)) => {
                let client = clients.requester(at.0, at.1);
                let audit_events = member_events(node.log().members_at(at.0.previous()), members);
                return audit_events.into_iter().for_each(|audit_event| record(audit_event, client.clone()));
            }
            Some(Payload::Noop) | None => None,
        };
        let reply = outcome.reply.as_ref();
        let set = match (reply, command) {
            (Some(Reply::AccessSet { revision }), Some(Command::SetAccess { principal, rules, .. })) => {
                let rules = rules.as_ref().map(|rules| rules.rules().len());
                Some((AuditEvent::AccessSet { revision: revision.0, rules }, principal.clone()))
            }
            _ => None,
        };
        if outcome.events.is_empty() && set.is_none() {
            return;
        }
        let address = clients.requester(at.0, at.1).address;
        let acting = command.and_then(|command| acting(command, reply));
        for event in &outcome.events {
            let Some((audit_event, session)) = audit_event(event, command) else { continue };
            let principal = match event {
                Event::Denied { principal, .. } => principal.clone(),
                _ => principals.get(&session.number).cloned().unwrap_or_default(),
            };
            let is_requested = acting == Some(session) || matches!(audit_event, AuditEvent::Broken { .. });
            let address = clients.waiter(event).or(address.filter(|_| is_requested));
            record(audit_event, Client { principal, address });
        }
        if let Some((audit_event, principal)) = set {
            record(audit_event, Client { principal, address });
        }
    }

    /// Hands over the records of an iteration.
    pub fn hand_over(&mut self) {
        if !self.records.is_empty() {
            // The next iteration has about as many.
            let next = Vec::with_capacity(self.records.len());
            self.audit.send(std::mem::replace(&mut self.records, next));
        }
    }

    /// A snapshot up to this index is durable: the log may lose the entries before it.
    pub fn snapshot_taken(&mut self, through: Index) {
        self.records.push(Record::Checkpoint { through: through.0 });
        self.hand_over();
        // No log has these entries when the next start asks for what was not written.
        self.audit.hurry();
    }

    /// The node stops.
    pub fn stop(&mut self) {
        self.hand_over();
        self.audit.stop(self.seen);
    }
}

/// The session whose own request the command is.
fn acting(command: &Command, reply: Option<&Reply>) -> Option<SessionId> {
    match (command, reply) {
        (Command::Acquire { session, .. } | Command::Release { session, .. } | Command::Close { session }, _) => {
            Some(*session)
        }
        (Command::AcquireOnce { .. }, Some(Reply::Granted { session, .. } | Reply::Queued { session, .. })) => {
            Some(*session)
        }
        _ => None,
    }
}

/// The record of an event, and the session that the event is about. The end of a session that an acquire
/// opened for one lock has no record: it is that of its claim.
fn audit_event(event: &Event, command: Option<&Command>) -> Option<(AuditEvent, SessionId)> {
    let (event, session) = match event {
        Event::Granted { key, session, token, .. } => {
            (AuditEvent::Granted { key: key.clone(), session: session.number, token: *token }, session)
        }
        Event::Released { key, session, token } => {
            (AuditEvent::Released { key: key.clone(), session: session.number, token: *token }, session)
        }
        Event::Broken { key, session, token } => {
            let operator = match command {
                Some(Command::Break { principal, .. }) => principal.clone(),
                _ => Principal::default(),
            };
            (AuditEvent::Broken { key: key.clone(), session: session.number, token: *token, operator }, session)
        }
        Event::Withdrawn { key, session } => {
            (AuditEvent::Withdrawn { key: key.clone(), session: session.number }, session)
        }
        Event::Denied { key, session, .. } => {
            (AuditEvent::Denied { key: key.clone(), session: session.number }, session)
        }
        Event::Expired { session, .. } => (AuditEvent::Expired { session: session.number }, session),
        Event::Closed { session } => match command {
            Some(Command::Release { .. } | Command::Acquire { .. } | Command::AcquireOnce { .. }) => return None,
            _ => (AuditEvent::Closed { session: session.number }, session),
        },
        // They move no lock; the withdrawal of a waiter that is overdue follows.
        Event::Proclaimed { .. }
        | Event::Queued { .. }
        | Event::Overdue { .. }
        | Event::Put { .. }
        | Event::Deleted { .. } => return None,
    };
    Some((event, *session))
}

/// How an entry changed the members.
fn member_events(before: &Members, after: &Members) -> Vec<AuditEvent> {
    let mut audit_events = Vec::new();
    for (member, now) in after.iter() {
        let member_addr = now.address.to_string();
        match before.get(member) {
            None => match lost(before, after, member) {
                Some(lost) => audit_events.push(AuditEvent::MemberReplaced { member, lost, member_addr }),
                None => audit_events.push(AuditEvent::MemberAdded { member, member_addr }),
            },
            Some(then) if then.standing != Standing::Voter && now.standing == Standing::Voter => {
                audit_events.push(AuditEvent::MemberPromoted { member });
            }
            Some(_) => {}
        }
    }
    let is_gone = |&member: &NodeId| after.by_number(member.number()).is_none();
    audit_events.extend(before.ids().filter(is_gone).map(|member| AuditEvent::MemberRemoved { member }));
    audit_events
}

/// The member that a new member replaces.
fn lost(before: &Members, after: &Members, member: NodeId) -> Option<NodeId> {
    before.by_number(member.number()).filter(|&lost| after.get(lost).is_none())
}

#[cfg(test)]
mod tests {
    use palisade_spec::lock::{Key, Proof, Token};
    use palisade_spec::raft::{Address, Change, Config, Durable};

    use super::super::Shared;
    use super::super::writer::Message;
    use super::*;
    use crate::metrics::Metrics;

    /// A node that knows of no client.
    struct NoClients;

    impl Clients for NoClients {
        fn requester(&self, _: Index, _: Term) -> Client {
            Client::default()
        }

        fn waiter(&self, _: &Event) -> Option<RemoteAddress> {
            None
        }
    }

    /// Goal: what an administrator did is on its way to the log before the answer can be, since the answer
    /// has a record too; other records wait for the end of the iteration.
    #[test]
    fn administrative_event_is_handed_over_before_its_answer() {
        let (messages, sent) = crossbeam_channel::unbounded();
        let (urgent, _hurried) = crossbeam_channel::bounded(1);
        let audit = Audit { messages, urgent, shared: Shared::new(Metrics::new()) };
        let mut trail = Trail::new(audit, Position::default());
        let id = NodeId::new(1, 0);
        let durable = Durable::blank(LockTable::default(), Members::of([id]));
        let node = Node::recover(Config::new(id), durable);
        let (key, session, token) = (Key::from("key"), SessionId { number: 1, proof: Proof::default() }, Token(1));
        let mut apply = |index, event| {
            let outcome = Outcome { reply: None, events: vec![event] };
            trail.applied(&node, (Index(index), Term(1)), &outcome, &NoClients);
            sent.try_iter()
                .map(|message| matches!(message, Message::Records(records, _) if records.len() == 2))
                .collect::<Vec<_>>()
        };
        let (mode, owner) = (palisade_spec::lock::Mode::EXCLUSIVE, palisade_spec::lock::Owner::from("owner"));
        let granted = Event::Granted { key: key.clone(), session, token, mode, owner, value: None };
        assert!(apply(1, granted).is_empty());
        assert_eq!(apply(2, Event::Broken { key, session, token }), [true]);
    }

    /// Goal: each change of one member is named as what it is.
    #[test]
    fn change_of_members_has_a_record_of_its_kind() {
        let [one, two, again] = [NodeId::new(1, 0), NodeId::new(2, 0), NodeId::new(2, 1)];
        let address = Address::from("b:2");
        let member_addr = address.to_string();
        let mut members = Members::founding([(one, Address::from("a:1"))]);
        for (change, expected) in [
            (
                Change::Add { id: two, address: address.clone() },
                AuditEvent::MemberAdded { member: two, member_addr: member_addr.clone() },
            ),
            (Change::Promote(two), AuditEvent::MemberPromoted { member: two }),
            (
                Change::Replace { lost: two, by: again, address },
                AuditEvent::MemberReplaced { member: again, lost: two, member_addr },
            ),
            (Change::Promote(again), AuditEvent::MemberPromoted { member: again }),
            (Change::Remove(again), AuditEvent::MemberRemoved { member: again }),
        ] {
            let after = members.with(&change).unwrap();
            assert_eq!(member_events(&members, &after), [expected]);
            members = after;
        }
    }
}
