//! The judge: steps each recorded node again, and feeds a [`ClusterChecker`] with what the nodes of
//! a cluster did.
//!
//! It judges by itself what only a recording can show: that the spec gives the outputs and the
//! states that were recorded, that the writes are those of the outputs, and that clocks are not
//! fast.

use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade::recording::{Digest, Record};
use palisade_model::world::panicked;
use palisade_spec::checker::{ClusterChecker, Counts, Feed, Reference, Slot};
use palisade_spec::invariants::{Check, Property, Violation};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, Durable, Input, Message, Node, NodeId, Output, Persist};
use palisade_spec::require;

use super::Options;

/// Size up to which the whole table is checked after each entry: the sum of its sessions and locks.
const FULL_CHECK_SIZE: usize = 1_024;
/// Number of committed entries whose states are kept.
const STATES_KEPT: usize = 1_024;

/// The observed state of a cluster.
#[derive(Debug)]
pub(super) struct Judge {
    options: Options,
    checker: ClusterChecker<LockTable>,
    nodes: Vec<RecordedNode>,
    outputs: Vec<Output<LockTable>>,
}

/// One data directory.
#[derive(Debug, Default)]
struct RecordedNode {
    /// The present run's configuration, and the start of its recording, which precedes the start of
    /// the node's clock.
    config: Option<Config>,
    began: u64,
    /// The time that the clock has been advanced since, in milliseconds.
    advanced: u64,
    node: Option<Node<LockTable>>,
}

impl Judge {
    pub(super) fn new(options: Options) -> Judge {
        let feed = Feed {
            // The model's disk. The server's log promises more (a batch is durable as a whole or
            // not at all), and its own tests check that.
            batches_are_atomic: false,
            reports_snapshots: false,
            reports_sends: false,
            fingerprint: Some(fingerprint),
            sees_all_servers: false,
            most: |time| time,
            entries_kept: usize::MAX,
            states_kept: STATES_KEPT,
            written_kept: usize::MAX,
            commits_between_comparisons: u64::MAX,
            checked_whole_up_to: FULL_CHECK_SIZE,
        };
        Judge { options, checker: ClusterChecker::new(feed), nodes: Vec::new(), outputs: Vec::new() }
    }

    /// Adds a node; slots are numbered in this order. Of several data directories with the same ID,
    /// the one that communicates counts.
    pub(super) fn slot(&mut self, id: NodeId) {
        self.checker.announce(Slot(self.nodes.len() as u64), id);
        self.nodes.push(RecordedNode::default());
    }

    /// The committed state, once the cluster has started.
    pub(super) fn agreed(&self) -> Option<&Reference<LockTable>> {
        self.checker.reference()
    }

    pub(super) fn counts(&self) -> Counts {
        self.checker.counts()
    }

    /// The next record of a node. Panics of the spec's own assertions count as violations: a
    /// recording of something impossible may cause them.
    pub(super) fn observe(&mut self, slot: usize, at: u64, record: Record) -> Check {
        let observed = catch_unwind(AssertUnwindSafe(|| match record {
            Record::Began(header) => {
                let node = &mut self.nodes[slot];
                (node.config, node.began, node.advanced) = (Some(header.config), header.began, 0);
                Ok(())
            }
            Record::Recovered { durable, .. } => self.recovered(slot, &durable),
            Record::Stepped { input, outputs, state, words, .. } => {
                self.stepped(slot, at, &input, outputs, words.as_deref())?;
                state.map_or(Ok(()), |state| self.compare(slot, Some(state)))
            }
            Record::Written { writes, digest, .. } => self.written(slot, writes, digest),
        }));
        observed.unwrap_or_else(|panic| Err(panicked(panic)))
    }

    fn recovered(&mut self, slot: usize, durable: &Durable<LockTable>) -> Check {
        let node = &mut self.nodes[slot];
        let config = node.config.clone().expect("a recording begins with its header");
        let id = config.id;
        node.node = None;
        self.checker.recovered(Slot(slot as u64), id, durable)?;
        self.nodes[slot].node = Some(Node::recover(config, durable.clone()));
        Ok(())
    }

    /// The node steps again; its outputs must match the recorded ones.
    fn stepped(
        &mut self,
        slot: usize,
        at: u64,
        input: &Input<LockTable>,
        recorded: Digest,
        recorded_text: Option<&str>,
    ) -> Check {
        match input {
            Input::Receive(message) => self.checker.received(Slot(slot as u64), message)?,
            Input::ClockAdvanced(milliseconds) => self.clock_advanced(slot, *milliseconds, at)?,
            _ => {}
        }
        self.outputs.clear();
        let node = self.nodes[slot].node.as_mut().ok_or_else(not_recovered)?;
        node.step(input.clone(), &mut self.outputs);
        let outputs = self.outputs.as_slice();
        let recorded_text = recorded_text.unwrap_or("other outputs (record with --record-verbose to see them)");
        require!(
            Property::SameOutputs,
            Digest::of(outputs) == recorded,
            "the spec's outputs are {outputs:?}, and the node's were {recorded_text}"
        )?;
        self.checker.stepped(Slot(slot as u64), node, input, outputs)
    }

    /// The node's clock advanced: in total never by more than the time that passed.
    fn clock_advanced(&mut self, slot: usize, milliseconds: u64, at: u64) -> Check {
        let node = &mut self.nodes[slot];
        node.advanced += milliseconds;
        let passed = std::time::Duration::from_nanos(at.saturating_sub(node.began));
        let passed = passed.mul_f64(self.options.clock_rate).as_millis();
        require!(
            Property::ClocksAreNotFast,
            u128::from(node.advanced) <= passed,
            "the node's clock advanced by {} ms, and only {passed} ms have passed",
            node.advanced
        )
    }

    /// The next writes are done.
    fn written(&mut self, slot: usize, writes: u64, digest: Digest) -> Check {
        let slot = Slot(slot as u64);
        let pending = self.checker.pending(slot).ok_or_else(not_recovered)?;
        let count = usize::try_from(writes).unwrap_or(usize::MAX);
        let asked = pending.len();
        require!(
            Property::WritesMatchOutputs,
            count <= asked,
            "the node reported {writes} writes, and had {asked} pending"
        )?;
        let writes: Vec<Persist<LockTable>> = pending.take(count).cloned().collect();
        require!(
            Property::WritesMatchOutputs,
            Digest::of(writes.as_slice()) == digest,
            "the node wrote something else than its outputs, which were {writes:?}"
        )?;
        self.checker.written(slot, &writes)
    }

    /// Compares a whole node with its recording, its disk, all other nodes and the committed state.
    fn compare(&mut self, slot: usize, state: Option<Digest>) -> Check {
        let node = self.nodes[slot].node.as_ref().ok_or_else(not_recovered)?;
        require!(
            Property::SameState,
            state.is_none_or(|state| Digest::of(node) == state),
            "the replica of node {} has another state than was recorded",
            node.id()
        )?;
        let others = self.nodes.iter().filter_map(|other| other.node.as_ref());
        self.checker.compare(Slot(slot as u64), node, others)
    }

    /// Compares all nodes with one another, at the end.
    pub(super) fn compare_nodes(&mut self) -> Check {
        let running = |slot: &usize| self.nodes[*slot].node.is_some();
        let slots: Vec<usize> = (0..self.nodes.len()).filter(running).collect();
        slots.into_iter().try_for_each(|slot| self.compare(slot, None))
    }
}

fn fingerprint(message: &Message<LockTable>) -> u64 {
    u64::from_le_bytes(Digest::of(message).0)
}

fn not_recovered() -> Violation {
    let detail = format_args!("the recording has a record before the node's recovery");
    Violation::new(Property::RecordedInOrder, detail)
}
