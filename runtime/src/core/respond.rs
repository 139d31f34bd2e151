//! Answers to requests.

use std::sync::Arc;
use std::time::Instant;

use palisade_client::wire::{Answer, Code, Failure, Outcome, Response};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::read::weight;
use crate::accounts::{AccountName, Turn};
use crate::addresses::RemoteAddress;
use crate::budget::Share;
use crate::outbox::{Outbox, Rejected};

/// A client's connection, or a single request over plain HTTP: when it ends, its waiting acquires
/// are withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Answers one request.
#[derive(Debug)]
pub struct Responder {
    /// The connection of the request.
    pub connection: ConnectionId,
    /// Where the client is, if it is known.
    pub(super) remote: Option<RemoteAddress>,
    /// Whose limits the request counts towards, if it is known.
    pub(super) client: Option<AccountName>,
    /// Held until the request is answered, or waits in a queue.
    turn: Option<Turn>,
    /// When the request arrived: waits are counted from there.
    pub(super) arrived: Instant,
    channel: Channel,
}

#[derive(Debug)]
enum Channel {
    Once(oneshot::Sender<Result<Answer, Failure>>),
    Stream { id: u64, text: bool, room: Option<Room>, outbox: Arc<Outbox<StreamReply>> },
}

/// The permits that a request takes from the limits of its WebSocket.
#[derive(Debug)]
pub struct Room {
    /// A permit for one open request.
    pub request: OwnedSemaphorePermit,
    /// A permit for one open read.
    pub read: Option<OwnedSemaphorePermit>,
    /// What the answer to a read may take of the memory for answers that are not read.
    pub unread: Option<Box<Share>>,
    /// Permits for the contents of a transaction, until it is answered.
    pub contents: Option<OwnedSemaphorePermit>,
}

/// An answer on its way to a WebSocket.
#[derive(Debug)]
pub struct StreamReply {
    /// The answer.
    pub response: Response,
    /// Whether the request came as text; the answer then goes as text.
    pub text: bool,
    /// The request's permits, held until its answer is written.
    pub room: Option<Room>,
}

impl Responder {
    /// For a plain HTTP request that arrived at this moment.
    pub fn once(
        connection: ConnectionId,
        arrived: Instant,
        sender: oneshot::Sender<Result<Answer, Failure>>,
    ) -> Responder {
        Responder::new(connection, arrived, Channel::Once(sender))
    }

    /// For request `id` of a WebSocket, which arrived at this moment and holds the permits in
    /// `room`.
    pub fn stream(
        connection: ConnectionId,
        arrived: Instant,
        id: u64,
        text: bool,
        room: Option<Room>,
        outbox: Arc<Outbox<StreamReply>>,
    ) -> Responder {
        Responder::new(connection, arrived, Channel::Stream { id, text, room, outbox })
    }

    fn new(connection: ConnectionId, arrived: Instant, channel: Channel) -> Responder {
        Responder { connection, remote: None, client: None, turn: None, arrived, channel }
    }

    /// The same for a client at this address.
    pub fn at(self, remote: Option<RemoteAddress>) -> Responder {
        Responder { remote, ..self }
    }

    /// The same for a request that counts towards the limits of this client, and has this turn.
    pub fn of(self, client: Option<AccountName>, turn: Option<Turn>) -> Responder {
        Responder { client, turn, ..self }
    }

    /// The same for a transaction, whose contents have these permits.
    pub fn with_contents(mut self, permits: Option<OwnedSemaphorePermit>) -> Responder {
        if let Channel::Stream { room: Some(room), .. } = &mut self.channel {
            room.contents = permits;
        }
        self
    }

    /// Whether the client can no longer receive the answer. On a WebSocket on which a request was
    /// rejected because this node does not lead, this includes every later request: none may be
    /// done after an earlier one was not (docs/protocol.md, "Exactly once").
    pub fn is_gone(&self) -> bool {
        match &self.channel {
            Channel::Once(sender) => sender.is_closed(),
            Channel::Stream { outbox, .. } => outbox.is_closed(),
        }
    }

    /// Returns the request's turn and permits: it waits in a queue from now on, for an unknown time.
    /// Waits have limits of their own, and small answers.
    pub fn release_room(&mut self) {
        self.turn = None;
        if let Channel::Stream { room, .. } = &mut self.channel {
            *room = None;
        }
    }

    /// Sends the answer. Returns whether the client may still receive it.
    pub fn answer(self, result: Result<Answer, Failure>) -> bool {
        match self.channel {
            Channel::Once(sender) => sender.send(result).is_ok(),
            Channel::Stream { id, text, room, outbox } => {
                let result = result.and_then(|answer| with_memory(answer, room.as_ref()));
                let refused = result.as_ref().err().is_some_and(|failure| ends_connection(failure.error));
                let result = match result {
                    Ok(answer) => Outcome::Ok(answer),
                    Err(failure) => Outcome::Error(failure),
                };
                // The contents have been written, or dropped; the answer is small.
                let room = room.map(|room| Room { contents: None, ..room });
                let pushed = outbox.push(StreamReply { response: Response { id, result }, text, room });
                // No answer may be missing in the middle: a client too slow for its outbox loses
                // the connection.
                if refused || pushed == Err(Rejected::Full) {
                    outbox.close();
                }
                pushed.is_ok()
            }
        }
    }
}

/// The answer to a read, if there is memory for it until it is read. The refusal ends the connection, whose client reads
/// too little.
fn with_memory(answer: Answer, room: Option<&Room>) -> Result<Answer, Failure> {
    let Some(unread) = room.and_then(|room| room.unread.as_ref()) else { return Ok(answer) };
    match unread.hold(weight(&answer)) {
        Ok(()) => Ok(answer),
        Err(exhausted) => Err(Failure::new(Code::Overloaded, exhausted.to_string())),
    }
}

/// Whether a WebSocket ends with this failure: the client must continue at another node, from its
/// first unanswered operation.
fn ends_connection(code: Code) -> bool {
    use Code::{LeadershipLost, NoLeader, NotLeader, Overloaded, ShuttingDown};
    matches!(code, NotLeader | NoLeader | LeadershipLost | ShuttingDown | Overloaded)
}

#[cfg(test)]
mod tests {
    use palisade_client::wire::{LockView, SessionView, WaiterView};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::addresses::ClientAddress;
    use crate::budget::{Budget, UNREAD};

    /// Goal: a WebSocket whose client does not read the answers of its reads ends before they fill the memory.
    #[test]
    fn answers_of_reads_are_bounded_until_they_are_read() {
        let budget = Budget::new(&UNREAD, 80_000);
        let permits = Arc::new(Semaphore::new(9));
        let room = || Room {
            request: Arc::clone(&permits).try_acquire_owned().unwrap(),
            read: None,
            unread: Some(Box::new(budget.share(ClientAddress::of([10, 0, 0, 1].into())))),
            contents: None,
        };
        let waiter = || WaiterView { owner: "o".repeat(100), ..WaiterView::default() };
        let lock = || LockView { key: "k".into(), queue: (0..20).map(|_| waiter()).collect(), ..LockView::default() };
        let outbox = Arc::new(Outbox::new(9));
        let answer = |id, answer| {
            let outbox = Arc::clone(&outbox);
            Responder::stream(ConnectionId(1), Instant::now(), id, true, Some(room()), outbox).answer(Ok(answer))
        };
        assert!(answer(1, Answer::Lock(lock())));
        let keys = vec!["k".repeat(100); 40];
        let session = SessionView { session: 1, owner: "o".into(), ttl_ms: 1, expires_in_ms: 1, keys };
        assert!(answer(2, Answer::SessionView(session)), "the refusal is sent");
        assert!(!answer(3, Answer::Lock(lock())), "and ends the connection");
        assert_eq!(
            budget.share(ClientAddress::of([10, 0, 0, 1].into())).hold(6_000),
            Err(crate::budget::Exhausted::Part { used_for: &UNREAD, limit: 10_000 })
        );
        drop(outbox);
        assert_eq!(budget.share(ClientAddress::of([10, 0, 0, 1].into())).hold(10_000), Ok(()));
    }
}
