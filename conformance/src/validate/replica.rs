//! The replay of one node: the node, its disk, and the writes that are not reported done.

use palisade_spec::{require, violated};
use std::collections::VecDeque;

use palisade::recording::Digest;
use palisade_spec::invariants::{Check, Property, Violation, clock_monotonicity, replies_name_requests};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, HardState, Index, Input, Node, Output, Persist, Position, RequestId, Stamp, Term};

/// A node, replayed from its recording.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) node: Node<LockTable>,
    /// What was reported written. Its snapshot is the earliest that the records imply; the real one
    /// may be later.
    pub(super) disk: Durable<LockTable>,
    pub(super) pending: VecDeque<Persist<LockTable>>,
    /// The node's open reads.
    open: Vec<RequestId>,
    /// Number of writes that this run has asked for, and of those done.
    pub(super) asked: u64,
    pub(super) done: u64,
    /// Highest entry whose commit the node may have disclosed: its own snapshots go no further.
    pub(super) released: Index,
    /// Start of the recording, which precedes the start of the node's clock, and the time that the
    /// clock has been advanced since, in milliseconds.
    began: u64,
    advanced: u64,
}

/// The part of a node's state before a step that is compared with its state after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) leads: Option<Term>,
    pub(super) hard: HardState,
    pub(super) commit: Index,
    pub(super) last: Position,
    pub(super) base: Index,
    clock: Stamp,
}

impl Replica {
    pub(super) fn new(node: Node<LockTable>, disk: Durable<LockTable>, began: u64) -> Replica {
        let released = node.commit();
        Replica {
            node,
            disk,
            pending: VecDeque::new(),
            open: Vec::new(),
            asked: 0,
            done: 0,
            released,
            began,
            advanced: 0,
        }
    }

    pub(super) fn before(&self) -> Before {
        let node = &self.node;
        Before {
            leads: node.is_leader().then(|| node.term()),
            hard: node.hard_state(),
            commit: node.commit(),
            last: node.log().last(),
            base: node.log().base().index,
            clock: node.clock(),
        }
    }

    /// Steps the node; its outputs must match the recorded ones.
    pub(super) fn step(
        &mut self,
        input: Input<LockTable>,
        recorded: Digest,
        recorded_text: Option<&str>,
        outputs: &mut Vec<Output<LockTable>>,
    ) -> Check {
        self.node.step(input.clone(), outputs);
        let recorded_text = recorded_text.unwrap_or("other outputs (record with --record-verbose to see them)");
        require!(
            Property::SameOutputs,
            Digest::of(outputs.as_slice()) == recorded,
            "the spec's outputs are {outputs:?}, and the node's were {recorded_text}"
        )?;
        replies_name_requests(&mut self.open, &input, outputs, &self.node)
    }

    /// Checks the properties of a single node over a step.
    pub(super) fn check_transition(&self, before: Before) -> Check {
        let (node, was, is) = (&self.node, before.hard, self.node.hard_state());
        require!(Property::TermsOnlyGrow, is.term >= was.term, "the node went from term {} to {}", was.term, is.term)?;
        let stands = is.term > was.term || was.vote.is_none() || is.vote == was.vote;
        require!(Property::OneVotePerTerm, stands, "the node changed its vote in term {}", is.term)?;
        require!(
            Property::CommitOnlyGrows,
            node.commit() >= before.commit,
            "the node's commit index fell below {}",
            before.commit
        )?;
        clock_monotonicity((before.clock, before.last), node)
    }

    /// The node's clock advanced: in total never by more than the time that passed.
    pub(super) fn clock_advanced(&mut self, milliseconds: u64, at: u64, rate: f64) -> Check {
        self.advanced += milliseconds;
        let passed = std::time::Duration::from_nanos(at.saturating_sub(self.began)).mul_f64(rate).as_millis();
        require!(
            Property::ClocksAreNotFast,
            u128::from(self.advanced) <= passed,
            "the node's clock advanced by {} ms, and only {passed} ms have passed",
            self.advanced
        )
    }

    /// The next writes are done.
    pub(super) fn written(&mut self, writes: u64, digest: Digest) -> Check {
        let count = usize::try_from(writes).unwrap_or(usize::MAX);
        if count > self.pending.len() {
            return violated!(
                Property::WritesMatchOutputs,
                "the node reported {writes} writes, and had {} pending",
                self.pending.len()
            );
        }
        let writes: Vec<Persist<LockTable>> = self.pending.drain(..count).collect();
        let same = Digest::of(writes.as_slice()) == digest;
        require!(
            Property::WritesMatchOutputs,
            same,
            "the node wrote something else than its outputs, which were {writes:?}"
        )?;
        writes.iter().for_each(|write| apply(&mut self.disk, write));
        self.done += count as u64;
        self.release_if_idle();
        if self.pending.is_empty() {
            let (node, disk) = (&self.node, &self.disk);
            let written = node.hard_state() == disk.hard
                && node.log().last() == disk.log.last()
                && node.log().base() == disk.log.base();
            require!(Property::MemoryMatchesDisk, written, "the memory of the node differs from its disk")?;
        }
        Ok(())
    }

    /// If no write is pending, all outputs may have been carried out.
    pub(super) fn release_if_idle(&mut self) {
        if self.pending.is_empty() {
            self.released = self.node.commit();
        }
    }

    /// Checks that memory and disk are equal, as a whole.
    pub(super) fn memory_matches_disk(&self) -> Result<(), Violation> {
        let written =
            !self.pending.is_empty() || (self.node.hard_state() == self.disk.hard && self.node.log() == &self.disk.log);
        require!(Property::MemoryMatchesDisk, written, "the memory of the node differs from its disk")
    }
}

/// Executes a write. A compaction builds on a snapshot that the node took by itself and that is not
/// recorded: it is computed here.
pub(super) fn apply(disk: &mut Durable<LockTable>, write: &Persist<LockTable>) {
    if let Persist::Compact(through) = write
        && *through > disk.snapshot.last.index
    {
        disk.snapshot = disk.snapshot_at(*through);
    }
    disk.apply(write);
}
