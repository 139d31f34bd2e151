//! The messages in flight, with [`Delivery::AnyTime`].

use palisade_spec::raft::{Body, Message, Node, Role, StateMachine, Term};

use super::bounds::{Answers, Bounds, Delivery, Elections, Repeats};
use super::environment::Environment;
use super::intern::Ref;
use super::replica::{Replica, Stimulus};
use super::setup::World;
use super::state::State;

impl<E: Environment> World<E> {
    /// Whether a message arrives (or is lost) within the step in which it is sent.
    pub(super) fn is_prompt(&self, body: &Body<E::Machine>) -> bool {
        match self.bounds.delivery {
            Delivery::Prompt { .. } => true,
            Delivery::AnyTime { answers, .. } => answers == Answers::AtOnce && is_answer(body),
        }
    }

    /// Adds a message to the network. A link with room for one AppendEntries and one answer loses
    /// the older message to the newer one: the older one could as well have arrived before. (With
    /// [`Repeats::Unlimited`] links have room for all messages, and a message that is sent again is
    /// in the network already.)
    pub(super) fn send(&self, state: &mut State<E>, message: Ref<Message<E::Machine>>) {
        let class = class(&message.body);
        if self.bounds.repeats == Repeats::Unlimited {
            if state.network.contains(&message) {
                return;
            }
        } else if class != Class::Vote && self.bounds.appends == 1 {
            state.network.retain(|other| {
                (other.from, other.to) != (message.from, message.to) || self::class(&other.body) != class
            });
        }
        state.send(message);
    }

    /// Whether the logs and the network are within the bounds.
    pub(super) fn fits(&self, state: &State<E>) -> bool {
        let log = |replica: &Ref<Replica<E::Machine>>| replica.node.log().last().index.0;
        if state.servers.iter().any(|replica| log(replica) > self.bounds.log) {
            return false;
        }
        let Delivery::AnyTime { most, .. } = self.bounds.delivery else { return true };
        let limit = if self.bounds.repeats == Repeats::Unlimited { most } else { self.bounds.appends };
        let exceeds_limit = |message: &Ref<Message<E::Machine>>| {
            let class = class(&message.body);
            let alike = state.network.iter().filter(|other| {
                (other.from, other.to) == (message.from, message.to) && self::class(&other.body) == class
            });
            class != Class::Vote && alike.count() > limit
        };
        state.network.len() <= most && !state.network.iter().any(exceeds_limit)
    }

    /// Whether the loss of a message can make a difference, because it makes room in the network.
    /// Otherwise a lost message is equivalent to one that is still in flight at the end.
    pub(super) fn loss_matters(&self, state: &State<E>, message: Ref<Message<E::Machine>>) -> bool {
        let Delivery::AnyTime { most, .. } = self.bounds.delivery else { return false };
        let crowded = state.network.len() + state.servers.len() > most + 1;
        crowded || (class(&message.body) != Class::Vote && self.bounds.appends > 1)
    }

    /// Removes answers that change nothing at their receiver, now or later. If messages may be
    /// delayed, all answers stay: that an answer of an earlier term changes nothing is a rule of
    /// the protocol, which the model checks.
    pub(super) fn discard_spent(&self, state: &mut State<E>) {
        if self.bounds.late > 0 {
            return;
        }
        let servers = &state.servers;
        let spent = |message: &mut Ref<Message<E::Machine>>| {
            let replica = servers[usize::from(message.to.number()) - 1];
            self.stays_without_effect(&message.body, message.term, &replica.node) && {
                let stepped = self.caches.step(replica, Stimulus::Deliver(*message));
                stepped.replica == replica && stepped.sent.is_empty() && stepped.violation.is_none()
            }
        };
        state.network.retain(|message| !spent(message));
    }

    /// Whether each link carries one request at a time, each request is answered once, and the
    /// leader counts no answers (as CheckQuorum does).
    fn one_request_per_link(&self) -> bool {
        let Bounds { appends, repeats, elections, .. } = self.bounds;
        appends == 1 && repeats == Repeats::AtMost(0) && elections == Elections::AtWill
    }

    /// Whether an answer that changes nothing now never will. An answer belongs to a term and to a
    /// role in it, and a server returns to neither: candidates count votes, leaders count
    /// acknowledgements, and a leader of the term has been its candidate before.
    fn stays_without_effect(&self, body: &Body<E::Machine>, term: Term, node: &Node<E::Machine>) -> bool {
        match body {
            Body::RequestVoteReply { .. } => term <= node.term(),
            Body::AppendAccepted { .. } | Body::AppendRejected { .. } => {
                term < node.term()
                    || term == node.term()
                        && match node.role() {
                            Role::Follower { .. } | Role::PreCandidate { .. } => true,
                            Role::Candidate { .. } => false,
                            // With one request on each link at a time, no request is answered
                            // twice: an answer that does not fit the leader's progress for a
                            // follower was overtaken by a later one.
                            Role::Leader(_) => self.one_request_per_link(),
                        }
            }
            // A PreVote reply counts for whichever pre-vote the server runs when the reply arrives.
            Body::PreVoteReply { .. } => term < node.term(),
            // With `Elections::AtWill` no follower waits for a leader: the receiver of a TimeoutNow
            // may campaign anyway.
            Body::TimeoutNow => term < node.term() || self.bounds.elections == Elections::AtWill,
            Body::PreVote { .. }
            | Body::RequestVote { .. }
            | Body::AppendEntries { .. }
            | Body::InstallSnapshot { .. } => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Vote,
    Append,
    Snapshot,
    Answer,
    TimeoutNow,
}

fn is_answer<S: StateMachine>(body: &Body<S>) -> bool {
    match body {
        Body::PreVote { .. }
        | Body::RequestVote { .. }
        | Body::AppendEntries { .. }
        | Body::InstallSnapshot { .. }
        | Body::TimeoutNow => false,
        Body::PreVoteReply { .. }
        | Body::RequestVoteReply { .. }
        | Body::AppendAccepted { .. }
        | Body::AppendRejected { .. } => true,
    }
}

fn class<S: StateMachine>(body: &Body<S>) -> Class {
    match body {
        Body::PreVote { .. } | Body::PreVoteReply { .. } | Body::RequestVote { .. } | Body::RequestVoteReply { .. } => {
            Class::Vote
        }
        Body::AppendEntries { .. } => Class::Append,
        Body::InstallSnapshot { .. } => Class::Snapshot,
        Body::AppendAccepted { .. } | Body::AppendRejected { .. } => Class::Answer,
        Body::TimeoutNow => Class::TimeoutNow,
    }
}
