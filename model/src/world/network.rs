//! What is on its way, where messages take their time.

use palisade_spec::raft::{Body, Message, Node, Role, StateMachine, Term};

use super::bounds::{Answers, Bounds, Delivery, Elections, Repeats};
use super::environment::Environment;
use super::intern::Ref;
use super::model::World;
use super::replica::{Replica, Stimulus};
use super::state::State;

impl<E: Environment> World<E> {
    /// Whether a message arrives (or is lost) within the step in which it is sent.
    pub(super) fn is_prompt(&self, body: &Body<E::Machine>) -> bool {
        match self.bounds.delivery {
            Delivery::Prompt { .. } => true,
            Delivery::AnyTime { answers, .. } => answers == Answers::AtOnce && is_answer(body),
        }
    }

    /// Puts a message on its way. Where a link has room for one AppendEntries, and for one answer, a newer one takes
    /// the place of an older one, which is lost: had it arrived, it could as well have done so before. (Where messages
    /// may arrive any number of times, links have room for all, and what is said again is on its way already.)
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

    /// Whether logs are no longer than they may be, and what is on its way is no more.
    pub(super) fn fits(&self, state: &State<E>) -> bool {
        let log = |replica: &Ref<Replica<E::Machine>>| replica.node.log().last().index.0;
        if state.servers.iter().any(|replica| log(replica) > self.bounds.log) {
            return false;
        }
        let Delivery::AnyTime { most, .. } = self.bounds.delivery else { return true };
        let limit = if self.bounds.repeats == Repeats::Unlimited { most } else { self.bounds.appends };
        let crowds = |message: &Ref<Message<E::Machine>>| {
            let class = class(&message.body);
            let alike = state.network.iter().filter(|other| {
                (other.from, other.to) == (message.from, message.to) && self::class(&other.body) == class
            });
            class != Class::Vote && alike.count() > limit
        };
        state.network.len() <= most && !state.network.iter().any(crowds)
    }

    /// Whether it can make a difference that a message is lost: loss makes room. Without that, a message that never
    /// arrives is one that is still on its way at the end.
    pub(super) fn may_matter_lost(&self, state: &State<E>, message: Ref<Message<E::Machine>>) -> bool {
        let Delivery::AnyTime { most, .. } = self.bounds.delivery else { return false };
        let crowded = state.network.len() + state.servers.len() > most + 1;
        crowded || (class(&message.body) != Class::Vote && self.bounds.appends > 1)
    }

    /// Answers that would change nothing where they go, now or ever. Late ones stay: that those of an earlier term change
    /// nothing later is a rule of the protocol.
    pub(super) fn discard_spent(&self, state: &mut State<E>) {
        if self.bounds.late > 0 {
            return;
        }
        let servers = &state.servers;
        let spent = |message: &mut Ref<Message<E::Machine>>| {
            let replica = servers[usize::from(message.to.number()) - 1];
            self.never_will(&message.body, message.term, &replica.node) && {
                let stepped = self.kept.step(replica, Stimulus::Deliver(*message));
                stepped.replica == replica && stepped.said.is_empty() && stepped.violation.is_none()
            }
        };
        state.network.retain(|message| !spent(message));
    }

    /// Whether there is one question at a time on each link, which is answered once, and nobody counts the answers.
    fn asks_once(&self) -> bool {
        let Bounds { appends, repeats, elections, .. } = self.bounds;
        appends == 1 && repeats == Repeats::AtMost(0) && elections == Elections::AtWill
    }

    /// Whether an answer that changes nothing now never will. It is to a question of a term, to which a server does not
    /// return, nor to a role in it: votes are counted by the candidate, acknowledgements by the leader, who has been
    /// the candidate.
    fn never_will(&self, body: &Body<E::Machine>, term: Term, node: &Node<E::Machine>) -> bool {
        match body {
            Body::RequestVoteReply { .. } => term <= node.term(),
            Body::AppendAccepted { .. } | Body::AppendRejected { .. } => {
                term < node.term()
                    || term == node.term()
                        && match node.role() {
                            Role::Follower { .. } | Role::PreCandidate { .. } => true,
                            Role::Candidate { .. } => false,
                            // With one question on each link at a time, nothing is answered twice: an answer that does
                            // not fit what the leader knows of a follower is one that a later answer has overtaken.
                            Role::Leader(_) => self.asks_once(),
                        }
            }
            // It counts for whichever election the server thinks of when it arrives.
            Body::PreVoteReply { .. } => term < node.term(),
            // Where elections are held at will, nobody hears from a leader: one that is called is free to campaign anyhow.
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
    Call,
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
        Body::TimeoutNow => Class::Call,
    }
}
