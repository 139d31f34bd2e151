//! What operators ask for: changes of the members, and handovers.
//!
//! A change is an entry, and is answered when it is applied. A handover is answered when another node leads.

use palisade_client::wire::{Answer, Code, Failure, LeaderView, MemberView, MembersView};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Change, Member, Node, NodeId, Refusal, Role, Standing};

use super::{PendingRequests, Requester, not_leading};
use crate::peers::MemberAddress;

impl PendingRequests {
    /// The round's next change of the members. To be followed by [`PendingRequests::accepted`] or [`PendingRequests::change_refused`].
    pub(in crate::core) fn change(&mut self, node: &Node<LockTable>) -> Option<Change> {
        let (change, responder) = self.changes.pop_front()?;
        let change = match change {
            Change::Promote(id) => Change::Promote(present(node, id)),
            Change::Remove(id) => Change::Remove(present(node, id)),
            Change::Replace { lost, by, address } => {
                let mut place = MemberAddress::of(&address);
                if place.peer_addr.is_empty() {
                    // Without a new address, the member keeps its old one.
                    let old = node.members().get(lost).map(|member| MemberAddress::of(&member.address).peer_addr);
                    place.peer_addr = old.unwrap_or_default();
                }
                Change::Replace { lost, by, address: place.address() }
            }
            Change::Add { .. } => change,
        };
        self.proposed.push_back(vec![Requester::Change { change: change.clone(), responder }]);
        Some(change)
    }

    /// A change is not even asked for: it would leave the cluster to members who are not there.
    pub(in crate::core) fn change_strands(&mut self) {
        let message = "too few of the voters after this change are connected to the leader: start them first";
        let failure = Failure::new(Code::NoMajority, message);
        self.proposed.pop_back().into_iter().flatten().for_each(|requester| requester.fail(&failure));
    }

    /// A member is to be replaced that is there: it has not lost its disk.
    pub(in crate::core) fn replaced_is_there(&mut self, node: NodeId) {
        let message = format!("node {node} is connected to the leader, so its server runs with its data directory");
        let failure = Failure::new(Code::ChangeNotReady, message);
        self.proposed.pop_back().into_iter().flatten().for_each(|requester| requester.fail(&failure));
    }

    /// The change of the members was not taken. What is so already counts as done: it may have been asked for twice.
    pub(in crate::core) fn change_refused(
        &mut self,
        node: &Node<LockTable>,
        refusal: Refusal,
        leader: Option<LeaderView>,
    ) {
        for requester in self.proposed.pop_front().expect("what is refused was proposed") {
            let Requester::Change { change, responder } = requester else {
                unreachable!("only a change is refused so")
            };
            let failure = match refusal {
                Refusal::NotLeader(_) => not_leading(leader.clone()),
                _ if is_done(node, &change) => {
                    responder.answer(Ok(Answer::Members(members_view(node))));
                    continue;
                }
                other => refused_change(other, &change),
            };
            responder.answer(Err(failure));
        }
    }

    /// To whom the node is to hand over, if an operator asked for it. To be followed by [`PendingRequests::watch_handover`] in this and
    /// every later round.
    pub(in crate::core) fn wish(&mut self, node: &Node<LockTable>) -> Option<Option<NodeId>> {
        let (to, responder) = self.wishes.pop_front()?;
        self.handover.push(responder);
        Some(to.map(|to| present(node, to)))
    }

    /// The node does not hand over: it does not lead, or there is no such voter.
    pub(in crate::core) fn transfer_refused(&mut self, leads: bool, leader: Option<LeaderView>) {
        // The newest waiter is the rejected request; the others wait for the handover under way.
        let no_voter = "there is no such voter to hand over to; `palisade members list` lists the voters";
        let failure = if leads { Failure::new(Code::NoMember, no_voter) } else { not_leading(leader) };
        if let Some(responder) = self.handover.pop() {
            responder.answer(Err(failure));
        }
    }

    /// Answers the requests that wait for a handover, when it is done or given up.
    pub(in crate::core) fn watch_handover(&mut self, node: &Node<LockTable>, view: impl Fn(NodeId) -> LeaderView) {
        if self.handover.is_empty() {
            return;
        }
        let given_up = matches!(node.role(), Role::Leader(leadership) if leadership.successor.is_none());
        let result = match node.leader() {
            _ if given_up => {
                let message = "the other node did not take over in time; this one goes on leading";
                Err(Failure::new(Code::NotTransferred, message))
            }
            Some(leader) if leader != node.id() => Ok(Answer::Transferred(view(leader))),
            _ => return,
        };
        for responder in self.handover.drain(..) {
            responder.answer(result.clone());
        }
    }
}

/// The member of an identity's number, in its present generation.
fn present(node: &Node<LockTable>, id: NodeId) -> NodeId {
    node.members().by_number(id.number()).unwrap_or(id)
}

/// Whether the members are already as the change would make them.
fn is_done(node: &Node<LockTable>, change: &Change) -> bool {
    let members = node.members();
    node.log().members_since() <= node.commit()
        && match change {
            Change::Add { id, address } => members
                .get(*id)
                .is_some_and(|member| MemberAddress::of(&member.address).is_of(&MemberAddress::of(address))),
            // The server that asks has not started under its new identity yet. If that is a voter, another copy of the directory has.
            Change::Replace { by, address, .. } => members.get(*by).is_some_and(|member| {
                member.standing != Standing::Voter
                    && MemberAddress::of(&member.address).incarnation == MemberAddress::of(address).incarnation
            }),
            Change::Promote(id) => members.is_voter(*id),
            Change::Remove(id) => members.was_removed(*id),
        }
}

fn refused_change(refusal: Refusal, change: &Change) -> Failure {
    let (code, message) = match refusal {
        Refusal::NotLeader(_) => unreachable!("answered with the leader"),
        Refusal::TooEarly => (
            Code::ChangeNotReady,
            "the change before is not committed yet, or the leader is new; try again in a moment",
        ),
        Refusal::NotCaughtUp => (
            Code::NotCaughtUp,
            "the learner lacks too much of the log yet; try again when `palisade members list` shows that it has nearly all",
        ),
        Refusal::AlreadyThere | Refusal::NotThere | Refusal::WasRemoved
            if let Change::Replace { lost, .. } = change =>
        {
            let message = format!(
                "the cluster has no member {lost}: it was removed, or came back with another data directory; \
                 `palisade members list` shows all"
            );
            return Failure::new(Code::NodeIdInUse, message);
        }
        Refusal::AlreadyThere if matches!(change, Change::Add { .. }) => {
            (Code::NodeIdInUse, "a member has this number: another server, or at another address")
        }
        Refusal::AlreadyThere => (Code::ChangeNotReady, "it is a voter as soon as that is committed"),
        Refusal::NotThere => (Code::NoMember, "there is no such member; `palisade members list` shows all"),
        Refusal::WasRemoved => {
            (Code::NodeIdInUse, "a server of this number was removed, and numbers do not come back: choose another one")
        }
        Refusal::LastVoter => (Code::LastVoter, "the cluster would have no voter left"),
    };
    Failure::new(code, message)
}

/// The members, without what only the connections know.
pub(super) fn members_view(node: &Node<LockTable>) -> MembersView {
    let matched = |id| match node.role() {
        Role::Leader(leadership) => leadership.progress.get(&id).map(|progress| progress.matched.0),
        _ => None,
    };
    let view = |(id, member): (NodeId, &Member)| MemberView {
        id: id.number(),
        generation: id.generation(),
        voter: member.standing == Standing::Voter,
        returning: member.standing == Standing::Returning,
        peer_addr: MemberAddress::of(&member.address).peer_addr,
        client_addr: None,
        connected: false,
        matched: matched(id),
    };
    MembersView { members: node.members().iter().map(view).collect() }
}
