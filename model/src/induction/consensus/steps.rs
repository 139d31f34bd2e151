//! The steps that the node may take: every message that fits its history, timeouts, a proposal, a
//! restart.

use std::ops::Range;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Hint, Index, Input, Message, NodeId, Payload, ReadRound, RequestId, Term};

use super::super::logs::{Stamped, append, match_each_other, message, position};
use super::bounds::Consensus;
use super::states::{Standing, StartState};

/// A step of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node receives entries of a leader's log.
    Append {
        /// The leader.
        from: u32,
        /// The leader's term.
        term: u64,
        /// The leader's log when it sent the message, as an index into the list.
        log: usize,
        /// The entries in the message, as a range of that log.
        entries: Range<usize>,
        /// The leader's commit index.
        commit: u64,
    },
    /// The node receives a candidate's request for its vote or pre-vote.
    AskForVote {
        /// The candidate.
        from: u32,
        /// The candidate's term.
        term: u64,
        /// The candidate's log, as an index into the list.
        log: usize,
        /// The kind of request.
        question: Question,
    },
    /// The node receives any other message.
    Receive(Message<LockTable>),
    /// The node's election timer fires.
    ElectionTimeout,
    /// The node's heartbeat timer fires.
    HeartbeatTimeout,
    /// A client proposes an entry.
    Propose,
    /// The node restarts from its disk.
    Restart,
}

/// The kind of a candidate's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// PreVote.
    WouldYou,
    /// RequestVote.
    Vote,
    /// RequestVote of a leadership transfer's target.
    VoteAtOnce,
}

impl Consensus {
    /// Whether another leader's message may exist: that leader must have the entries that the node
    /// knows to be committed.
    fn may_lead(&self, initial: &StartState, term: u64, leaders: &[Stamped]) -> bool {
        let own = &self.logs[initial.log];
        let committed = &own[..usize::try_from(initial.commit).expect("a short log")];
        let is_other = term != initial.term || !matches!(initial.standing, Standing::Leads { .. });
        let is_complete = term < initial.term || leaders.starts_with(committed);
        let ends_in_its_term = leaders.last().is_some_and(|last| last.0 == term);
        is_other && is_complete && ends_in_its_term
    }

    /// Adds every message that may exist.
    pub(super) fn messages(&self, initial: &StartState, steps: &mut Vec<Step>) {
        let length = self.logs[initial.log].len() as u64;
        for (from, term) in self.others().flat_map(|from| (0..=initial.term + 1).map(move |term| (from, term))) {
            let mut receive = |body| steps.push(Step::Receive(message(NodeId(from), term, body)));
            for granted in [false, true] {
                receive(Body::PreVoteReply { granted });
                receive(Body::RequestVoteReply { granted });
            }
            receive(Body::TimeoutNow);
            for matched in 0..=length {
                receive(Body::AppendAccepted { matched: Index(matched), round: ReadRound(0) });
                for next in 0..=length + 1 {
                    let hint = Hint::Short { next: Index(next) };
                    receive(Body::AppendRejected { prev: Index(matched), hint, round: ReadRound(0) });
                }
            }
            let own = &self.logs[initial.log];
            let of_this_history = |(_, other): &(usize, &Vec<Stamped>)| match_each_other(own, other, |entry| entry.0);
            for (log, other) in self.logs.iter().enumerate().filter(of_this_history) {
                if other.last().is_none_or(|last| last.0 < term) {
                    let all = [Question::WouldYou, Question::Vote, Question::VoteAtOnce];
                    steps.extend(all.map(|question| Step::AskForVote { from, term, log, question }));
                }
                if other.last().is_some_and(|last| last.0 <= term)
                    && let Some(hint) = conflict(own, other)
                {
                    let prev = Index(other.len() as u64);
                    let body = Body::AppendRejected { prev, hint, round: ReadRound(0) };
                    steps.push(Step::Receive(message(NodeId(from), term, body)));
                }
                if from == 2 && self.may_lead(initial, term, other) {
                    for start in 0..=other.len() {
                        for (end, commit) in (start..=other.len())
                            .flat_map(|end| (0..=other.len() as u64).map(move |commit| (end, commit)))
                        {
                            steps.push(Step::Append { from, term, log, entries: start..end, commit });
                        }
                    }
                }
            }
        }
    }

    /// The node's input of a step.
    pub(super) fn input(&self, taken: &Step) -> Input<LockTable> {
        match taken {
            Step::Append { from, term, log, entries, commit } => {
                let body = append(&self.logs[*log], entries.start, entries.end, *commit, 0);
                Input::Receive(message(NodeId(*from), *term, body))
            }
            Step::AskForVote { from, term, log, question } => {
                let last = position(&self.logs[*log], self.logs[*log].len());
                let body = match question {
                    Question::WouldYou => Body::PreVote { last },
                    Question::Vote => Body::RequestVote { last, transfer: false },
                    Question::VoteAtOnce => Body::RequestVote { last, transfer: true },
                };
                Input::Receive(message(NodeId(*from), *term, body))
            }
            Step::Receive(message) => Input::Receive(message.clone()),
            Step::ElectionTimeout => Input::ElectionTimeout,
            Step::HeartbeatTimeout => Input::HeartbeatTimeout,
            Step::Propose => Input::Propose { id: RequestId(1), payloads: vec![Payload::Noop] },
            Step::Restart => unreachable!("no input"),
        }
    }
}

/// The hint of a follower that rejects a leader's entries after the end of the follower's log; `None` if the
/// two have the same entry there, or the leader has none.
fn conflict(leaders: &[Stamped], followers: &[Stamped]) -> Option<Hint> {
    let &(term, _) = followers.last()?;
    let differs = leaders.get(followers.len() - 1).is_some_and(|entry| entry.0 != term);
    let before = followers.iter().take_while(|entry| entry.0 != term).count() as u64;
    differs.then_some(Hint::Conflict { term: Term(term), first: Index(before + 1) })
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{HardState, Output};

    use super::super::super::logs::{recover, step};
    use super::super::bounds::Bounds;
    use super::*;

    #[test]
    fn conflicts_are_those_that_a_node_reports() {
        let bounds = Bounds { servers: 3, terms: 2, log: 3 };
        // The last term of the logs.
        let term = bounds.terms + 1;
        let case = Consensus::new(bounds);
        for leaders in &case.logs {
            for followers in case.logs.iter().filter(|log| log.len() <= leaders.len()) {
                let mut node = recover(bounds.servers, HardState { term: Term(term), vote: None }, followers);
                let body = append(leaders, followers.len(), leaders.len(), 0, 0);
                let outputs = step(&mut node, Input::Receive(message(NodeId(2), term, body)));
                let reported = outputs.iter().find_map(|output| match output {
                    Output::Send(Message { body: Body::AppendRejected { hint, .. }, .. }) => Some(*hint),
                    _ => None,
                });
                assert_eq!(conflict(leaders, followers), reported, "{leaders:?} and {followers:?}");
            }
        }
    }
}
