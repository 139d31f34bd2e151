//! The requester of a proposal, kept until its entry is applied.

use std::time::Duration;

use palisade_client::wire::Failure;
use palisade_spec::lock::{Command, Key, Principal, SessionId, Token};
use palisade_spec::raft::{Index, Term};

use crate::audit;
use crate::core::credential::Secret;
use crate::core::respond::Responder;
use crate::core::waits::QueueSlot;
use crate::stopwatch::Stopwatch;

/// A proposal in the log.
#[derive(Debug)]
pub(super) struct Inflight {
    pub(super) index: Index,
    pub(super) term: Term,
    pub(super) proposed: Stopwatch,
    pub(super) requester: Requester,
}

/// The requester of a proposal, and what its answer needs.
#[derive(Debug)]
pub(super) enum Requester {
    /// The client of a command other than a keepalive.
    Client { command: Command, secret: Secret, wait: Duration, responder: Responder },
    /// The origins of the keepalives that became one command.
    KeepAlive(Vec<(SessionId, Renewer)>),
    /// The operator who requested a membership change.
    Change(Principal, Responder),
    /// This node: a wait has ended.
    Withdraw(QueueSlot),
    /// This node: the grant of this once-session reached no client.
    CloseUnclaimed(SessionId),
}

/// The origin of a keepalive.
#[derive(Debug)]
pub(super) enum Renewer {
    /// A client's request, the secret that it presented, and the grant that the session must still have.
    Client { secret: Secret, grant: Option<(Key, Token)>, responder: Responder },
    /// This node, for the once-session that waits for this key.
    Wait(Key),
}

impl Requester {
    /// The queue slot that the request asks for, if its client is still connected.
    pub(super) fn slot(&self) -> Option<QueueSlot> {
        match self {
            Requester::Client { command: Command::Acquire { session, request, .. }, responder, .. }
                if request.waits() && !responder.is_gone() =>
            {
                Some((*session, request.keys.first().clone()))
            }
            _ => None,
        }
    }

    /// The client of the request, for the audit log. The log's entry names the principal of a command.
    pub(super) fn client(&self) -> audit::Client {
        let (principal, responder) = match self {
            Requester::Client { responder, .. } => (Principal::default(), responder),
            Requester::Change(operator, responder) => (operator.clone(), responder),
            Requester::KeepAlive(_) | Requester::Withdraw(_) | Requester::CloseUnclaimed(_) => {
                return audit::Client::default();
            }
        };
        audit::Client { principal, address: responder.remote }
    }

    /// Answers the requester with an error: the outcome is unknown, or the proposal will have none.
    pub(super) fn fail(self, failure: &Failure) {
        let responders: Vec<Responder> = match self {
            Requester::Client { responder, .. } | Requester::Change(_, responder) => vec![responder],
            Requester::KeepAlive(keepalives) => {
                let clients = keepalives.into_iter().filter_map(|(_, renewer)| match renewer {
                    Renewer::Client { responder, .. } => Some(responder),
                    Renewer::Wait(_) => None,
                });
                clients.collect()
            }
            Requester::Withdraw(_) | Requester::CloseUnclaimed(_) => Vec::new(),
        };
        for responder in responders {
            responder.answer(Err(failure.clone()));
        }
    }
}
