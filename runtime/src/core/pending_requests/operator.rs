//! Operators' requests: membership changes and leadership transfers.
//!
//! A change is an entry, and is answered when it is applied. A transfer is answered when another
//! node leads.

use std::time::Instant;

use palisade_client::wire::{Answer, Code, Failure, LeaderView, MembersView};
use palisade_spec::lock::{LockTable, Right};
use palisade_spec::raft::{Change, Node, NodeId, Refusal, RequestId, Role, Standing};

use super::{PendingRequests, not_leading};
use crate::core::access;
use crate::core::request::Request;
use crate::core::respond::Responder;
use crate::core::view::{Reachability, matched, member_views};
use crate::limits;
use crate::member_address::MemberAddress;

impl PendingRequests {
    /// The iteration's next membership change. The node answers it with
    /// [`PendingRequests::accepted`] or [`PendingRequests::change_refused`].
    pub(in crate::core) fn change(&mut self, node: &Node<LockTable>) -> Option<(RequestId, Change)> {
        let (change, operator, responder) = loop {
            let (change, operator, responder) = self.changes.pop_front()?;
            // Judged at the last moment: the messages of this iteration may have changed the rules. A node
            // that does not lead redirects the client.
            match access::check_change(node.machine().access(), &operator, &change) {
                Err(denied) if node.is_leader() => drop(responder.answer(Err(denied))),
                _ => break (change, operator, responder),
            }
        };
        let change = match change {
            Change::Promote(id) => Change::Promote(current_generation(node, id)),
            Change::Remove(id) => Change::Remove(current_generation(node, id)),
            Change::Replace { lost, by, address } => {
                let mut member = MemberAddress::of(&address);
                if member.peer_addr.is_empty() {
                    // Without a new address, the member keeps its old one.
                    let old = node.members().get(lost).map(|member| MemberAddress::of(&member.address).peer_addr);
                    member.peer_addr = old.unwrap_or_default();
                }
                Change::Replace { lost, by, address: member.address() }
            }
            Change::Add { .. } => change,
        };
        let id = self.next_id();
        self.changing.insert(id, (change.clone(), operator, responder));
        Some((id, change))
    }

    /// Rejects a change before the node is stepped with it: too few voters after it follow the leader. These
    /// nodes are missing.
    pub(in crate::core) fn change_loses_majority(&mut self, id: RequestId, missing: &[NodeId]) {
        let missing = missing.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ");
        let message = format!(
            "the nodes that this change needs are to be connected to the leader, answer it, and have nearly all of its \
             log. Missing: {missing}. Start or repair them first, or wait until they have caught up"
        );
        self.fail_change(id, Failure::new(Code::NoMajority, message));
    }

    /// Rejects the replacement of a connected member: its server has not lost its disk.
    pub(in crate::core) fn replaced_is_connected(&mut self, id: RequestId, node: NodeId) {
        let message = format!("node {node} is connected to the leader, so its server runs with its data directory");
        let failure = Failure::new(Code::ChangeNotReady, message);
        self.fail_change(id, failure);
    }

    /// The node rejected a membership change. If the members are already as requested, the change
    /// counts as done: the operator may have repeated the request.
    pub(in crate::core) fn change_refused(
        &mut self,
        node: &Node<LockTable>,
        id: RequestId,
        refusal: Refusal,
        leader: Option<LeaderView>,
    ) {
        let Some((change, _, responder)) = self.changing.remove(&id) else { return };
        let failure = match refusal {
            Refusal::NotLeader(_) => not_leading(leader),
            _ if is_done(node, &change) => return self.changed.push(responder),
            other => refused_change(other, &change),
        };
        responder.answer(Err(failure));
    }

    fn fail_change(&mut self, id: RequestId, failure: Failure) {
        if let Some((_, _, responder)) = self.changing.remove(&id) {
            responder.answer(Err(failure));
        }
    }

    /// Answers the changes that were executed in this iteration.
    pub(in crate::core) fn answer_changes(
        &mut self,
        node: &Node<LockTable>,
        reachability: impl Fn(NodeId) -> Reachability,
    ) {
        if self.changed.is_empty() {
            return;
        }
        let leader = node.leader().map(|id| LeaderView { id: id.number(), client_addr: reachability(id).client_addr });
        let answer = Answer::Members(MembersView {
            members: member_views(node.members(), &matched(node), reachability),
            leader,
        });
        for responder in self.changed.drain(..) {
            responder.answer(Ok(answer.clone()));
        }
    }

    /// Rejects a change before the node is stepped with it: the cluster has all the members that it
    /// may have.
    pub(in crate::core) fn members_exceed_limit(&mut self, id: RequestId) {
        let limit = limits::MEMBERS;
        let message = format!("the limit of {limit} members, learners included, is reached: remove one first");
        self.fail_change(id, Failure::new(Code::Limit, message));
    }

    /// This node leads from now on. A transfer interrupts all requests, so clients may not request
    /// the next one at once: neither here, nor at the leader before.
    pub(in crate::core) fn began_to_lead(&mut self, now: Instant) {
        self.next_transfer = None;
        self.pause_transfers(now);
        if self.quotas.limit_sessions_of_clients() {
            self.openers.began_to_lead();
        }
    }

    /// No client may request a transfer for a while.
    pub(super) fn pause_transfers(&mut self, now: Instant) {
        self.next_transfer = Some(now + self.quotas.transfer_pause);
    }

    /// Rejects a request for a transfer whose operator may not administer the cluster, or that comes
    /// too soon.
    pub(super) fn may_transfer(
        &self,
        node: &Node<LockTable>,
        request: &Request,
        responder: &Responder,
    ) -> Result<(), Failure> {
        let Request::Transfer(_, operator) = request else { return Ok(()) };
        access::check(node.machine().access(), operator, Right::Admin, "")?;
        let wait = self.next_transfer.and_then(|next| next.checked_duration_since(responder.arrived));
        let Some(wait) = wait.filter(|wait| !wait.is_zero()) else { return Ok(()) };
        let message = format!(
            "leadership was transferred or the leader elected less than {:?} ago: try again in {} s",
            self.quotas.transfer_pause,
            wait.as_secs() + 1
        );
        Err(Failure::new(Code::TooSoon, message))
    }

    /// The next transfer request: its target, if the operator named one. Followed by
    /// [`PendingRequests::answer_transfers`] in this and every later iteration.
    pub(in crate::core) fn next_transfer(&mut self, node: &Node<LockTable>) -> Option<(RequestId, Option<NodeId>)> {
        let (to, responder) = self.transfers.pop_front()?;
        let id = self.next_id();
        let to = to.map(|to| current_generation(node, to));
        self.transferring.insert(id, (to, responder));
        Some((id, to))
    }

    /// The node rejected a transfer: it does not lead, or has no such voter to transfer to.
    pub(in crate::core) fn transfer_refused(
        &mut self,
        node: &Node<LockTable>,
        id: RequestId,
        leads: bool,
        leader: Option<LeaderView>,
    ) {
        if let Some((to, responder)) = self.transferring.remove(&id) {
            let failure = if leads { refused_transfer(node, to) } else { not_leading(leader) };
            responder.answer(Err(failure));
        }
    }

    /// Answers the requests that wait for a transfer, when it succeeds or fails.
    pub(in crate::core) fn answer_transfers(
        &mut self,
        node: &Node<LockTable>,
        now: Instant,
        view: impl Fn(NodeId) -> LeaderView,
    ) {
        if self.transferring.is_empty() {
            return;
        }
        let failed = matches!(node.role(), Role::Leader(leadership) if leadership.successor.is_none());
        let result = match node.leader() {
            _ if failed => {
                let message = "the target did not become leader in time; this node goes on leading";
                Err(Failure::new(Code::NotTransferred, message))
            }
            Some(leader) if leader != node.id() => Ok(Answer::Transferred(view(leader))),
            Some(_) => return,
            None => {
                // It may never hear of another leader: it may have left the cluster.
                let is_late =
                    |responder: &Responder| now.saturating_duration_since(responder.arrived) >= limits::TRANSFER_ANSWER;
                let late = self.transferring.extract_if(.., |_, (_, responder)| is_late(responder));
                let message = "this node no longer leads, and has not heard of another leader since";
                for (_, (_, responder)) in late.collect::<Vec<_>>() {
                    responder.answer(Err(Failure::new(Code::LeadershipLost, message)));
                }
                return;
            }
        };
        for (_, responder) in std::mem::take(&mut self.transferring).into_values() {
            responder.answer(result.clone());
        }
    }
}

/// The current generation of the member with an identity's number.
fn current_generation(node: &Node<LockTable>, id: NodeId) -> NodeId {
    node.members().by_number(id.number()).unwrap_or(id)
}

/// Whether the committed members are already as the change would make them.
fn is_done(node: &Node<LockTable>, change: &Change) -> bool {
    let members = node.members();
    node.log().members_since() <= node.commit()
        && match change {
            Change::Add { id, address } => members
                .get(*id)
                .is_some_and(|member| MemberAddress::of(&member.address).is_of(&MemberAddress::of(address))),
            // The requesting server has not started under its new identity yet. If that identity is
            // a voter, another copy of the directory has.
            Change::Replace { by, address, .. } => members.get(*by).is_some_and(|member| {
                member.standing != Standing::Voter
                    && MemberAddress::of(&member.address).incarnation == MemberAddress::of(address).incarnation
            }),
            Change::Promote(id) => members.is_voter(*id),
            Change::Remove(id) => members.was_removed(*id),
        }
}

fn refused_change(refusal: Refusal, change: &Change) -> Failure {
    let (Change::Add { id, .. } | Change::Promote(id) | Change::Remove(id) | Change::Replace { lost: id, .. }) = change;
    let (code, message) = match refusal {
        Refusal::NotLeader(_) => unreachable!("answered with the leader"),
        Refusal::TooEarly => (
            Code::ChangeNotReady,
            "the previous change is not committed yet, or the leader is new; try again in a moment".to_owned(),
        ),
        Refusal::NotCaughtUp => (
            Code::NotCaughtUp,
            format!(
                "learner {id} still lacks too much of the log; try again when `palisade members list` shows that it \
                 has nearly all of the log"
            ),
        ),
        Refusal::AlreadyThere | Refusal::NotThere | Refusal::WasRemoved if matches!(change, Change::Replace { .. }) => {
            (
                Code::NodeIdInUse,
                format!(
                    "the cluster has no member {id}: it was removed, or came back with another data directory; \
                 `palisade members list` shows all members"
                ),
            )
        }
        Refusal::AlreadyThere if matches!(change, Change::Add { .. }) => (
            Code::NodeIdInUse,
            format!("node {id} is a member already, with another address or data directory: choose another node ID"),
        ),
        Refusal::AlreadyThere => {
            (Code::ChangeNotReady, format!("the promotion of node {id} is not committed yet; try again in a moment"))
        }
        Refusal::NotThere => {
            (Code::NoMember, format!("the cluster has no member {id}; `palisade members list` shows all members"))
        }
        Refusal::WasRemoved => (
            Code::NodeIdInUse,
            format!("node {id} was removed from this cluster, and node IDs are not reused: choose another one"),
        ),
        Refusal::LastVoter => {
            (Code::LastVoter, format!("node {id} is the only voter: add and promote another one first"))
        }
    };
    Failure::new(code, message)
}

/// Why this leader cannot transfer leadership to the node of this ID, or to any node.
fn refused_transfer(node: &Node<LockTable>, to: Option<NodeId>) -> Failure {
    let Some(to) = to else {
        let message = "this node is the only voter, so no other node can lead: add and promote another one first";
        return Failure::new(Code::NoMember, message);
    };
    let message = if to == node.id() {
        format!("node {to} is the leader already: name another voter, or none to let the leader choose")
    } else if node.members().get(to).is_some() {
        format!("node {to} is a learner, and only a voter can lead: promote it first (palisade members promote {to})")
    } else {
        format!("the cluster has no member {to}: `palisade members list` lists all members")
    };
    Failure::new(Code::NoMember, message)
}
