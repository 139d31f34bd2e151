//! What somebody who watches the driver is shown: everything that the node's state depends on, in order.
//!
//! The node is deterministic. So what a tap is shown is enough to step the same node again, elsewhere and later, and to
//! compare what it asked for: that is how recordings of live nodes are checked against the protocol.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Input, Node, Output, Persist};

/// Watches a driver. It is called on the driver's thread, between two of its steps, and should be quick.
pub trait Observer: Send {
    /// The node is about to begin from this.
    fn recovered(&mut self, durable: &Durable<LockTable>);

    /// The node took an input, asked for these outputs, and is this now. Nothing of them is carried out before
    /// [`carrying_out`](Observer::carrying_out).
    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]);

    /// What the steps since the last time asked for is about to be carried out.
    fn carrying_out(&mut self) {}

    /// These writes, the next ones that the node has asked for, are durable.
    fn written(&mut self, writes: &[Persist<LockTable>]);
}
