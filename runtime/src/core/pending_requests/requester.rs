//! Who made a proposal, from the desk into the log and back.

use std::time::{Duration, Instant};

use palisade_client::wire::Failure;
use palisade_spec::lock::{Claim, Key, SessionId};
use palisade_spec::raft::{Change, Index, Term};

use crate::core::respond::Responder;
use crate::core::waits::QueueSlot;

/// A proposal that stands in the log.
#[derive(Debug)]
pub(super) struct Inflight {
    pub(super) index: Index,
    pub(super) term: Term,
    pub(super) proposed: Instant,
    pub(super) requester: Requester,
}

/// Who made a proposal, and what the answer needs to know.
#[derive(Debug)]
pub(super) enum Requester {
    Open {
        ttl_ms: u64,
        responder: Responder,
    },
    Close(Responder),
    KeepAlive(Vec<(SessionId, Renewer)>),
    Acquire {
        /// `None`: one that is opened for this lock.
        session: Option<SessionId>,
        key: Key,
        wait: Duration,
        responder: Responder,
    },
    Release {
        claim: Claim,
        responder: Responder,
    },
    Change {
        change: Change,
        responder: Responder,
    },
    /// The desk itself: a wait has ended.
    Withdraw(QueueSlot),
    /// The desk itself: nobody received the grant of this once-session.
    CloseUnclaimed(SessionId),
    /// An input that was stepped by hand.
    Nobody,
}

/// Who renews a session.
#[derive(Debug)]
pub(super) enum Renewer {
    /// A client that asked for it.
    Client(Responder),
    /// The desk, for the once-session that waits for this key.
    Wait(Key),
}

impl Requester {
    /// The place in a queue that somebody who is there is asking for.
    pub(super) fn place(&self) -> Option<QueueSlot> {
        match self {
            Requester::Acquire { session, key, wait, responder } if !wait.is_zero() && !responder.is_gone() => {
                Some(((*session)?, key.clone()))
            }
            _ => None,
        }
    }

    /// Nobody can say what became of it, or nothing will.
    pub(super) fn fail(self, failure: &Failure) {
        let responders: Vec<Responder> = match self {
            Requester::Open { responder, .. }
            | Requester::Close(responder)
            | Requester::Acquire { responder, .. }
            | Requester::Release { responder, .. }
            | Requester::Change { responder, .. } => vec![responder],
            Requester::KeepAlive(keepalives) => {
                let clients = keepalives.into_iter().filter_map(|(_, renewer)| match renewer {
                    Renewer::Client(responder) => Some(responder),
                    Renewer::Wait(_) => None,
                });
                clients.collect()
            }
            Requester::Withdraw(_) | Requester::CloseUnclaimed(_) | Requester::Nobody => Vec::new(),
        };
        for responder in responders {
            responder.answer(Err(failure.clone()));
        }
    }
}
