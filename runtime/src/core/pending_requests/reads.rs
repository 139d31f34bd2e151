//! Reads: requested together, confirmed by a majority (ReadIndex), and answered from the state
//! machine.

use palisade_client::wire::{Consistency, LeaderView};
use palisade_spec::lock::{LockTable, Principal};
use palisade_spec::raft::{Node, RequestId};

use super::{PendingRequests, not_leading};
use crate::core::query::Query;
use crate::core::read::{self, Age};
use crate::core::respond::Responder;
use crate::limits;

/// A read that is not answered yet.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) query: Query,
    /// The reading client: the access rules in the state that it reads decide whether it may.
    pub(super) reader: Principal,
    pub(super) responder: Responder,
}

impl PendingRequests {
    /// The iteration's reads, as one ReadIndex request. The node answers it later with
    /// [`PendingRequests::read_ready`] or [`PendingRequests::read_refused`], unless it loses
    /// leadership before.
    pub(in crate::core) fn read(&mut self) -> Option<RequestId> {
        if self.reads.is_empty() {
            return None;
        }
        let id = self.next_id();
        self.unconfirmed.insert(id, std::mem::take(&mut self.reads));
        Some(id)
    }

    /// The id of a ReadIndex request that no client waits for.
    pub(in crate::core) fn read_of_no_client(&mut self) -> RequestId {
        self.next_id()
    }

    /// The reads of this request can be answered.
    pub(in crate::core) fn read_ready(&mut self, id: RequestId) {
        let reads = self.unconfirmed.remove(&id).into_iter().flatten();
        self.ready.extend(reads.map(|read| (read, Consistency::Linearizable)));
    }

    /// This node does not lead: the clients of the reads of this request are redirected.
    pub(in crate::core) fn read_refused(&mut self, id: RequestId, leader: Option<LeaderView>) {
        let failure = not_leading(leader);
        for read in self.unconfirmed.remove(&id).into_iter().flatten() {
            read.responder.answer(Err(failure.clone()));
        }
    }

    /// Answers the reads that are ready. The caller calls it when everything in the applied state
    /// is durable. An iteration answers at most [`limits::ITERATION_CLAIMS`] holders and waiters
    /// and leaves the rest to the next one, so that heartbeats do not wait for reads of long lists;
    /// a later state serves a read as well.
    pub(in crate::core) fn answer_reads(&mut self, node: &Node<LockTable>, age: Age) {
        let mut shown = 0;
        while shown < limits::ITERATION_CLAIMS
            && let Some((PendingRead { query, reader, responder }, consistency)) = self.ready.pop_front()
        {
            if !responder.is_gone() {
                let answer = read::answer(node, &query, &reader, (consistency == Consistency::Stale).then_some(age));
                shown += answer.as_ref().map_or(1, read::claims);
                responder.answer(answer);
            }
        }
    }
}
