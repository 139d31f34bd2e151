//! Test states for the invariants: valid states that steps reach, and access to their parts to
//! break them.
//!
//! An invariant that never fails looks like one that always holds. So each invariant has a test
//! with a state in which it must fail, and similar states in which it must not.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::invariants::Check;
use crate::lock::{
    Bytes, Change, Command, Condition, Event, Key, Keys, LockRequest, LockTable, Mode, Opening, Owner, Principal,
    Proof, Reply, Sequence, SessionId, Token, Transaction, Ttl, Writer,
};
use crate::raft::{
    Body, Config, Durable, Entry, HardState, Index, Input, Members, Message, Node, NodeId, Payload, Position,
    ReadRound, RequestId, Stamp, StateMachine, Term,
};

/// The detail of the violation; empty if `check` passed.
pub(crate) fn complaint(check: Check) -> alloc::string::String {
    check.map_or_else(|violation| violation.detail, |()| "".into())
}

/// Node 1 of three, in `term`, with no-ops of these terms in its log.
pub(crate) fn follower(term: u64, terms: &[u64]) -> Node<LockTable> {
    let mut durable = Durable::blank(LockTable::default(), Members::of([1, 2, 3].map(NodeId)));
    durable.hard = HardState { term: Term(term), vote: None };
    (1..).zip(terms).for_each(|(index, &term)| durable.log.push(noop(index, term)));
    Node::recover(Config::new(NodeId(1)), durable)
}

/// Node 1 of three, elected in `term` with the vote of node 2; before its own no-op its log has
/// some of these terms.
pub(crate) fn leader(term: u64, terms: &[u64]) -> Node<LockTable> {
    let mut node = follower(term - 1, terms);
    step(&mut node, Input::ElectionTimeout);
    hear(&mut node, term - 1, Body::PreVoteReply { granted: true });
    hear(&mut node, term, Body::RequestVoteReply { granted: true });
    assert!(node.is_leader());
    node
}

/// The node after a proposal of one command per session, which differ only in the session.
pub(crate) fn with_proposals(node: &Node<LockTable>, sessions: &[u64]) -> Node<LockTable> {
    let mut node = node.clone();
    let payloads = sessions.iter().map(|&number| Payload::Command(Command::Close { session: id(number) })).collect();
    step(&mut node, Input::Propose { id: RequestId(1), payloads });
    node
}

/// The node after an AppendEntries of node 2, the leader of `term`, with no-ops of these terms from
/// index 1 on.
pub(crate) fn with_appended(node: &Node<LockTable>, term: u64, terms: &[u64], commit: u64) -> Node<LockTable> {
    let mut node = node.clone();
    let entries = (1..).zip(terms).map(|(index, &term)| noop(index, term)).collect();
    let (prev, stamp, round) = (Position::default(), Stamp::default(), ReadRound::default());
    let body = Body::AppendEntries { prev, entries, commit: Index(commit), stamp, round };
    hear(&mut node, term, body);
    node
}

/// The node with a change to these voters at the end of its log, made in `term`.
pub(crate) fn with_members(node: &Node<LockTable>, term: u64, voters: &[u32]) -> Node<LockTable> {
    let mut node = node.clone();
    let members = Arc::new(Members::of(voters.iter().copied().map(NodeId)));
    let entry = noop(node.log().last().index.next().0, term);
    node.push(Entry { payload: Payload::Members(members), ..entry });
    node
}

pub(crate) fn noop(index: u64, term: u64) -> Entry<Command> {
    Entry { term: Term(term), index: Index(index), stamp: Stamp(0), payload: Payload::Noop }
}

fn hear(node: &mut Node<LockTable>, term: u64, body: Body<LockTable>) {
    step(node, Input::Receive(Message { from: NodeId(2), to: NodeId(1), term: Term(term), body }));
}

fn step(node: &mut Node<LockTable>, input: Input<LockTable>) {
    node.step(input, &mut Vec::new());
}

pub(crate) fn id(number: u64) -> SessionId {
    SessionId { number, proof: Proof::default() }
}

pub(crate) fn key(name: &str) -> Key {
    Key::from(name)
}

/// Session `number` was granted the lock on the key.
pub(crate) fn granted(name: &str, number: u64, token: u64, mode: Mode) -> Event {
    let (session, owner) = (id(number), Owner::from("a"));
    Event::Granted { key: key(name), session, token: Token(token), mode, owner, value: None }
}

/// A table with this many sessions, numbered from 1, all with the deadline 100.
pub(crate) fn table(sessions: u64) -> LockTable {
    opened(LockTable::default(), sessions)
}

/// The table with this many sessions more, opened at time 0 with the deadline 100.
pub(crate) fn opened(mut table: LockTable, sessions: u64) -> LockTable {
    for _ in 0..sessions {
        let opening = Opening {
            proof: Proof::default(),
            owner: Owner::from("a"),
            principal: Principal::default(),
            ttl: Ttl(100),
        };
        table.apply(Stamp(0), &Command::Open { opening });
    }
    table
}

/// Session `number` acquires the key or queues for it; `sequence` 0 means none.
pub(crate) fn acquire(number: u64, sequence: u64, name: &str) -> Command {
    let sequence = Sequence::new(sequence);
    Command::Acquire { session: id(number), sequence, request: LockRequest::exclusive(name, true) }
}

/// Session `number` acquires these keys together, or queues for them.
pub(crate) fn acquire_all(number: u64, names: &[&str], mode: Mode) -> Command {
    let keys = Keys::new(names.iter().map(|name| key(name)).collect()).expect("each key once");
    let request = LockRequest { mode, ..LockRequest::exclusive(keys, true) };
    Command::Acquire { session: id(number), sequence: None, request }
}

pub(crate) fn put(name: &str, text: &str) -> Change {
    Change::Put { record: key(name), bytes: Bytes::from(text) }
}

pub(crate) fn append(name: &str, text: &str) -> Change {
    Change::Append { record: key(name), bytes: Bytes::from(text) }
}

pub(crate) fn delete(name: &str) -> Change {
    Change::Delete { record: key(name) }
}

/// A transaction that must hold these locks with these tokens.
pub(crate) fn under(changes: &[Change], held: &[(&str, u64)]) -> Transaction {
    let held = held.iter().map(|&(lock, token)| Condition::Held { lock: key(lock), token: Token(token) });
    Transaction { conditions: held.collect(), changes: changes.to_vec(), limit: u64::MAX }
}

/// A transaction of a client without a session and a name.
pub(crate) fn transact(transaction: Transaction) -> Command {
    Command::Transact { writer: Writer::Client(Principal::default()), transaction }
}

/// Does a transaction.
pub(crate) fn written(table: &mut LockTable, at: u64, transaction: Transaction) {
    let outcome = table.apply(Stamp(at), &transact(transaction));
    assert!(matches!(outcome.reply, Some(Reply::Written { .. })), "{outcome:?}");
}
