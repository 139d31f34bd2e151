//! Observers of the driver: they see everything that the node's state depends on, in order.
//!
//! The node is deterministic, so an observer sees enough to step the same node again, elsewhere and
//! later, and to compare the outputs: that is how recordings of live nodes are checked against the
//! protocol.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Input, Node, Output, Persist};

/// Observes a driver. Its functions run on the driver's thread, between two steps, and should be
/// quick.
pub trait Observer: Send {
    /// The node is about to recover from this state.
    fn recovered(&mut self, durable: &Durable<LockTable>);

    /// The node was stepped with an input and returned these outputs; `node` is its state after the
    /// step. No output is executed before [`executing`](Observer::executing).
    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]);

    /// The outputs of the steps since the last call are about to be executed.
    fn executing(&mut self) {}

    /// These writes, the next ones in the order of the outputs, are durable.
    fn written(&mut self, writes: &[Persist<LockTable>]);
}
