//! The expected state of a live node: the same functions, stepped here, in the server's terms.
//!
//! An expected node is compared with both sides. Translated to the model's terms, it must be the
//! model's server in the trace; as it is, it must be the live node. So the two are compared
//! completely, including what the model does not have, such as the deadlines of a table.

use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Config, Durable, Input, Message, Node, NodeId, Output, Persist, Snapshot};

/// The expected state of a server.
#[derive(Clone, Debug)]
pub struct ExpectedNode {
    config: Config,
    /// The expected node.
    pub node: Node<LockTable>,
    /// The expected disk.
    pub disk: Durable<LockTable>,
}

impl ExpectedNode {
    /// A server that starts from this disk.
    pub fn start(config: Config, mut disk: Durable<LockTable>) -> ExpectedNode {
        disk.settle();
        ExpectedNode { node: Node::recover(config.clone(), disk.clone()), config, disk }
    }

    /// Steps the node and returns its outputs.
    pub fn step(&mut self, input: Input<LockTable>) -> Vec<Output<LockTable>> {
        let mut outputs = Vec::new();
        self.node.step(input, &mut outputs);
        outputs
    }

    /// Executes the writes and returns the messages sent; a snapshot is that of the disk at its
    /// position in the outputs.
    pub fn execute(&mut self, outputs: &[Output<LockTable>]) -> Vec<Message<LockTable>> {
        let mut sent = Vec::new();
        for output in outputs {
            match output {
                Output::Persist(write) => self.disk.apply(write),
                Output::Send(message) => sent.push(message.clone()),
                Output::SendSnapshot { to, term } => {
                    let snapshot = Arc::new(self.disk.snapshot.clone());
                    let body = Body::InstallSnapshot { snapshot };
                    sent.push(Message { from: self.node.id(), to: *to, term: *term, body });
                }
                _ => {}
            }
        }
        sent
    }

    /// Writes the snapshot of a write that was interrupted before the log was cut.
    pub fn half_install(&mut self, write: &Persist<LockTable>) {
        if let Persist::Snapshot(snapshot) = write {
            self.disk.snapshot = Snapshot::clone(snapshot);
        }
    }

    /// Takes a snapshot of what is committed, as the driver does.
    pub fn take_snapshot(&mut self) {
        self.disk.snapshot = self.disk.snapshot_at(self.node.commit());
    }

    /// Crashes and recovers.
    pub fn restart(&mut self) {
        *self = ExpectedNode::start(self.config.clone(), self.disk.clone());
    }

    /// The disk as recovery finds it.
    pub fn settled(&self) -> Durable<LockTable> {
        let mut disk = self.disk.clone();
        disk.settle();
        disk
    }

    /// Whether this server knows from a committed entry that the other one was removed; then the
    /// driver cuts their connections.
    pub fn has_cut_off(&self, other: NodeId) -> bool {
        self.node.log().members_at(self.node.commit()).was_removed(other)
    }
}
