//! The way back to whoever asked.

use std::sync::Arc;
use std::time::Instant;

use palisade_client::wire::{Answer, Code, Failure, Outcome, Response};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::outbox::{Outbox, Rejected};

/// A client's connection, or for plain HTTP one request: what has to go away for its waiting acquires to be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Takes one answer to whoever asked.
#[derive(Debug)]
pub struct Responder {
    /// Where the question came from.
    pub connection: ConnectionId,
    /// When it came.
    pub asked: Instant,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Once(oneshot::Sender<Result<Answer, Failure>>),
    Stream { id: u64, text: bool, room: Option<Room>, outbox: Arc<Outbox<StreamReply>> },
}

/// What a request takes of the bounds of its WebSocket.
#[derive(Debug)]
pub struct Room {
    /// One of the requests that may be open.
    pub request: OwnedSemaphorePermit,
    /// One of the reads that may be open.
    pub read: Option<OwnedSemaphorePermit>,
}

/// An answer on its way to a WebSocket.
#[derive(Debug)]
pub struct StreamReply {
    /// The answer.
    pub response: Response,
    /// Whether the request came as text, and so the answer goes.
    pub text: bool,
    /// The room that the request takes, until its answer is written.
    pub room: Option<Room>,
}

impl Responder {
    /// For a plain HTTP request.
    pub fn once(connection: ConnectionId, sender: oneshot::Sender<Result<Answer, Failure>>) -> Responder {
        Responder { connection, asked: Instant::now(), way: Way::Once(sender) }
    }

    /// For request `id` of a WebSocket, which takes this room.
    pub fn stream(
        connection: ConnectionId,
        id: u64,
        text: bool,
        room: Option<Room>,
        outbox: Arc<Outbox<StreamReply>>,
    ) -> Responder {
        Responder { connection, asked: Instant::now(), way: Way::Stream { id, text, room, outbox } }
    }

    /// Whether nobody listens any more. On a WebSocket that was refused for want of a leader this includes every
    /// later request: none may be done after an earlier one was not (docs/protocol.md, "Exactly once").
    pub fn is_gone(&self) -> bool {
        match &self.way {
            Way::Once(sender) => sender.is_closed(),
            Way::Stream { outbox, .. } => outbox.is_closed(),
        }
    }

    /// The request stands in a queue from now on, for nobody knows how long: it gives its room back. Waits have a limit
    /// of their own, and small answers.
    pub fn stands_in_queue(&mut self) {
        if let Way::Stream { room, .. } = &mut self.way {
            *room = None;
        }
    }

    /// Answers. Says whether somebody may still read it.
    pub fn answer(self, result: Result<Answer, Failure>) -> bool {
        match self.way {
            Way::Once(sender) => sender.send(result).is_ok(),
            Way::Stream { id, text, room, outbox } => {
                let refused = result.as_ref().err().is_some_and(|failure| ends_connection(failure.error));
                let result = match result {
                    Ok(answer) => Outcome::Ok(answer),
                    Err(failure) => Outcome::Error(failure),
                };
                let pushed = outbox.push(StreamReply { response: Response { id, result }, text, room });
                // An answer must not be missing in the middle: who reads so slowly that there is no room loses the rest.
                if refused || pushed == Err(Rejected::Full) {
                    outbox.close();
                }
                pushed.is_ok()
            }
        }
    }
}

/// Whether a WebSocket ends with this failure: the client has to go on at another node, from its first unanswered
/// operation.
fn ends_connection(code: Code) -> bool {
    use Code::{LeadershipLost, NoLeader, NotLeader, Overloaded, ShuttingDown};
    matches!(code, NotLeader | NoLeader | LeadershipLost | ShuttingDown | Overloaded)
}
