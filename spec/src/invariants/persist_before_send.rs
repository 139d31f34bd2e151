//! A message promises only what its sender's disk holds when it leaves: the term, the vote, the
//! acknowledged entries (figure 3.1: "respond to RPCs only after updating stable storage").

use super::{Check, Property};
use crate::raft::{Body, Durable, Message, StateMachine};
use crate::violated;

/// Checks a message that leaves. The disk may be ahead of it, if one sync made the writes of
/// several steps durable.
pub fn persist_before_send<S: StateMachine>(message: &Message<S>, disk: &Durable<S>) -> Check {
    let Message { from, to, term, body } = message;
    let lacks = match body {
        _ if disk.hard.term > *term => return Ok(()),
        _ if disk.hard.term < *term => "its term",
        Body::RequestVote { .. } if disk.hard.vote != Some(*from) => "its own vote",
        Body::RequestVoteReply { granted: true } if disk.hard.vote != Some(*to) => "its vote",
        Body::AppendAccepted { matched, .. } if disk.log.last().index < *matched => "the entry",
        _ => return Ok(()),
    };
    violated!(Property::PersistBeforeSend, "node {from} sends {} to {to}, and {lacks} is not durable", body.name())
}

#[cfg(test)]
mod tests {
    use super::persist_before_send;
    use crate::invariants::states::{complaint, noop};
    use crate::lock::LockTable;
    use crate::raft::{Body, Durable, HardState, Index, Members, Message, NodeId, Position, ReadRound, Term};

    /// The complaint about a message from node 1 to node 2 in term 3, with one entry on the sender's disk.
    fn judge(body: Body<LockTable>, term: u64, vote: Option<u32>) -> alloc::string::String {
        let mut disk = Durable::blank(LockTable::default(), Members::of([1, 2].map(NodeId)));
        disk.hard = HardState { term: Term(term), vote: vote.map(NodeId) };
        disk.log.push(noop(1, 1));
        let message = Message { from: NodeId(1), to: NodeId(2), term: Term(3), body };
        complaint(persist_before_send(&message, &disk))
    }

    #[test]
    fn what_a_message_promises_must_be_durable() {
        let accepted = |index| Body::AppendAccepted { matched: Index(index), round: ReadRound(0) };
        let asks = || Body::RequestVote { last: Position::default(), transfer: false };
        let grants = |granted| Body::RequestVoteReply { granted };
        for (body, vote, lacks) in [
            (asks(), Some(1), None),
            (asks(), Some(2), Some("its own vote")),
            (asks(), None, Some("its own vote")),
            (grants(true), Some(2), None),
            (grants(true), Some(1), Some("its vote")),
            (grants(false), Some(1), None),
            (accepted(0), None, None),
            (accepted(1), None, None),
            (accepted(2), None, Some("the entry")),
            (Body::TimeoutNow, None, None),
        ] {
            let name = body.name();
            let expected = lacks.map_or_else(alloc::string::String::new, |lacks| {
                alloc::format!("node 1 sends {name} to 2, and {lacks} is not durable")
            });
            assert_eq!(judge(body.clone(), 3, vote), expected, "{body:?}, {vote:?}");
            assert!(judge(body.clone(), 2, vote).contains("its term is not durable"), "{body:?}");
            assert_eq!(judge(body, 4, vote), "", "the disk is ahead");
        }
    }
}
