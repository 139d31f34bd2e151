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

use palisade_client::wire::{Answer, Code, Failure, LeaderView, MemberView, MembersView, Op};

use serde::{Deserialize, Serialize};

use super::App;
use crate::core::not_leading;

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
    /// The state of the handlers of one listener. All listeners of a node share the limits.
    #[must_use]
    pub fn at(&self, listener: Listener) -> App {
        App { listener, ..self.clone() }
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
