//! Logs of histories, and real nodes in a chosen state.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Body, Config, Durable, Entry, HardState, Index, Input, Members, Message, Node, NodeId, Output, Payload, Position,
    ReadRound, Stamp, Term,
};

/// An entry of a history: its term and its stamp. Its position in the log is its index.
pub(super) type Stamped = (u64, u64);

/// The node under test.
pub(super) const NODE: NodeId = NodeId(1);

/// A blank disk in a cluster of this size.
pub(super) fn blank(servers: u32) -> Durable<LockTable> {
    Durable::blank(LockTable::default(), Members::of((1..=servers).map(NodeId)))
}

/// The entries of a log, from an index on.
pub(super) fn entries(log: &[Stamped], from: usize) -> Vec<Entry<palisade_spec::lock::Command>> {
    let entry = |(offset, &(term, stamp)): (usize, &Stamped)| Entry {
        term: Term(term),
        index: Index(offset as u64 + 1),
        stamp: Stamp(stamp),
        payload: Payload::Noop,
    };
    log.iter().enumerate().skip(from).map(entry).collect()
}

/// The log position after the first entries of a log.
pub(super) fn position(log: &[Stamped], length: usize) -> Position {
    let term = length.checked_sub(1).map_or(0, |last| log[last].0);
    Position { index: Index(length as u64), term: Term(term) }
}

/// A node's log in the form of histories.
pub(super) fn stamped(node: &Node<LockTable>) -> Vec<Stamped> {
    node.log().entries().iter().map(|entry| (entry.term.0, entry.stamp.0)).collect()
}

/// A node that has just started from a disk.
pub(super) fn recover(servers: u32, hard: HardState, log: &[Stamped]) -> Node<LockTable> {
    let mut disk = blank(servers);
    disk.hard = hard;
    entries(log, 0).into_iter().for_each(|entry| disk.log.push(entry));
    Node::recover(Config::new(NODE), disk)
}

/// A message to the node.
pub(super) fn message(from: NodeId, term: u64, body: Body<LockTable>) -> Message<LockTable> {
    Message { from, to: NODE, term: Term(term), body }
}

/// A leader's entries `from..through` of its log.
pub(super) fn append(log: &[Stamped], from: usize, through: usize, commit: u64, stamp: u64) -> Body<LockTable> {
    Body::AppendEntries {
        prev: position(log, from),
        entries: entries(&log[..through], from),
        commit: Index(commit),
        stamp: Stamp(stamp),
        round: ReadRound(0),
    }
}

/// Takes a step, and returns the node's outputs.
pub(super) fn step(node: &mut Node<LockTable>, input: Input<LockTable>) -> Vec<Output<LockTable>> {
    let mut out = Vec::new();
    node.step(input, &mut out);
    out
}

/// Makes the node a candidate of the next term, which requests votes.
pub(super) fn campaign(node: &mut Node<LockTable>) {
    step(node, Input::ElectionTimeout);
    let term = node.term().0;
    let voters: Vec<NodeId> = node.members().voters().filter(|&voter| voter != NODE).collect();
    for voter in voters {
        step(node, Input::Receive(message(voter, term, Body::PreVoteReply { granted: true })));
    }
}

/// Every sequence that can be built from the empty one, an element at a time; `next` returns the
/// possible elements.
pub(super) fn grown<T: Clone>(next: impl Fn(&[T]) -> Vec<T>) -> Vec<Vec<T>> {
    let mut all = vec![Vec::new()];
    let mut from = 0;
    while from < all.len() {
        let known: Vec<T> = all[from].clone();
        all.extend(next(&known).into_iter().map(|element| [&known[..], &[element]].concat()));
        from += 1;
    }
    all
}

/// Whether two logs fit one history. A term has one leader, whose log only grows: up to their last
/// entries of a common term, both are prefixes of that leader's log.
pub(super) fn match_each_other<T: PartialEq>(a: &[T], b: &[T], term: impl Fn(&T) -> u64) -> bool {
    let through = |log: &[T], wanted: u64| log.iter().rposition(|entry| term(entry) == wanted).map(|last| last + 1);
    a.iter().map(&term).all(|wanted| {
        let common = through(a, wanted).zip(through(b, wanted)).map_or(0, |(a, b)| a.min(b));
        a[..common] == b[..common]
    })
}
