//! Votes, logs and commits: whatever messages a node receives, it votes once a term, keeps what it
//! has acknowledged, and treats only committed entries as committed.
//!
//! The history is the past of the other nodes, as far as the node and a message depend on it: the
//! logs of leaders. It is constrained by the cluster's invariants:
//!
//! - a term has one leader, whose log only grows (a message tells of the log that it had when it
//!   was sent), and every log is a beginning of a leader's;
//! - the log of a leader has every entry that was committed in a term before its own (Leader
//!   Completeness). So a leader in the node's own term or a later one has what the node knows to be
//!   committed.
//!
//! Of the node: no entry is later than its term, and the votes and acknowledgements that it counts
//! were given. Each step is checked for the properties that keep those invariants:
//!
//! - **terms only grow**, and **one vote a term**, durable before it is sent;
//! - **leader completeness**: with its vote, the node does not help a candidate that lacks an entry
//!   of the node's log, unless a leader of a term in between lacked it as well (then it was never
//!   committed);
//! - **acknowledged entries are kept** as long as the leader that received the acknowledgement has
//!   them, and are durable before it is sent;
//! - **election safety**: only a candidate with the votes of a majority in this term becomes
//!   leader, and it continues the log with which it requested the votes;
//! - **committed by a majority**: a leader commits an entry of its own term that a majority has
//!   acknowledged; a follower commits up to its leader's commit index, as far as the logs are known
//!   to be equal;
//! - **messages are true**: what a leader sends is in its log.
//!
//! The proof of §3.6.3 shows that this suffices for Leader Completeness: a commit and a later
//! election share a voter, and the two steps of that voter are the ones checked here.
//!
//! Left out: snapshots, membership changes, reads and leadership transfers.

mod bounds;
mod checks;
mod states;
mod steps;

use palisade_spec::invariants::{self, Violation};
use palisade_spec::raft::{Body, Message, Output, Persist};
use palisade_spec::require;
use stateright::Property;

pub use self::bounds::{Bounds, Consensus};
use self::checks::Taken;
pub use self::states::StartState;
pub use self::steps::{Question, Step};
use super::logs::{recover, step};
use super::{Case, Induction, State, properties};

impl Case for Consensus {
    type StartState = StartState;
    type Step = Step;

    fn start_states(&self) -> Vec<StartState> {
        self.all_start_states()
    }

    fn steps(&self, initial: &StartState, steps: &mut Vec<Step>) {
        steps.extend([Step::ElectionTimeout, Step::HeartbeatTimeout, Step::Propose, Step::Restart]);
        self.messages(initial, steps);
    }

    fn take(&self, initial: &StartState, taken: &Step) -> Result<Option<&'static str>, Violation> {
        let before = self.node(initial);
        if *taken == Step::Restart {
            let after = recover(self.bounds.servers, before.hard_state(), &self.logs[initial.log]);
            let same = after.hard_state() == before.hard_state() && after.log() == before.log();
            return require!(invariants::Property::MemoryMatchesDisk, same, "{after:?} has started").map(|()| None);
        }
        let mut after = before.clone();
        let outputs = step(&mut after, self.input(taken));
        let checked = Taken { case: self, initial, step: taken, before: &before, after: &after, outputs: &outputs };
        checked.check()?;
        let truncated = outputs.iter().any(|output| match output {
            Output::Persist(Persist::Entries(entries)) => entries[0].index <= before.log().last().index,
            _ => false,
        });
        let refused = outputs.iter().any(|output| {
            matches!(output, Output::Send(Message { body: Body::RequestVoteReply { granted: false }, .. }))
        });
        Ok(match taken {
            Step::Append { .. } if truncated => Some("an entry gives way to the leader's"),
            Step::AskForVote { .. } if refused && before.hard_state().vote.is_none() => Some("a vote is refused"),
            Step::Receive(_) if after.is_leader() && !before.is_leader() => Some("a candidate is elected"),
            Step::Receive(_) if after.commit() > before.commit() => Some("a leader commits"),
            _ => None,
        })
    }

    fn properties(&self) -> Vec<Property<Induction<Consensus>>> {
        properties![
            always: TermsOnlyGrow, OneVotePerTerm, LeaderCompleteness, AcknowledgedEntriesAreKept, ElectionSafety,
                LeaderAppendOnly, LogMatching, StateMachineSafety, CommittedByMajority, MessagesAreTrue,
                MemoryMatchesDisk, Assertions;
            sometimes: "an entry gives way to the leader's", "a vote is refused", "a candidate is elected", "a leader commits"
        ]
    }

    fn picture(&self, initial: &StartState) -> String {
        let terms: Vec<u64> = self.logs[initial.log].iter().map(|entry| entry.0).collect();
        let StartState { standing, term, vote, commit, .. } = initial;
        format!("term {term}, vote {vote}, entries of terms {terms:?}, commit {commit}, {standing:?}")
    }

    fn sentence(&self, taken: &Step) -> String {
        match taken {
            Step::Restart => "the node starts again".into(),
            taken => format!("{:?}", self.input(taken)),
        }
    }
}
