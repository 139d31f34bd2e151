//! One peer as this node sees it: the messages that wait for it, its connections and its program.

use std::net::IpAddr;
use std::time::Instant;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, NodeId, Term};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::hello::Purpose;
use super::versions::Speaks;
use crate::outbox::Outbox;
use crate::sync::Mutex;

/// The connections to and from one peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: NodeId,
    pub(super) outbox: Outbox<Message<LockTable>>,
    /// The term of the requested snapshot transfer.
    pub(super) snapshots: Outbox<Term>,
    pub(super) state: Mutex<LinkState>,
    /// Whether the peer was removed: ends what it forwards, and what is forwarded to it.
    pub(super) ended: watch::Sender<bool>,
}

impl Link {
    /// Ends the connections to and from the peer, for good; what waits in the outbox is still sent.
    pub(super) fn end(&self) {
        self.outbox.close();
        self.snapshots.close();
        self.ended.send_replace(true);
        if let Some(inbound) = self.state.lock().inbound.take() {
            inbound.abort();
        }
    }

    /// Whether connections to and from the peer are open.
    pub(super) fn is_connected(&self) -> bool {
        let state = self.state.lock();
        state.dialled && state.inbound.is_some()
    }
}

/// What is known of one peer, and which connections to and from it are open.
#[derive(Debug, Default)]
pub(super) struct LinkState {
    /// The address to dial.
    pub(super) address: String,
    /// What that resolved to when it was last dialled.
    pub(super) resolved: Vec<IpAddr>,
    /// Whether the peer has welcomed this process.
    pub(super) welcomed: bool,
    /// Whether the outbound connection is open.
    pub(super) dialled: bool,
    /// The task that reads from the peer.
    pub(super) inbound: Option<AbortHandle>,
    /// The tasks that dial the peer.
    pub(super) outbound: Vec<AbortHandle>,
    /// The address at which the peer serves clients, once it has announced it.
    pub(super) client_addr: Option<String>,
    /// The address at which the peer answers administrative requests, if it has announced one.
    pub(super) admin_addr: Option<String>,
    /// The peer's program, as far as handshakes have told it ([`LinkState::learn`]).
    pub(super) program: Option<Program>,
    /// When it has refused this node as one that speaks version 10 only.
    pub(super) refused_in_10: Option<Instant>,
}

impl LinkState {
    /// Takes what a handshake says of the peer's program. One without a range says it only on a connection
    /// for messages, for which the dialling node has offered a range: for others it goes by what it
    /// knew, which was true before the peer was upgraded.
    pub(super) fn learn(&mut self, program: Program, purpose: Purpose) {
        if program.knows_ranges || purpose == Purpose::Messages {
            self.program = Some(program);
        }
    }
}

/// What a peer runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The version of its program, if it has said it: one of version 10 does not.
    pub version: Option<String>,
    /// The version of the protocol in which it and this node speak.
    pub protocol: u16,
    /// Whether it understands a hello with a range of versions.
    pub(super) knows_ranges: bool,
}

impl Program {
    /// The program of a peer that `speaks` these versions, of which one is agreed.
    pub(super) fn new(speaks: Speaks, protocol: u16) -> Program {
        let knows_ranges = speaks.knows_ranges();
        Program { version: Some(speaks.program).filter(|version| !version.is_empty()), protocol, knows_ranges }
    }
}
