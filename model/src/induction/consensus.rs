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
//! - **one vote a term**, durable before it is sent;
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

use palisade_spec::require;
use std::collections::BTreeSet;
use std::ops::Range;

use palisade_spec::invariants::{self, Check, Violation};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Body, Durable, HardState, Hint, Index, Input, Message, Node, NodeId, Output, Payload, Persist, ReadRound, Term,
};
use stateright::Property;

use super::logs::{self, NODE, Stamped, append, grown, match_each_other, message, position, recover, step};
use super::{Case, Induction, Latest, State, properties};

/// The vote of a node that has voted for no candidate.
const NO_VOTE: u32 = 0;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Number of servers.
    pub servers: u32,
    /// Last term of nodes; messages may be of the next one.
    pub terms: u64,
    /// Maximum length of logs.
    pub log: usize,
}

/// Every node and message within the bounds.
pub struct Consensus {
    bounds: Bounds,
    /// All logs.
    logs: Vec<Vec<Stamped>>,
}

/// A node's role, with what it counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Standing {
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
    standing: Standing,
    /// Its log, as an index into the list.
    log: usize,
    term: u64,
    /// The candidate that it voted for; its own number if it is a candidate or leads.
    vote: u32,
    /// The commit index that it knows.
    commit: u64,
}

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
    /// The case within these bounds.
    pub fn new(bounds: Bounds) -> Consensus {
        // Messages may be of the term after the nodes' last one.
        let logs = grown(|known: &[Stamped]| {
            let first = known.last().map_or(1, |last| last.0);
            if known.len() < bounds.log {
                (first..=bounds.terms + 1).map(|term| (term, 0)).collect()
            } else {
                Vec::new()
            }
        });
        Consensus { bounds, logs }
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        2..=self.bounds.servers
    }

    /// Counted independently of the node, whose own count is under test.
    fn is_majority(&self, count: usize) -> bool {
        2 * count > self.bounds.servers as usize
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
                    step(&mut node, Input::Propose(vec![Payload::Noop]));
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
    fn node(&self, initial: &StartState) -> Node<LockTable> {
        thread_local! {
            static NODE: Latest<(u32, StartState), Node<LockTable>> = const { Latest::new() };
        }
        NODE.with(|latest| latest.get((self.bounds.servers, initial.clone()), || self.build(initial)))
    }

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

    fn messages(&self, initial: &StartState, steps: &mut Vec<Step>) {
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

    fn input(&self, taken: &Step) -> Input<LockTable> {
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
            Step::Propose => Input::Propose(vec![Payload::Noop]),
            Step::Restart => unreachable!("no input"),
        }
    }
}

/// A node's step, as the checks see it.
struct Taken<'a> {
    case: &'a Consensus,
    initial: &'a StartState,
    step: &'a Step,
    before: &'a Node<LockTable>,
    after: &'a Node<LockTable>,
    outputs: &'a [Output<LockTable>],
}

impl Taken<'_> {
    fn own(&self) -> &[Stamped] {
        &self.case.logs[self.initial.log]
    }

    /// The log of the leader that sent the message.
    fn heard(&self) -> &[Stamped] {
        match self.step {
            Step::Append { log, .. } => &self.case.logs[*log],
            _ => &[],
        }
    }

    fn check(&self) -> Check {
        self.votes()?;
        self.promises_are_durable()?;
        self.log()?;
        self.leadership()?;
        self.commit()
    }

    /// Terms never decrease, and a vote that was given stands for its term.
    fn votes(&self) -> Check {
        let (old, new) = (self.before.hard_state(), self.after.hard_state());
        let stands = new.term > old.term || (new.term == old.term && (old.vote.is_none() || new.vote == old.vote));
        require!(invariants::Property::OneVotePerTerm, stands, "{old:?} has become {new:?}")
    }

    /// Messages are true, and their content is durable before they are sent.
    fn promises_are_durable(&self) -> Check {
        let mut disk: Durable<LockTable> = logs::blank(self.case.bounds.servers);
        disk.hard = self.before.hard_state();
        disk.log = self.before.log().clone();
        for output in self.outputs {
            match output {
                Output::Persist(write) => disk.apply(write),
                Output::Send(sent) => self.is_true(sent, &disk)?,
                _ => {}
            }
        }
        let is_written = disk.hard == self.after.hard_state() && disk.log == *self.after.log();
        require!(
            invariants::Property::MemoryMatchesDisk,
            is_written,
            "the disk has {disk:?}, and the node is {:?}",
            self.after
        )
    }

    fn is_true(&self, sent: &Message<LockTable>, disk: &Durable<LockTable>) -> Check {
        let said = || format!("{sent:?} was sent, and the disk has {disk:?}");
        let durable: Vec<Stamped> = disk.log.entries().iter().map(|entry| (entry.term.0, entry.stamp.0)).collect();
        let voted = |candidate| disk.hard == HardState { term: sent.term, vote: Some(candidate) };
        match &sent.body {
            Body::RequestVoteReply { granted: true } => {
                require!(invariants::Property::OneVotePerTerm, voted(sent.to), "{}", said())?;
                self.candidate_is_complete(sent)
            }
            Body::RequestVote { last, .. } => {
                let is_own = *last == self.after.log().last();
                require!(invariants::Property::OneVotePerTerm, voted(NODE) && is_own, "{}", said())
            }
            Body::AppendAccepted { matched, .. } => {
                let matched = usize::try_from(matched.0).expect("a short log");
                let heard = self.heard().get(..matched);
                let is_there = heard.is_some_and(|heard| durable.starts_with(heard)) && disk.hard.term == sent.term;
                require!(invariants::Property::AcknowledgedEntriesAreKept, is_there, "{}", said())
            }
            Body::AppendEntries { prev, entries, commit, .. } => {
                let log = logs::stamped(self.after);
                let from = usize::try_from(prev.index.0).expect("a short log");
                let is_there = position(&log, from) == *prev && logs::entries(&log, from).starts_with(entries);
                let leads = self.after.is_leader() && sent.term == self.after.term() && *commit <= self.after.commit();
                require!(invariants::Property::MessagesAreTrue, is_there && leads, "{}", said())
            }
            _ => Ok(()),
        }
    }

    /// The vote goes to a candidate that has every entry of this node's log that may be committed.
    fn candidate_is_complete(&self, reply: &Message<LockTable>) -> Check {
        let Step::AskForVote { log, .. } = self.step else {
            return require!(invariants::Property::OneVotePerTerm, false, "{reply:?} answers no question");
        };
        let candidates = &self.case.logs[*log];
        let last = candidates.last().map_or(0, |last| last.0);
        for known in 1..=self.own().len() {
            let entries = &self.own()[..known];
            let term = entries[known - 1].0;
            // The candidate's last entry may be of a later leader. If the entries were committed,
            // that leader had them, and so does the candidate; if that leader lacked them, they
            // were never committed.
            let was_replaced = last > term;
            require!(
                invariants::Property::LeaderCompleteness,
                was_replaced || candidates.starts_with(entries),
                "a candidate with the log {candidates:?} gets the vote of a node with {entries:?}"
            )?;
        }
        Ok(())
    }

    /// The log is a prefix of its old log or of the leader's, and keeps the acknowledged and
    /// committed entries.
    fn log(&self) -> Check {
        let (own, heard, log) = (self.own(), self.heard(), logs::stamped(self.after));
        if self.after.is_leader() {
            return require!(
                invariants::Property::LeaderAppendOnly,
                log.starts_with(own),
                "{own:?} has become {log:?}"
            );
        }
        let is_known = own == log || heard.starts_with(&log);
        require!(
            invariants::Property::LogMatching,
            is_known,
            "{own:?} has become {log:?}, and the leader has {heard:?}"
        )?;
        let committed = &own[..usize::try_from(self.initial.commit).expect("a short log")];
        let keeps = log.starts_with(committed);
        require!(
            invariants::Property::StateMachineSafety,
            keeps,
            "{committed:?} is committed, and the log is {log:?}"
        )?;
        // Entries that the node has acknowledged to this leader are in the leader's log, possibly
        // only after this message was sent.
        let acknowledged = (0..=own.len()).rev().find(|&length| {
            let common = length.min(heard.len());
            own[..common] == heard[..common]
        });
        let acknowledged = acknowledged.map_or(&own[..0], |length| &own[..length]);
        require!(
            invariants::Property::AcknowledgedEntriesAreKept,
            log.starts_with(acknowledged),
            "{acknowledged:?} may be acknowledged, and the log is {log:?}"
        )
    }

    /// Only a candidate with the votes of a majority leads, with the log that it asked for votes
    /// with.
    fn leadership(&self) -> Check {
        if !self.after.is_leader() || self.before.is_leader() {
            return require!(
                invariants::Property::ElectionSafety,
                !self.after.is_leader() || self.after.term() == self.before.term(),
                "a leader of term {} leads in term {}",
                self.before.term(),
                self.after.term()
            );
        }
        let mut votes: BTreeSet<u32> = match &self.initial.standing {
            Standing::Campaigns(votes) => votes.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        if let Step::Receive(Message { from, term, body: Body::RequestVoteReply { granted: true }, .. }) = self.step
            && *term == self.before.term()
        {
            votes.insert(from.0);
        }
        let is_elected = self.case.is_majority(votes.len() + 1) && self.after.term() == self.before.term();
        require!(
            invariants::Property::ElectionSafety,
            is_elected,
            "it leads term {} with the votes {votes:?}",
            self.after.term()
        )?;
        let expected = [self.own(), &[(self.after.term().0, 0)]].concat();
        let log = logs::stamped(self.after);
        require!(
            invariants::Property::ElectionSafety,
            log == expected,
            "it was elected with {:?}, and leads with {log:?}",
            self.own()
        )
    }

    /// Newly committed entries are committed: a majority has acknowledged them, or the leader has
    /// said so.
    fn commit(&self) -> Check {
        let (old, new) = (self.before.commit(), self.after.commit());
        if new == old {
            return Ok(());
        }
        let term = self.after.log().term_at(new);
        let known = match (&self.initial.standing, self.step) {
            (_, Step::Append { commit, .. }) => {
                let committed = usize::try_from(new.0).expect("a short log");
                let is_the_leaders = self.heard().get(..committed) == logs::stamped(self.after).get(..committed);
                new.0 <= *commit && is_the_leaders
            }
            (Standing::Leads { acknowledged, .. }, taken) => {
                let heard = |other: u32| match taken {
                    Step::Receive(Message {
                        from: NodeId(from),
                        term,
                        body: Body::AppendAccepted { matched, .. },
                        ..
                    }) if *from == other && *term == self.before.term() => matched.0,
                    _ => 0,
                };
                let has = |(other, matched): (u32, &u8)| u64::from(*matched).max(heard(other)) >= new.0;
                let count = 1 + self.case.others().zip(acknowledged).filter(|known| has(*known)).count();
                self.case.is_majority(count) && term == Some(self.after.term())
            }
            _ => false,
        };
        require!(invariants::Property::CommittedByMajority, known && new > old, "commit {old} has become {new}")
    }
}

impl Case for Consensus {
    type StartState = StartState;
    type Step = Step;

    fn start_states(&self) -> Vec<StartState> {
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

    fn properties() -> Vec<Property<Induction<Consensus>>> {
        properties![
            always: OneVotePerTerm, LeaderCompleteness, AcknowledgedEntriesAreKept, ElectionSafety,
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
