//! The states of the node in which a step begins.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, HardState, Index, Input, Node, NodeId, Payload, ReadRound, RequestId, Term};

use super::super::Latest;
use super::super::logs::{self, NODE, Stamped, append, message, recover, step};
use super::bounds::Consensus;

/// The vote of a node that has voted for no candidate.
const NO_VOTE: u32 = 0;

/// A node's role, with what it counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// The node has just started.
    Started,
    /// The node follows a leader of its term.
    Follows,
    /// The node is a pre-candidate.
    Asks,
    /// The node is a candidate with these votes besides its own.
    Campaigns(Vec<u32>),
    /// The node leads, with the acknowledgements of the others. The last entries of its log are its
    /// own.
    Leads {
        /// Number of its own entries.
        own: usize,
        /// For each other node, the acknowledged index.
        acknowledged: Vec<u8>,
    },
}

/// A start state of the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StartState {
    pub(super) standing: Standing,
    /// Its log, as an index into the list.
    pub(super) log: usize,
    pub(super) term: u64,
    /// The candidate that it voted for; its own number if it is a candidate or leads.
    pub(super) vote: u32,
    /// The commit index that it knows.
    pub(super) commit: u64,
}

impl Consensus {
    /// Every start state within the bounds.
    pub(super) fn all_start_states(&self) -> Vec<StartState> {
        let mut start_states = Vec::new();
        for (log, own) in self.logs.iter().enumerate() {
            let last = own.last().map_or(0, |last| last.0);
            for term in last.max(1)..=self.bounds.terms {
                for commit in 0..=own.len() as u64 {
                    for vote in NO_VOTE..=self.bounds.servers {
                        let initial = |standing| StartState { standing, log, term, vote, commit };
                        if commit == 0 {
                            start_states.push(initial(Standing::Started));
                        }
                        start_states.extend([Standing::Follows, Standing::Asks].map(initial));
                    }
                    // It has learned of a commit from a leader of a term before the one in which it
                    // is a candidate.
                    let vote = NODE.0;
                    if last < term && (commit == 0 || term > 1) {
                        for votes in subsets(&self.others().collect::<Vec<_>>()) {
                            if !self.is_majority(votes.len() + 1) {
                                start_states.push(StartState {
                                    standing: Standing::Campaigns(votes),
                                    log,
                                    term,
                                    vote,
                                    commit,
                                });
                            }
                        }
                    }
                    let own_entries = own.iter().rev().take_while(|entry| entry.0 == term).count();
                    let before = (own.len() - own_entries) as u64;
                    if own_entries > 0 && commit <= before && (commit == 0 || term > 1) {
                        for acknowledged in vectors(self.bounds.servers as usize - 1, own.len()) {
                            let standing = Standing::Leads { own: own_entries, acknowledged };
                            start_states.push(StartState { standing, log, term, vote, commit });
                        }
                    }
                }
            }
        }
        // A leader's commit index follows from the acknowledgements: the node computes it.
        for initial in &mut start_states {
            initial.commit = self.build(initial).commit().0.max(initial.commit);
        }
        start_states
    }

    fn build(&self, initial: &StartState) -> Node<LockTable> {
        let StartState { standing, log, term, vote, commit } = initial;
        let (log, commit) = (&self.logs[*log], *commit);
        let hard = |term: u64, vote: u32| HardState { term: Term(term), vote: (vote > 0).then_some(NodeId(vote)) };
        let heartbeat = |node: &mut Node<LockTable>, log: &[Stamped], term: u64| {
            let body = append(log, log.len(), log.len(), commit, 0);
            step(node, Input::Receive(message(NodeId(2), term, body)));
        };
        let start = |hard: HardState, log: &[Stamped]| recover(self.bounds.servers, hard, log);
        match standing {
            Standing::Started => start(hard(*term, *vote), log),
            Standing::Follows | Standing::Asks => {
                let mut node = start(hard(*term, *vote), log);
                heartbeat(&mut node, log, *term);
                if *standing == Standing::Asks {
                    step(&mut node, Input::ElectionTimeout);
                }
                node
            }
            Standing::Campaigns(votes) => {
                let mut node = start(hard(term - 1, 0), log);
                if commit > 0 {
                    heartbeat(&mut node, log, term - 1);
                }
                logs::campaign(&mut node);
                self.count(&mut node, *term, votes);
                node
            }
            Standing::Leads { own, acknowledged } => {
                let before = &log[..log.len() - own];
                let mut node = start(hard(term - 1, 0), before);
                if commit > 0 {
                    heartbeat(&mut node, before, term - 1);
                }
                logs::campaign(&mut node);
                self.count(&mut node, *term, &self.others().collect::<Vec<_>>());
                for _ in 1..*own {
                    step(&mut node, Input::Propose { id: RequestId(1), payloads: vec![Payload::Noop] });
                }
                for (other, matched) in self.others().zip(acknowledged) {
                    let body = Body::AppendAccepted { matched: Index(u64::from(*matched)), round: ReadRound(0) };
                    step(&mut node, Input::Receive(message(NodeId(other), *term, body)));
                }
                node
            }
        }
    }

    fn count(&self, node: &mut Node<LockTable>, term: u64, votes: &[u32]) {
        for &voter in votes {
            step(node, Input::Receive(message(NodeId(voter), term, Body::RequestVoteReply { granted: true })));
        }
    }

    /// The node of a start state.
    pub(super) fn node(&self, initial: &StartState) -> Node<LockTable> {
        thread_local! {
            static NODE: Latest<(u32, StartState), Node<LockTable>> = const { Latest::new() };
        }
        NODE.with(|latest| latest.get((self.bounds.servers, initial.clone()), || self.build(initial)))
    }
}

fn subsets(of: &[u32]) -> Vec<Vec<u32>> {
    of.iter().fold(vec![Vec::new()], |known, &one| {
        let with = known.iter().map(|subset| [&subset[..], &[one]].concat()).collect::<Vec<_>>();
        [known, with].concat()
    })
}

/// Every vector of this length with numbers up to `last`.
fn vectors(length: usize, last: usize) -> Vec<Vec<u8>> {
    let last = u8::try_from(last).expect("a short log");
    (0..length).fold(vec![Vec::new()], |known, _| {
        known.iter().flat_map(|vector| (0..=last).map(move |next| [&vector[..], &[next]].concat())).collect()
    })
}
