//! What a live node is to be: the same functions, stepped here, in the server's own terms.
//!
//! A twin is compared on both sides. In the model's terms it is what the trace says the model's server is; as it is, it is
//! what the live node says it is. So the two are compared completely, and nothing that the model has no word for (such as
//! the deadlines of a table) goes unseen.

use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Config, Durable, Input, Message, Node, NodeId, Output, Persist, Snapshot};

/// A server as it is to be.
#[derive(Clone, Debug)]
pub struct ExpectedNode {
    config: Config,
    /// The node.
    pub node: Node<LockTable>,
    /// Its disk.
    pub disk: Durable<LockTable>,
}

impl ExpectedNode {
    /// A server that starts from this disk.
    pub fn start(config: Config, mut disk: Durable<LockTable>) -> ExpectedNode {
        disk.settle();
        ExpectedNode { node: Node::recover(config.clone(), disk.clone()), config, disk }
    }

    /// Takes an input, and says what the node asks for.
    pub fn step(&mut self, input: Input<LockTable>) -> Vec<Output<LockTable>> {
        let mut outputs = Vec::new();
        self.node.step(input, &mut outputs);
        outputs
    }

    /// Writes what these outputs ask for, and says what they send: the snapshots of the disk as it is in between.
    pub fn carry_out(&mut self, outputs: &[Output<LockTable>]) -> Vec<Message<LockTable>> {
        let mut said = Vec::new();
        for output in outputs {
            match output {
                Output::Persist(write) => self.disk.apply(write),
                Output::Send(message) => said.push(message.clone()),
                Output::SendSnapshot { to, term } => {
                    let snapshot = Arc::new(self.disk.snapshot.clone());
                    let body = Body::InstallSnapshot { snapshot };
                    said.push(Message { from: self.node.id(), to: *to, term: *term, body });
                }
                _ => {}
            }
        }
        said
    }

    /// Writes the snapshot of a write that was broken off before the log gave way to it.
    pub fn half_install(&mut self, write: &Persist<LockTable>) {
        if let Persist::Snapshot(snapshot) = write {
            self.disk.snapshot = Snapshot::clone(snapshot);
        }
    }

    /// The driver takes a snapshot.
    pub fn take_snapshot(&mut self) {
        self.disk.snapshot = self.disk.snapshot_at(self.node.commit());
    }

    /// Crashes, and is back.
    pub fn restart(&mut self) {
        *self = ExpectedNode::start(self.config.clone(), self.disk.clone());
    }

    /// The disk as a start finds it.
    pub fn settled(&self) -> Durable<LockTable> {
        let mut disk = self.disk.clone();
        disk.settle();
        disk
    }

    /// Whether this server knows for certain that another one was removed: then its connections are cut.
    pub fn has_cut_off(&self, other: NodeId) -> bool {
        self.node.log().members_at(self.node.commit()).was_removed(other)
    }
}
