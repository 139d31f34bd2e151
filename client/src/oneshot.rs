//! One question to one node, without a client: for people and tools that want *this* node's view.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::Duration;

use tokio::time::timeout;

use crate::client::unexpected;
use crate::codec;
use crate::connection::{Connection, Incoming, Outgoing};
use crate::wire::{Answer, Op, Outcome, Request, Response, StatusView};
use crate::{Error, endpoints};

/// Asks the node at `endpoint` for its own view of the cluster.
///
/// # Errors
/// As [`ask`].
pub async fn status(endpoint: &str, at_most: Duration) -> Result<StatusView, Error> {
    match ask(endpoint, Op::Status, at_most).await? {
        Answer::Status(status) => Ok(status),
        other => Err(Error::Refused(unexpected(&other))),
    }
}

/// Asks the node at `endpoint` one thing, once: no leader is followed, nothing is repeated.
///
/// # Errors
/// [`Error::BadEndpoint`]; [`Error::Unreachable`] if it did not answer within `at_most`; [`Error::Refused`], which
/// includes that it does not lead.
pub async fn ask(endpoint: &str, op: Op, at_most: Duration) -> Result<Answer, Error> {
    endpoints::check(endpoint)?;
    let trouble = match timeout(at_most, converse(endpoint, op, at_most)).await {
        Ok(Ok(Outcome::Ok(answer))) => return Ok(answer),
        Ok(Ok(Outcome::Error(failure))) => return Err(Error::Refused(failure)),
        Ok(Err(trouble)) => trouble,
        Err(_) => format!("{endpoint} did not answer"),
    };
    Err(Error::Unreachable { after: at_most, trouble })
}

async fn converse(endpoint: &str, op: Op, at_most: Duration) -> Result<Outcome, String> {
    let mut connection = Connection::dial(endpoint, at_most).await?;
    let mut frame = Vec::new();
    codec::encode_into(&Request { id: 0, op }, &mut frame);
    let mut outbox = VecDeque::from([Outgoing::Frame(frame)]);
    let mut inbox = Vec::new();
    loop {
        poll_fn(|context| connection.poll(context, &mut outbox, &mut inbox)).await?;
        for incoming in inbox.drain(..) {
            let Incoming::Frame(frame) = incoming else { continue };
            let response: Response = codec::decode(&frame).map_err(|error| format!("{endpoint} answered: {error}"))?;
            if response.id == 0 {
                return Ok(response.result);
            }
        }
    }
}
