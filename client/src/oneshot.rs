//! Questions to one node, without a client: for people and tools that want *this* node's view.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::Duration;

use tokio::time::timeout;

use crate::codec;
use crate::connection::{Connection, Incoming, Outgoing};
use crate::error::unexpected;
use crate::tls::DialError;
use crate::wire::{Answer, Op, Outcome, Request, Response, StatusView, UNASKED};
use crate::{Error, Security};

/// Questions to one node over a connection with this security.
impl Security {
    /// Asks the node at `endpoint` for its own view of the cluster.
    ///
    /// # Errors
    /// As [`Security::ask`].
    pub async fn status(&self, endpoint: &str, at_most: Duration) -> Result<StatusView, Error> {
        match self.ask(endpoint, Op::Status, at_most).await? {
            Answer::Status(status) => Ok(*status),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Asks the node at `endpoint` one thing, once: no leader is followed, nothing is repeated. It asks in JSON, which a
    /// node of another version reads, and whose answers have more fields in later versions.
    ///
    /// # Errors
    /// [`Error::BadEndpoint`]; [`Error::Unauthenticated`] if one of the two refuses the other; [`Error::Unreachable`] if it
    /// did not answer within `at_most`; [`Error::Refused`], which includes that it does not lead.
    pub async fn ask(&self, endpoint: &str, op: Op, at_most: Duration) -> Result<Answer, Error> {
        let mut outcome = None;
        let asking = self.exchange(Form::Json, endpoint, [op], 1, at_most, |_, answered| outcome = Some(answered));
        let asked = timeout(at_most, asking).await;
        let late = || Error::Unreachable { after: at_most, trouble: format!("{endpoint} did not answer") };
        asked.unwrap_or_else(|_| Err(late()))?;
        match outcome.ok_or_else(late)? {
            Outcome::Ok(answer) => Ok(answer),
            Outcome::Error(failure) => Err(Error::Refused(failure)),
        }
    }

    /// Asks the node at `endpoint` many things over one connection, each once, and up to `at_once` before they are
    /// answered. Each outcome goes to `answered` with its question's index, from 0 on, in the order in which they come.
    ///
    /// # Errors
    /// [`Error::BadEndpoint`]; [`Error::Unauthenticated`] if one of the two refuses the other; [`Error::Unreachable`] if the
    /// connection broke, or nothing was answered for as long as `at_most`.
    pub async fn ask_all(
        &self,
        endpoint: &str,
        ops: impl IntoIterator<Item = Op>,
        at_once: usize,
        at_most: Duration,
        answered: impl FnMut(u64, Outcome),
    ) -> Result<(), Error> {
        self.exchange(Form::Binary, endpoint, ops, at_once, at_most, answered).await
    }

    async fn exchange(
        &self,
        form: Form,
        endpoint: &str,
        ops: impl IntoIterator<Item = Op>,
        at_once: usize,
        at_most: Duration,
        answered: impl FnMut(u64, Outcome),
    ) -> Result<(), Error> {
        let endpoint = self.address(endpoint)?;
        let unreachable = |trouble| Error::Unreachable { after: at_most, trouble };
        let connection = Connection::dial(&endpoint, self, at_most, false).await.map_err(|error| match error {
            DialError { why: trouble, refused: true } => Error::Unauthenticated { trouble },
            DialError { why, refused: false } => unreachable(why),
        })?;
        let conversation = converse(form, &endpoint, connection, ops.into_iter().fuse(), at_once, at_most, answered);
        conversation.await.map_err(unreachable)
    }
}

/// The form of questions and answers.
#[derive(Clone, Copy, Debug)]
enum Form {
    Json,
    Binary,
}

impl Form {
    fn encode(self, request: &Request) -> Outgoing {
        match self {
            Form::Json => Outgoing::Text(serde_json::to_string(request).expect("every request has a JSON form")),
            Form::Binary => {
                let mut frame = Vec::new();
                codec::encode_into(request, &mut frame);
                Outgoing::Frame(frame)
            }
        }
    }
}

/// The answer in a frame; `None` if it is only a sign of life.
fn decode(incoming: &Incoming) -> Option<Result<Response, String>> {
    match incoming {
        Incoming::Frame(frame) => Some(codec::decode(frame).map_err(|error| error.to_string())),
        Incoming::Text(text) => Some(serde_json::from_str(text).map_err(|error| error.to_string())),
        Incoming::Sign => None,
    }
}

async fn converse(
    form: Form,
    endpoint: &str,
    mut connection: Connection,
    mut ops: impl Iterator<Item = Op>,
    at_once: usize,
    at_most: Duration,
    mut answered: impl FnMut(u64, Outcome),
) -> Result<(), String> {
    let (mut outbox, mut inbox) = (VecDeque::new(), Vec::new());
    let (mut next, mut open) = (0, 0);
    loop {
        for op in ops.by_ref().take(at_once - open) {
            outbox.push_back(form.encode(&Request { id: next, op }));
            (next, open) = (next + 1, open + 1);
        }
        if open == 0 {
            return Ok(());
        }
        let reading = poll_fn(|context| connection.poll(context, &mut outbox, &mut inbox));
        timeout(at_most, reading).await.map_err(|_| format!("{endpoint} did not answer"))??;
        for incoming in inbox.drain(..) {
            let Some(response) = decode(&incoming) else { continue };
            let response = response.map_err(|error| format!("{endpoint} answered: {error}"))?;
            // A news of another client's lock answers nothing.
            if response.id == UNASKED {
                continue;
            }
            open -= 1;
            answered(response.id, response.result);
        }
    }
}
