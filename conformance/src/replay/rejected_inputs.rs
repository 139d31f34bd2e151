//! Inputs between the steps of a trace that a node must refuse or drop.
//!
//! The models give no inputs that a node refuses, and send no invalid messages: an input that
//! changes nothing adds no state to a model. A live node must refuse such inputs all the same, and
//! keep its state. So after each step some of them are tried on a copy of the expected node, and
//! the first that it rejects without a change is given to the live node too.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Address, Body, Change, Entry, Hint, Index, Input, Message, Node, NodeId, Output, Payload, Position, ReadRound,
    RequestId, Stamp, Term,
};

/// A node ID that no server has.
const UNKNOWN: NodeId = NodeId(99);

/// An input that does not change this node. `salt` chooses it; messages come from `peer`, if given.
pub fn rejected_input(node: &Node<LockTable>, peer: Option<NodeId>, salt: usize) -> Option<Input<LockTable>> {
    let mut all = requests(node, peer);
    if let Some(peer) = peer {
        let messages = messages(node, peer).into_iter().map(Input::Receive);
        all.extend(messages);
    }
    let count = all.len();
    let mut rotated = (0..count).map(|position| all[(salt + position) % count].clone());
    rotated.find(|input| is_rejected(node, input))
}

fn is_rejected(node: &Node<LockTable>, input: &Input<LockTable>) -> bool {
    let (mut after, mut outputs) = (node.clone(), Vec::new());
    after.step(input.clone(), &mut outputs);
    let is_refusal = |output: &Output<LockTable>| {
        matches!(
            output,
            Output::Refused { .. }
                | Output::ChangeRefused { .. }
                | Output::TransferRefused { .. }
                | Output::ReadRefused { .. }
                | Output::Dropped { .. }
        )
    };
    after == *node && outputs.iter().all(is_refusal)
}

/// Requests of clients and operators, and timer events.
fn requests(node: &Node<LockTable>, peer: Option<NodeId>) -> Vec<Input<LockTable>> {
    let own = node.id();
    let add = |id| Change::Add { id, address: Address::from("") };
    let member = peer.unwrap_or(own);
    let gone = (1..UNKNOWN.0).map(NodeId).find(|id| node.members().was_removed(*id));
    let changes = [
        add(own),
        add(UNKNOWN),
        Change::Promote(member),
        Change::Promote(UNKNOWN),
        Change::Remove(UNKNOWN),
        Change::Remove(own),
    ];
    let id = RequestId(1);
    let change = |change| Input::Change { id, change };
    let mut all: Vec<Input<LockTable>> = changes.into_iter().map(change).collect();
    all.extend(gone.map(|gone| change(add(gone))));
    all.extend([
        Input::Transfer { id, to: None },
        Input::Transfer { id, to: Some(own) },
        Input::Transfer { id, to: Some(UNKNOWN) },
        Input::Propose { id, payloads: vec![Payload::Noop] },
        Input::Read(id),
        Input::HeartbeatTimeout,
        Input::ClockAdvanced(5),
        Input::Compact(Index(0)),
    ]);
    all
}

/// Invalid messages, stale messages, and messages without an effect.
fn messages(node: &Node<LockTable>, from: NodeId) -> Vec<Message<LockTable>> {
    let (last, round) = (node.log().last(), ReadRound::default());
    let (far, stamp) = (Index(last.index.0 + 1000), Stamp(u64::MAX));
    let entry = |term, index| Entry { term, index, stamp: Stamp(0), payload: Payload::Noop };
    let append = |prev, entries| Body::<LockTable>::AppendEntries { prev, entries, commit: Index(0), stamp, round };
    let later = Term(node.term().0 + 1);
    let base = node.log().base();
    let before_base = Position { index: Index(base.index.0.saturating_sub(1)), ..base };
    let bodies = [
        append(last, vec![entry(node.term(), far)]),
        append(last, vec![entry(later, last.index.next())]),
        append(last, Vec::new()),
        append(before_base, Vec::new()),
        Body::AppendAccepted { matched: far, round },
        Body::AppendAccepted { matched: Index(0), round },
        Body::AppendRejected { prev: far, hint: Hint::Short { next: far }, round },
        Body::PreVote { last },
        Body::PreVoteReply { granted: false },
        Body::RequestVote { last, transfer: false },
        Body::RequestVoteReply { granted: false },
        Body::TimeoutNow,
    ];
    let message = |body| Message { from, to: node.id(), term: node.term(), body };
    let mut all: Vec<Message<LockTable>> = bodies.into_iter().map(message).collect();
    all.push(Message { term: Term(0), ..message(Body::TimeoutNow) });
    all.push(Message { to: UNKNOWN, ..message(Body::TimeoutNow) });
    all
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Config, Durable, Members};

    use super::*;

    fn node(id: u32) -> Node<LockTable> {
        let members = Members::of([1, 2, 3].map(NodeId));
        Node::recover(Config::new(NodeId(id)), Durable::blank(LockTable::default(), members))
    }

    #[test]
    fn chosen_inputs_change_nothing_and_cover_every_kind() {
        let node = node(1);
        let all: Vec<_> = (0..40).filter_map(|salt| rejected_input(&node, Some(NodeId(2)), salt)).collect();
        assert_eq!(all.len(), 40);
        assert!(all.iter().all(|input| is_rejected(&node, input)));
        let kinds = |is_it: fn(&Input<LockTable>) -> bool| all.iter().filter(|input| is_it(input)).count();
        assert!(kinds(|input| matches!(input, Input::Change { .. })) > 3);
        assert!(kinds(|input| matches!(input, Input::Transfer { .. })) > 1);
        assert!(kinds(|input| matches!(input, Input::Receive(_))) > 3);
        assert!(!is_rejected(&node, &Input::ElectionTimeout), "an election changes a node");
    }
}
