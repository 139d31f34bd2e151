//! Tells which requests are administrative, and at which of the node's listeners they are answered.
//!
//! A node with `--admin-addr` has two listeners, and refuses administrative requests at the one for
//! clients: a firewall can then keep clients from them, whatever identity a client has. Each request
//! carries the [`Listener`] at which it arrived, and every handler of an administrative request asks
//! [`App::accepts`] before it does anything.
//!
//! At the listener for administration, answers name the other nodes' admin addresses in place of their
//! client addresses: an operator who has one of them is redirected to others of them, and no client
//! learns them at a listener for clients.

use std::sync::Arc;

use palisade_client::wire::{Answer, Code, Failure, LeaderView, MemberView, MembersView, Op};
use serde::{Deserialize, Serialize};

use super::App;
use crate::core::not_leading;
use crate::limits;
use crate::tls::Handshakes;

/// The listener at which a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listener {
    /// The only one of its node.
    Only,
    /// The one for clients, of a node that also has the other one.
    Clients,
    /// The one for administration. It answers the requests of clients, too.
    Administration,
}

/// What an operation asks for, if it is administrative: those that the right `admin` or `break` is
/// needed for. A client may ask what itself may do.
fn administrative(op: &Op, principal: &str) -> Option<&'static str> {
    match op {
        Op::ChangeMembers(_) => Some("changes of the members"),
        Op::Transfer(_) => Some("transfers of leadership"),
        Op::Break { .. } => Some("breaks of grants"),
        Op::SetAccess(_) => Some("changes of the access rules"),
        Op::ShowAccess => Some("reads of the access rules"),
        Op::TestAccess(test) if test.principal != principal => Some("questions about the rights of others"),
        Op::TestAccess(_)
        | Op::OpenSession(_)
        | Op::KeepAlive { .. }
        | Op::CloseSession { .. }
        | Op::ShowSession { .. }
        | Op::Acquire { .. }
        | Op::Release { .. }
        | Op::Withdraw { .. }
        | Op::Proclaim { .. }
        | Op::ShowLock { .. }
        | Op::ListLocks(_)
        | Op::ShowRecord { .. }
        | Op::ListRecords(_)
        | Op::Transact { .. }
        | Op::Watch(_)
        | Op::Unwatch { .. }
        | Op::Status => None,
    }
}

impl App {
    /// The state of the handlers of one listener. All listeners of a node share the limits, except that on handshakes
    /// of TLS: strangers that use it up at the listener for clients keep no operator out.
    #[must_use]
    pub fn at(&self, listener: Listener) -> App {
        let handshakes = match listener {
            Listener::Only | Listener::Clients => Arc::clone(&self.handshakes),
            Listener::Administration => Arc::new(Handshakes::new(limits::ADMIN_HANDSHAKES)),
        };
        App { listener, handshakes, ..self.clone() }
    }

    /// Refuses an administrative request at the listener for clients. The sentence names the option, and
    /// not the address: a client may not know it.
    pub(super) fn accepts(&self, what: &str) -> Result<(), Failure> {
        if self.listener != Listener::Clients {
            return Ok(());
        }
        let message = format!(
            "the node accepts {what} only at its admin address (--admin-addr), and this request came to its address for \
             clients: send it to the admin address; nothing was done"
        );
        Err(Failure::new(Code::WrongListener, message))
    }

    /// The same for an operation, which need not be administrative.
    pub(super) fn accepts_op(&self, op: &Op) -> Result<(), Failure> {
        administrative(op, self.principal.as_str()).map_or(Ok(()), |what| self.accepts(what))
    }

    /// Names admin addresses in an answer at the listener for administration.
    pub(super) fn readdress_answer(&self, answer: &mut Answer) {
        match answer {
            Answer::Members(MembersView { members, leader }) => self.readdress(members, leader.as_mut()),
            Answer::Transferred(leader) => self.readdress(&mut [], Some(leader)),
            _ => {}
        }
    }

    /// Redirects to the leader's admin address at the listener for administration.
    pub(super) fn readdress_failure(&self, failure: &mut Failure) {
        if self.listener == Listener::Administration
            && let Some(mut leader) = failure.leader.take()
        {
            self.readdress(&mut [], Some(&mut leader));
            *failure = not_leading(Some(leader));
        }
    }

    /// Names the admin addresses of these nodes at the listener for administration. A node without one
    /// answers everything at its client address.
    pub(super) fn readdress(&self, members: &mut [MemberView], leader: Option<&mut LeaderView>) {
        if self.listener != Listener::Administration {
            return;
        }
        let members = members.iter_mut().map(|member| (member.id, &mut member.client_addr));
        for (id, address) in members.chain(leader.map(|leader| (leader.id, &mut leader.client_addr))) {
            if let Some(admin_addr) = self.peers.admin_addr(id) {
                *address = Some(admin_addr);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::future::pending;
    use std::path::Path;
    use std::time::Duration;

    use palisade_spec::lock::LockTable;
    use palisade_spec::raft::NodeId;
    use tokio::sync::watch;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::accounts::{Accounts, ClientLimits};
    use crate::addresses::ClientAddress;
    use crate::core::Core;
    use crate::descriptors::ConnectionLimit;
    use crate::http::{Setup, Site};
    use crate::metrics::Metrics;
    use crate::peers::{Peers, PinnedPeers, Roster};
    use crate::storage::{Incarnation, Snapshots, Space, Start, SystemDisk};
    use crate::watch::Hub;

    /// The handlers' state of a node with this data directory.
    pub(in crate::http) fn app(directory: &Path, core: Core) -> App {
        let metrics = Metrics::new();
        let roster = Roster {
            cluster: 7,
            cluster_name: "test".into(),
            node: NodeId(1),
            incarnation: Incarnation(1),
            start: Start::default(),
            client_addr: String::new(),
            admin_addr: None,
            peer_addr: String::new(),
            peer_addrs: BTreeMap::new(),
            tls: None,
        };
        let (snapshots, _) = Snapshots::open::<LockTable>(&SystemDisk::shared(), directory, 7).unwrap();
        let pinned = PinnedPeers::load(directory).unwrap();
        let (peers, _) = Peers::new(roster, pinned, snapshots.into(), Arc::clone(&metrics));
        let setup = Setup {
            site: Site::default(),
            signer: None,
            audit: None,
            accounts: Accounts::new(ClientLimits::default(), 800, &metrics),
            hub: Hub::new(1, &metrics),
            forwarding: ConnectionLimit::new(8, "forwarded requests", &metrics.peer_connections_refused),
            stop: watch::channel(false).1,
        };
        App::new(core, peers, metrics, Space::of_tests(1, 0), setup)
    }

    /// Goal: strangers that use up the handshakes at the listener for clients keep no operator out of the other one.
    #[tokio::test]
    async fn administration_has_handshakes_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let app = app(directory.path(), Core::channel().0);
        let (clients, admin) = (app.at(Listener::Clients), app.at(Listener::Administration));
        let address = |network: u8| ClientAddress::of([10, 0, network, 1].into());
        for stranger in 0..limits::HANDSHAKES {
            let network = u8::try_from(stranger % limits::STRANGER_SHARE).unwrap();
            let handshakes = Arc::clone(&clients.handshakes);
            tokio::spawn(async move { handshakes.run(address(network), pending::<()>()).await });
        }
        let completes = async |app: &App| {
            let handshake = app.handshakes.run(address(99), async {});
            timeout(Duration::from_millis(200), handshake).await.is_ok()
        };
        sleep(Duration::from_millis(50)).await;
        assert!(!completes(&clients).await, "the strangers have all of them");
        assert!(completes(&admin).await);
    }
}
