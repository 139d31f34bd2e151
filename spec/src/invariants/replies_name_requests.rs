//! Replies name their requests: every reply names an open request of its node by its id, and a node
//! replies to each request as [`Input`] promises.
//!
//! Proposals, changes and transfers are open only in their own step. A read is open until the node
//! replies or stops leading; a node remembers its open reads, so one step shows a reply to a read
//! that was never requested, a second reply, and a read that was forgotten.

use alloc::vec::Vec;

use super::{Check, Property};
use crate::raft::{Input, Node, Output, RequestId, Role, StateMachine};
use crate::{require, violated};

/// The reads that a node has not answered.
pub fn open_reads<S: StateMachine>(node: &Node<S>) -> Vec<RequestId> {
    match node.role() {
        Role::Leader(leadership) => leadership.reads.asked.iter().chain(&leadership.reads.next).copied().collect(),
        _ => Vec::new(),
    }
}

/// Checks the replies that a node outputs in one step; `open` are the node's open reads before the
/// step, and becomes those after it.
pub fn replies_name_requests<S: StateMachine>(
    open: &mut Vec<RequestId>,
    input: &Input<S>,
    outputs: &[Output<S>],
    after: &Node<S>,
) -> Check {
    let node = after.id();
    let mut replies = 0;
    for output in outputs {
        let is_asked = match (output, input) {
            (Output::Accepted { id, .. }, Input::Propose { id: asked, .. } | Input::Change { id: asked, .. })
            | (Output::Refused { id, .. }, Input::Propose { id: asked, .. })
            | (Output::ChangeRefused { id, .. }, Input::Change { id: asked, .. })
            | (Output::TransferRefused { id, .. }, Input::Transfer { id: asked, .. }) => id == asked,
            (Output::Accepted { .. } | Output::Refused { .. }, _)
            | (Output::ChangeRefused { .. } | Output::TransferRefused { .. }, _) => false,
            _ => continue,
        };
        require!(Property::RepliesNameRequests, is_asked, "node {node} replied to a request that is not open")?;
        replies += 1;
    }
    let is_as_promised = match input {
        Input::Propose { .. } | Input::Change { .. } => replies == 1,
        // An accepted transfer has no reply: the node is transferring leadership.
        Input::Transfer { .. } => replies == 1 || (replies == 0 && is_transferring(after)),
        _ => true,
    };
    require!(Property::RepliesNameRequests, is_as_promised, "node {node} replied {replies} times to a request")?;
    reads_are_answered_once(open, input, outputs, after)
}

/// Every reply to a read names an open one and closes it; a leader forgets no other read.
fn reads_are_answered_once<S: StateMachine>(
    open: &mut Vec<RequestId>,
    input: &Input<S>,
    outputs: &[Output<S>],
    after: &Node<S>,
) -> Check {
    let node = after.id();
    // A read does not change who leads: a leader takes it, any other node refuses it at once.
    let new = if let Input::Read(id) = input { Some(*id) } else { None };
    open.extend(new);
    for output in outputs {
        let (id, may_reply) = match output {
            Output::ReadReady(id) => (id, new != Some(*id) || after.is_leader()),
            Output::ReadRefused { id, .. } => (id, new == Some(*id) && !after.is_leader()),
            _ => continue,
        };
        let position = open.iter().position(|read| read == id).filter(|_| may_reply);
        let Some(position) = position else {
            return violated!(Property::ReadAnsweredOnce, "node {node} replied to read {id}, which is not open");
        };
        open.swap_remove(position);
    }
    let mut kept = open_reads(after);
    if after.is_leader() {
        open.sort_unstable();
        kept.sort_unstable();
        require!(
            Property::ReadAnsweredOnce,
            *open == kept,
            "the reads {open:?} are open at node {node}, which remembers {kept:?}"
        )?;
    }
    let is_refused = after.is_leader() || new.is_none_or(|id| !open.contains(&id));
    require!(Property::ReadAnsweredOnce, is_refused, "node {node} does not lead, and did not refuse a read")?;
    *open = kept;
    Ok(())
}

fn is_transferring<S: StateMachine>(node: &Node<S>) -> bool {
    matches!(node.role(), Role::Leader(leadership) if leadership.successor.is_some())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::invariants::states::{complaint, follower, leader};
    use crate::lock::LockTable;
    use crate::raft::{Body, Change, Index, Message, NodeId, Payload, ReadRound, Refusal, Term};

    const ASKED: RequestId = RequestId(7);
    const OTHER: RequestId = RequestId(8);

    /// The node after the input, and its replies.
    fn step(node: &Node<LockTable>, input: &Input<LockTable>) -> (Node<LockTable>, Vec<Output<LockTable>>) {
        let (mut after, mut outputs) = (node.clone(), Vec::new());
        after.step(input.clone(), &mut outputs);
        (after, outputs)
    }

    fn accepted(id: RequestId) -> Output<LockTable> {
        Output::Accepted { id, first: Index(2), term: Term(2) }
    }

    fn propose() -> Input<LockTable> {
        Input::Propose { id: ASKED, payloads: vec![Payload::Noop] }
    }

    #[test]
    fn a_node_replies_as_promised() {
        let body = Body::AppendAccepted { matched: Index(1), round: ReadRound(0) };
        let accepted = Message { from: NodeId(2), to: NodeId(1), term: Term(2), body };
        let (committed, _) = step(&leader(2, &[]), &Input::Receive(accepted));
        assert_eq!(committed.commit(), Index(1));
        let requests = [
            propose(),
            Input::Change { id: ASKED, change: Change::Remove(NodeId(3)) },
            Input::Change { id: ASKED, change: Change::Remove(NodeId(9)) },
            Input::Transfer { id: ASKED, to: None },
            Input::Transfer { id: ASKED, to: Some(NodeId(9)) },
            Input::Read(ASKED),
            Input::ElectionTimeout,
        ];
        for before in [follower(2, &[]), leader(2, &[]), committed] {
            for input in &requests {
                let (after, outputs) = step(&before, input);
                assert_eq!(
                    complaint(replies_name_requests(&mut open_reads(&before), input, &outputs, &after)),
                    "",
                    "{input:?}"
                );
            }
        }
    }

    #[test]
    fn reply_to_another_request_is_seen() {
        let node = leader(2, &[]);
        let leader = None;
        let change = Input::Change { id: ASKED, change: Change::Remove(NodeId(3)) };
        let transfer = Input::Transfer { id: ASKED, to: None };
        let refused = Output::ChangeRefused { id: ASKED, refusal: Refusal::TooEarly };
        for (input, output) in [
            (propose(), accepted(OTHER)),
            (propose(), Output::Refused { id: OTHER, leader }),
            (propose(), refused.clone()),
            (change.clone(), accepted(OTHER)),
            (change.clone(), Output::Refused { id: ASKED, leader }),
            (change, Output::ChangeRefused { id: OTHER, refusal: Refusal::TooEarly }),
            (transfer.clone(), Output::TransferRefused { id: OTHER, leader }),
            (transfer, accepted(ASKED)),
            (Input::ElectionTimeout, accepted(ASKED)),
            (Input::HeartbeatTimeout, Output::Refused { id: ASKED, leader }),
            (Input::Read(ASKED), refused),
            (Input::Read(ASKED), Output::TransferRefused { id: ASKED, leader }),
        ] {
            let seen = complaint(replies_name_requests(&mut Vec::new(), &input, core::slice::from_ref(&output), &node));
            assert_eq!(seen, "node 1 replied to a request that is not open", "{input:?}: {output:?}");
        }
    }

    #[test]
    fn missing_and_repeated_replies_are_seen() {
        let node = leader(2, &[]);
        let transfer = Input::Transfer { id: ASKED, to: None };
        for (input, outputs, count) in [
            (propose(), vec![], 0),
            (propose(), vec![accepted(ASKED), accepted(ASKED)], 2),
            (propose(), vec![accepted(ASKED), Output::Refused { id: ASKED, leader: None }], 2),
            (Input::Change { id: ASKED, change: Change::Remove(NodeId(3)) }, vec![], 0),
            // The node is not transferring leadership.
            (transfer, vec![], 0),
        ] {
            let seen = complaint(replies_name_requests(&mut Vec::new(), &input, &outputs, &node));
            assert_eq!(seen, alloc::format!("node 1 replied {count} times to a request"), "{input:?}");
        }
    }

    #[test]
    fn reads_are_open_until_they_are_answered() {
        let (node, read) = (leader(2, &[]), Input::Read(ASKED));
        let (waiting, outputs) = step(&node, &read);
        assert_eq!(outputs, [], "the commit index is not known");
        let (ready, refused) = (Output::ReadReady(ASKED), Output::ReadRefused { id: ASKED, leader: None });
        let other = Output::ReadReady(OTHER);
        let idle = Input::HeartbeatTimeout;
        for (before, input, outputs, after, expected) in [
            (&node, &read, vec![], &waiting, ""),
            (&waiting, &idle, vec![ready.clone()], &node, ""),
            (&waiting, &idle, vec![], &follower(2, &[]), ""),
            (&follower(2, &[]), &read, vec![refused.clone()], &follower(2, &[]), ""),
            (&waiting, &idle, vec![ready.clone(), ready.clone()], &node, "node 1 replied to read 7, which is not open"),
            (&waiting, &idle, vec![other], &node, "node 1 replied to read 8, which is not open"),
            (&waiting, &idle, vec![refused], &node, "node 1 replied to read 7, which is not open"),
            (
                &follower(2, &[]),
                &read,
                vec![ready.clone()],
                &follower(2, &[]),
                "node 1 replied to read 7, which is not open",
            ),
            (&waiting, &idle, vec![ready], &waiting, "the reads [] are open at node 1, which remembers [RequestId(7)]"),
            (&waiting, &idle, vec![], &node, "the reads [RequestId(7)] are open at node 1, which remembers []"),
            (&follower(2, &[]), &read, vec![], &follower(2, &[]), "node 1 does not lead, and did not refuse a read"),
        ] {
            let mut open = open_reads(before);
            let violation = replies_name_requests(&mut open, input, &outputs, after);
            assert!(violation.is_err() || open == open_reads(after));
            assert!(violation.as_ref().err().is_none_or(|violation| violation.property == Property::ReadAnsweredOnce));
            assert_eq!(complaint(violation), expected, "{input:?}: {outputs:?}");
        }
    }

    #[test]
    fn only_voter_answers_a_new_read_at_once() {
        let disk = crate::raft::Durable::blank(LockTable::default(), crate::raft::Members::of([NodeId(1)]));
        let node = Node::recover(crate::raft::Config::new(NodeId(1)), disk);
        let (leads, _) = step(&node, &Input::ElectionTimeout);
        let (after, outputs) = step(&leads, &Input::Read(ASKED));
        assert_eq!(outputs, [Output::ReadReady(ASKED)]);
        let judge = |input, node: &Node<LockTable>| {
            complaint(replies_name_requests(&mut open_reads(&leads), input, &outputs, node))
        };
        assert_eq!(judge(&Input::Read(ASKED), &after), "");
        // A node that does not lead has no answer to a new read.
        assert_ne!(judge(&Input::Read(ASKED), &follower(1, &[1])), "");
    }

    /// A node refuses a read at once, or never.
    #[test]
    fn read_that_was_taken_is_not_refused_later() {
        let refused = [Output::ReadRefused { id: ASKED, leader: None }];
        for node in [follower(2, &[]), leader(2, &[])] {
            let judged = replies_name_requests(&mut vec![ASKED], &Input::ElectionTimeout, &refused, &node);
            assert_eq!(complaint(judged), "node 1 replied to read 7, which is not open");
        }
    }
}
