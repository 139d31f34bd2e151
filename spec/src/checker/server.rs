//! One server, as last observed.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::inputs::transfer_clock;
use crate::raft::{
    Durable, Entry, HardState, Index, Members, Message, Node, NodeId, Persist, Position, RequestId, Stamp,
    StateMachine, Term,
};

/// A server.
#[derive(Debug)]
pub(super) struct Server<S: StateMachine> {
    pub(super) id: NodeId,
    /// What the disk has reported durable. If the feeder does not report snapshots, the real one
    /// may be later.
    pub(super) disk: Durable<S>,
    /// The writes that are not reported durable yet.
    pub(super) pending: VecDeque<Persist<S>>,
    /// How many writes this run has asked for, and of those reported durable.
    pub(super) asked: u64,
    pub(super) done: u64,
    /// How many writes each earlier run had done.
    pub(super) earlier: Vec<u64>,
    /// The messages that have not left, in order, each with the number of writes before it.
    pub(super) unsent: VecDeque<(u64, Sending<S>)>,
    /// The `Applied` outputs that cannot have been executed yet, each with the number of writes
    /// before it.
    pub(super) unreleased: VecDeque<(u64, AppliedOutput<S>)>,
    /// The last entry whose `Applied` may have been executed: the driver's own snapshots go no
    /// further.
    pub(super) released: Index,
    pub(super) before: Before,
    /// The reads that the node has not answered.
    pub(super) open_reads: Vec<RequestId>,
    /// The commit index at the last comparison of the whole state.
    pub(super) compared: Index,
}

/// A message that a node has output.
#[derive(Debug)]
pub(super) enum Sending<S: StateMachine> {
    Message(Message<S>),
    Snapshot(NodeId, Term),
}

/// An `Applied` that a node has output in this term.
#[derive(Debug)]
pub(super) struct AppliedOutput<S: StateMachine> {
    pub(super) entry: Entry<S::Command>,
    pub(super) term: Term,
    pub(super) outcome: S::Outcome,
}

/// The part of a node's state that is compared with its state after the next step.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) leads: Option<Term>,
    pub(super) hard: HardState,
    pub(super) commit: Index,
    pub(super) last: Position,
    pub(super) base: Position,
    pub(super) clock: Stamp,
    /// See [`transfer_clock`].
    pub(super) transfer: Option<(Term, Stamp)>,
    pub(super) members: Arc<Members>,
}

impl Before {
    pub(super) fn of<S: StateMachine>(node: &Node<S>) -> Before {
        Before {
            leads: node.is_leader().then(|| node.term()),
            hard: node.hard_state(),
            commit: node.commit(),
            last: node.log().last(),
            base: node.log().base(),
            clock: node.clock(),
            transfer: transfer_clock(node),
            members: Arc::clone(node.log().members()),
        }
    }

    /// A node that recovers from this disk.
    fn recovered<S: StateMachine>(disk: &Durable<S>) -> Before {
        Before {
            leads: None,
            hard: disk.hard,
            commit: disk.snapshot.last.index,
            last: disk.log.last(),
            base: disk.log.base(),
            clock: Stamp::default(),
            transfer: None,
            members: Arc::clone(disk.log.members()),
        }
    }
}

impl<S: StateMachine> Server<S> {
    /// A server that recovers from this disk; `earlier` as [above](Server::earlier).
    pub(super) fn new(id: NodeId, disk: Durable<S>, earlier: Vec<u64>) -> Server<S> {
        let (before, released) = (Before::recovered(&disk), disk.snapshot.last.index);
        Server {
            id,
            disk,
            pending: VecDeque::new(),
            asked: 0,
            done: 0,
            earlier,
            unsent: VecDeque::new(),
            unreleased: VecDeque::new(),
            released,
            before,
            open_reads: Vec::new(),
            compared: released,
        }
    }

    /// The term of an entry in the log of the running node: of its disk, or of a write under way.
    pub(super) fn term_at(&self, index: Index) -> Option<Term> {
        for write in self.pending.iter().rev() {
            match write {
                Persist::Entries(entries) if entries[0].index <= index => {
                    return entries.iter().find(|entry| entry.index == index).map(|entry| entry.term);
                }
                Persist::Snapshot(snapshot) if snapshot.last.index == index => return Some(snapshot.last.term),
                _ => {}
            }
        }
        self.disk.log.term_at(index)
    }

    /// How many writes were done in a run.
    pub(super) fn done_in(&self, run: usize) -> u64 {
        self.earlier.get(run).copied().unwrap_or(self.done)
    }
}
