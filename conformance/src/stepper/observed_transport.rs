//! The server's transport with two differences: sends are recorded, and a send waits for a
//! connection. Without a connection the message would be lost, but the trace alone decides which
//! messages are lost.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use palisade::core::Transport;
use palisade::peers::Peers;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};

use super::effect_log::EffectLog;
use super::protocol::Effect;

/// How long a send waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub(super) struct ObservedTransport {
    pub(super) peers: Arc<Peers>,
    pub(super) effects: Arc<EffectLog>,
}

impl ObservedTransport {
    /// Waits for a connection to a node; returns at once if the node was removed.
    fn wait_for(peers: &Peers, id: NodeId) {
        let begun = Instant::now();
        while begun.elapsed() < CONNECT_TIMEOUT {
            match peers.reaches(id) {
                Some(true) | None => return,
                Some(false) => thread::sleep(Duration::from_micros(200)),
            }
        }
    }
}

impl Transport for ObservedTransport {
    fn send(&self, message: Message<LockTable>) {
        self.effects.before_send(Effect::Send(message.to));
        ObservedTransport::wait_for(&self.peers, message.to);
        Transport::send(&self.peers, message);
    }

    fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        self.effects.before_send(Effect::SendSnapshot(to));
        ObservedTransport::wait_for(&self.peers, to);
        Transport::send_snapshot(&self.peers, to, term)
    }

    fn set_members(&self, latest: &Members, committed: &Arc<Members>) {
        Transport::set_members(&self.peers, latest, committed);
    }

    fn is_connected(&self, id: NodeId) -> bool {
        Transport::is_connected(&self.peers, id)
    }

    fn is_known_to(&self, others: &[NodeId]) -> bool {
        Transport::is_known_to(&self.peers, others)
    }

    fn client_addr(&self, id: NodeId) -> Option<String> {
        Transport::client_addr(&self.peers, id)
    }
}
