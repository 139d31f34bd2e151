//! A message promises only what its sender's disk holds when it leaves: the term, the vote, the
//! acknowledged entries (figure 3.1: "respond to RPCs only after updating stable storage").

use super::{Check, Property};
use crate::raft::{Body, Durable, Message, StateMachine};
use crate::violated;

/// Checks a message that leaves. The disk may be ahead of it, if one sync made the writes of
/// several steps durable.
pub fn persisted_before_send<S: StateMachine>(message: &Message<S>, disk: &Durable<S>) -> Check {
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
