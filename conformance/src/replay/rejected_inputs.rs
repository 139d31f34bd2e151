//! What is asked in vain, between the steps of a trace.
//!
//! The models ask nothing that a node refuses, and let nobody say what no node says: where it changes nothing, it is as if it
//! had not been. A live node has to refuse it all the same, and to stay what it is. So after each step some of it is tried
//! on a copy of a twin, and the first that is taken without a trace is asked of the live node too.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Address, Body, Change, Entry, Hint, Index, Input, Message, Node, NodeId, Output, Payload, Position, ReadId,
    ReadRound, Stamp, Term,
};

/// A number that no server has.
const NOBODY: NodeId = NodeId(99);

/// Something of which this node remains the same. Which, `salt` chooses; messages come from `peer`, if there is one.
pub fn aside(node: &Node<LockTable>, peer: Option<NodeId>, salt: usize) -> Option<Input<LockTable>> {
    let mut all = questions(node, peer);
    if let Some(peer) = peer {
        let messages = messages(node, peer).into_iter().map(Input::Receive);
        all.extend(messages);
    }
    let count = all.len();
    let mut in_turn = (0..count).map(|place| all[(salt + place) % count].clone());
    in_turn.find(|input| is_in_vain(node, input))
}

fn is_in_vain(node: &Node<LockTable>, input: &Input<LockTable>) -> bool {
    let (mut after, mut outputs) = (node.clone(), Vec::new());
    after.step(input.clone(), &mut outputs);
    let is_refusal = |output: &Output<LockTable>| {
        matches!(
            output,
            Output::Refused { .. }
                | Output::ChangeRefused(_)
                | Output::TransferRefused { .. }
                | Output::ReadRefused { .. }
                | Output::Dropped { .. }
        )
    };
    after == *node && outputs.iter().all(is_refusal)
}

/// What clients, operators and timers ask.
fn questions(node: &Node<LockTable>, peer: Option<NodeId>) -> Vec<Input<LockTable>> {
    let own = node.id();
    let add = |id| Change::Add { id, address: Address::from("") };
    let somebody = peer.unwrap_or(own);
    let gone = (1..NOBODY.0).map(NodeId).find(|id| node.members().was_removed(*id));
    let changes = [
        add(own),
        add(NOBODY),
        Change::Promote(somebody),
        Change::Promote(NOBODY),
        Change::Remove(NOBODY),
        Change::Remove(own),
    ];
    let mut all: Vec<Input<LockTable>> = changes.into_iter().map(Input::Change).collect();
    all.extend(gone.map(|gone| Input::Change(add(gone))));
    all.extend([
        Input::Transfer(None),
        Input::Transfer(Some(own)),
        Input::Transfer(Some(NOBODY)),
        Input::Propose(vec![Payload::Noop]),
        Input::Read(ReadId(1)),
        Input::HeartbeatTimeout,
        Input::ClockAdvanced(5),
        Input::Compact(Index(0)),
    ]);
    all
}

/// What no node says now, or says in vain.
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
    let said = |body| Message { from, to: node.id(), term: node.term(), body };
    let mut all: Vec<Message<LockTable>> = bodies.into_iter().map(said).collect();
    all.push(Message { term: Term(0), ..said(Body::TimeoutNow) });
    all.push(Message { to: NOBODY, ..said(Body::TimeoutNow) });
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
    fn whatever_is_chosen_changes_nothing_and_everything_is_in_turn() {
        let node = node(1);
        let all: Vec<_> = (0..40).filter_map(|salt| aside(&node, Some(NodeId(2)), salt)).collect();
        assert_eq!(all.len(), 40);
        assert!(all.iter().all(|input| is_in_vain(&node, input)));
        let kinds = |is_it: fn(&Input<LockTable>) -> bool| all.iter().filter(|input| is_it(input)).count();
        assert!(kinds(|input| matches!(input, Input::Change(_))) > 3);
        assert!(kinds(|input| matches!(input, Input::Transfer(_))) > 1);
        assert!(kinds(|input| matches!(input, Input::Receive(_))) > 3);
        assert!(!is_in_vain(&node, &Input::ElectionTimeout), "an election changes a node");
    }
}
