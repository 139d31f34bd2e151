//! One node, stepped again: what it is, what its disk has, and what it has asked for that was not reported written.

use std::collections::VecDeque;

use palisade::recording::Digest;
use palisade_spec::invariants::{Check, Violation, clock_monotonicity};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, HardState, Index, Input, Node, Output, Persist, Position, Stamp, Term};

use super::{broken, require};

/// A node as its recording tells it.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) node: Node<LockTable>,
    /// What was reported written. Its snapshot is as late as it has to be; the real one may be later.
    pub(super) disk: Durable<LockTable>,
    pub(super) pending: VecDeque<Persist<LockTable>>,
    /// How many writes this run has asked for, and how many of them are done.
    pub(super) asked: u64,
    pub(super) done: u64,
    /// Up to here the node has told, or may have told, that entries are committed: its own snapshots go no further.
    pub(super) released: Index,
    /// When the recording began, which is before the node's clock did; and how much time its clock was told of since, in milliseconds.
    began: u64,
    told: u64,
}

/// What a node was before a step, as far as it is compared with what it is after it.
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
        Replica { node, disk, pending: VecDeque::new(), asked: 0, done: 0, released, began, told: 0 }
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

    /// Takes a step, which must ask for what the node asked for.
    pub(super) fn step(
        &mut self,
        input: Input<LockTable>,
        recorded: Digest,
        words: Option<&str>,
        outputs: &mut Vec<Output<LockTable>>,
    ) -> Check {
        self.node.step(input, outputs);
        require("same outputs", Digest::of(outputs.as_slice()) == recorded, || {
            let words = words.unwrap_or("something else (record with --record-verbose to see what)");
            format!("the spec asks for {outputs:?}, and the node asked for {words}")
        })
    }

    /// What must hold of a node by itself over a step.
    pub(super) fn keeps_its_word(&self, before: Before) -> Check {
        let (node, was, is) = (&self.node, before.hard, self.node.hard_state());
        require("terms only grow", is.term >= was.term, || format!("it went from term {} to {}", was.term, is.term))?;
        let stands = is.term > was.term || was.vote.is_none() || is.vote == was.vote;
        require("one vote a term", stands, || format!("it changed its vote in term {}", is.term))?;
        require("commit only grows", node.commit() >= before.commit, || format!("it forgot {}", before.commit))?;
        clock_monotonicity((before.clock, before.last), node)
    }

    /// The node's clock was told that time has passed: never more than has.
    pub(super) fn clock_advanced(&mut self, milliseconds: u64, at: u64, rate: f64) -> Check {
        self.told += milliseconds;
        let passed = std::time::Duration::from_nanos(at.saturating_sub(self.began)).mul_f64(rate).as_millis();
        require("clocks are not fast", u128::from(self.told) <= passed, || {
            format!("its clock was told of {} ms, and {passed} ms have passed", self.told)
        })
    }

    /// These writes are done.
    pub(super) fn written(&mut self, writes: u64, digest: Digest) -> Check {
        let count = usize::try_from(writes).unwrap_or(usize::MAX);
        if count > self.pending.len() {
            return broken(
                "writes match outputs",
                format!("it wrote {writes}, and had asked for {}", self.pending.len()),
            );
        }
        let writes: Vec<Persist<LockTable>> = self.pending.drain(..count).collect();
        let same = Digest::of(writes.as_slice()) == digest;
        require("writes match outputs", same, || format!("it wrote something else than {writes:?}"))?;
        writes.iter().for_each(|write| apply(&mut self.disk, write));
        self.done += count as u64;
        self.settled();
        if self.pending.is_empty() {
            let (node, disk) = (&self.node, &self.disk);
            let written = node.hard_state() == disk.hard
                && node.log().last() == disk.log.last()
                && node.log().base() == disk.log.base();
            require("memory matches disk", written, || "it remembers what its disk does not have".into())?;
        }
        Ok(())
    }

    /// If nothing is pending, everything that was asked for may be carried out by now.
    pub(super) fn settled(&mut self) {
        if self.pending.is_empty() {
            self.released = self.node.commit();
        }
    }

    /// That memory and disk are the same, compared as a whole.
    pub(super) fn is_written(&self) -> Result<(), Violation> {
        let written =
            !self.pending.is_empty() || (self.node.hard_state() == self.disk.hard && self.node.log() == &self.disk.log);
        require("memory matches disk", written, || "it remembers what its disk does not have".into())
    }
}

/// Executes a write. The node has taken the snapshots that a compaction builds on by itself, and they are not recorded:
/// they are what they have to be.
pub(super) fn apply(disk: &mut Durable<LockTable>, write: &Persist<LockTable>) {
    if let Persist::Compact(through) = write
        && *through > disk.snapshot.last.index
    {
        disk.snapshot = disk.snapshot_at(*through);
    }
    disk.apply(write);
}
