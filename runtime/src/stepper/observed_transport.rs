//! The way to the peers: the server's own, with two differences. It is seen, and it waits for a connection: a message that
//! found none would be lost, and what is lost here the trace decides.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};

use super::effect_log::EffectLog;
use super::protocol::Effect;
use crate::core::Transport;
use crate::peers::Peers;

/// How long a connection is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ObservedTransport {
    pub(super) peers: Arc<Peers>,
    pub(super) effects: Arc<EffectLog>,
}

impl ObservedTransport {
    /// Waits until messages to a node have somewhere to go, unless they never will: it was removed.
    fn wait_for(peers: &Peers, id: NodeId) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match peers.reaches(id) {
                Some(true) | None => return,
                Some(false) => thread::sleep(Duration::from_micros(200)),
            }
        }
    }
}

impl Transport for ObservedTransport {
    fn send(&self, message: Message<LockTable>) {
        self.effects.sends(Effect::Send(message.to));
        ObservedTransport::wait_for(&self.peers, message.to);
        Transport::send(&self.peers, message);
    }

    fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        self.effects.sends(Effect::SendSnapshot(to));
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
