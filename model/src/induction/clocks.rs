//! Clocks: a node's clock has advanced from the stamp of every entry in its log by no more than the
//! entry's *age*, which is the real time since its leader stamped it, whatever the node has
//! measured or received. So no session ends early under any leader.
//!
//! The history is made of logs whose entries have ages. The invariants are:
//!
//! - **a log**: an entry is no older than those before it, its stamp is no less than theirs, and
//!   two stamps are no further apart than the two ages;
//! - **two logs** are of one history: a term has one leader, whose log only grows;
//! - **a node**: its clock is not behind any stamp of its log, and ahead of none by more than the
//!   entry's age;
//! - **a message**: the same of the leader's clock and the leader's log when the leader sent it.
//!
//! The message may be arbitrarily old: ages grow, so the invariant stays true. A leader's clock
//! advances by at most the real time that passes. A crash loses the clock, and possibly the end of
//! the log.
//!
//! Left out: snapshots (an installed snapshot acts as a discarded log with the stamp of its last
//! entry), leadership transfers, and membership changes, which do not affect clocks.

use std::ops::Range;

use palisade_spec::invariants::{self, Violation};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, HardState, Input, Node, NodeId, Output, Payload, RequestId, Stamp, Term};
use palisade_spec::{require, violated};
use stateright::Property;

use super::logs::{self, Stamped, append, grown, match_each_other, message, recover, step};
use super::{Case, Induction, Latest, State, properties};

/// Number of servers.
const SERVERS: u32 = 3;
/// The sender of the node's messages.
const LEADER: NodeId = NodeId(2);

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Last term.
    pub terms: u64,
    /// Maximum length of the node's log.
    pub log: usize,
    /// Maximum length of the leader's log.
    pub leaders_log: usize,
    /// The last stamp.
    pub stamps: u64,
    /// Maximum age.
    pub ages: u64,
}

/// An entry of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Aged {
    term: u8,
    stamp: u8,
    age: u8,
}

impl Aged {
    fn term(&self) -> u64 {
        u64::from(self.term)
    }
}

/// Every node and message within the bounds.
pub struct Clocks {
    bounds: Bounds,
    /// All logs, in order of length.
    logs: Vec<Vec<Aged>>,
}

/// A start state: the node's log (an index into the list) and clock, and the log of a leader that
/// it may receive messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StartState {
    log: u32,
    leaders: u32,
    clock: u8,
}

/// A step of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node receives these entries of the leader's log, with the leader's clock.
    Hear {
        /// The entries, as a range of the leader's log.
        entries: Range<usize>,
        /// The leader's clock.
        reading: u8,
    },
    /// The node wins an election, measures time, and appends.
    Lead {
        /// Real time that passes before the append.
        passes: u8,
        /// The part of that time that the node does not measure.
        unmeasured: u8,
    },
    /// The node restarts from its disk, which lacks the last entries.
    Restart {
        /// Number of missing entries.
        lost: usize,
    },
}

/// Whether a clock fits the entries of a log.
fn fits(clock: u64, log: &[Aged]) -> bool {
    log.iter().all(|entry| (u64::from(entry.stamp)..=u64::from(entry.stamp + entry.age)).contains(&clock))
}

impl Clocks {
    /// The case within these bounds.
    pub fn new(bounds: Bounds) -> Clocks {
        let small = |number: u64| u8::try_from(number).expect("a small number");
        let longest = bounds.log.max(bounds.leaders_log);
        let logs = grown(|known: &[Aged]| {
            if known.len() == longest {
                return Vec::new();
            }
            let last = known.last().copied().unwrap_or(Aged { term: 1, stamp: 0, age: small(bounds.ages) });
            let terms = last.term..=small(bounds.terms);
            let stamps = || last.stamp..=small(bounds.stamps);
            let all = terms.flat_map(|term| {
                stamps().flat_map(move |stamp| (0..=last.age).map(move |age| Aged { term, stamp, age }))
            });
            // The time between two stamps has passed between the two entries.
            all.filter(|next| known.is_empty() || next.stamp - last.stamp <= last.age - next.age).collect()
        });
        Clocks { bounds, logs }
    }

    fn logs_of(&self, initial: &StartState) -> [&[Aged]; 2] {
        [initial.log, initial.leaders].map(|log| &self.logs[log as usize][..])
    }

    /// A follower with this log and this clock.
    fn node(&self, initial: &StartState) -> Node<LockTable> {
        thread_local! {
            static NODE: Latest<(u32, u8), Node<LockTable>> = const { Latest::new() };
        }
        NODE.with(|latest| {
            latest.get((initial.log, initial.clock), || {
                let log = stamped(&self.logs[initial.log as usize]);
                let term = log.last().map_or(1, |last| last.0);
                let mut node = recover(SERVERS, HardState { term: Term(term), vote: None }, &log);
                let heartbeat = append(&log, log.len(), log.len(), 0, u64::from(initial.clock));
                step(&mut node, Input::Receive(message(LEADER, term, heartbeat)));
                node
            })
        })
    }

    /// The invariant of a node, each of whose entries is one of these logs' entries.
    fn is_kept(node: &Node<LockTable>, known: [&[Aged]; 2]) -> Result<Vec<Aged>, Violation> {
        let log = logs::stamped(node);
        let origin = known.into_iter().find(|origin| stamped(origin).starts_with(&log));
        let Some(origin) = origin else {
            return violated!(
                invariants::Property::LogMatching,
                "the log has become {log:?}, a beginning of neither {known:?}"
            );
        };
        let (clock, log) = (node.clock().0, &origin[..log.len()]);
        require!(
            invariants::Property::ClusterTimeNeverRunsAhead,
            fits(clock, log),
            "the clock reads {clock}, and the log is {log:?}"
        )?;
        Ok(log.to_vec())
    }

    fn lead(mut node: Node<LockTable>, log: &[Aged], passes: u8, unmeasured: u8) -> Result<(), Violation> {
        logs::campaign(&mut node);
        let (term, before) = (node.term(), node.clock());
        step(&mut node, Input::Receive(message(LEADER, term.0, Body::RequestVoteReply { granted: true })));
        let new = |stamp: Stamp| Aged {
            term: u8::try_from(term.0).expect("few terms"),
            stamp: u8::try_from(stamp.0).expect("a small stamp"),
            age: 0,
        };
        require!(
            invariants::Property::ElectionsLoseNoTime,
            node.is_leader() && node.clock() == before,
            "its clock read {before}, and reads {}",
            node.clock()
        )?;
        let mut log = [log, &[new(before)]].concat();
        Clocks::is_kept(&node, [&log, &[]])?;
        step(&mut node, Input::ClockAdvanced(u64::from(passes - unmeasured)));
        log.iter_mut().for_each(|entry| entry.age += passes);
        Clocks::is_kept(&node, [&log, &[]])?;
        let sent = step(&mut node, Input::Propose { id: RequestId(1), payloads: vec![Payload::Noop] });
        log.push(new(node.clock()));
        Clocks::is_kept(&node, [&log, &[]])?;
        for output in sent {
            let Output::Send(sent) = output else { continue };
            let Body::AppendEntries { stamp, .. } = sent.body else { continue };
            require!(
                invariants::Property::ClusterTimeNeverRunsAhead,
                fits(stamp.0, &log),
                "a message says that the clock reads {stamp}, and the log is {log:?}"
            )?;
        }
        let ordered = |pair: &[Aged]| {
            let apart = u64::from(pair[1].stamp).checked_sub(u64::from(pair[0].stamp));
            let ages = u64::from(pair[0].age).checked_sub(u64::from(pair[1].age));
            apart.zip(ages).is_some_and(|(stamps, ages)| stamps <= ages)
        };
        require!(
            invariants::Property::ClockMonotonicity,
            log.windows(2).all(ordered),
            "two stamps of {log:?} are further apart than the ages of their entries"
        )
    }
}

fn stamped(log: &[Aged]) -> Vec<Stamped> {
    log.iter().map(|entry| (u64::from(entry.term), u64::from(entry.stamp))).collect()
}

impl Case for Clocks {
    type StartState = StartState;
    type Step = Step;

    fn start_states(&self) -> Vec<StartState> {
        let mut start_states = Vec::new();
        let number = |index: usize| u32::try_from(index).expect("some thousand logs");
        for (log, own) in self.logs.iter().enumerate().filter(|(_, log)| log.len() <= self.bounds.log) {
            let clocks: Vec<u8> = match own.last() {
                None => (0..=u8::try_from(self.bounds.stamps + self.bounds.ages).expect("small")).collect(),
                Some(last) => {
                    (last.stamp..=last.stamp + last.age).filter(|&clock| fits(u64::from(clock), own)).collect()
                }
            };
            let term = own.last().map_or(1, Aged::term);
            for (leaders, other) in self.logs.iter().enumerate() {
                // A leader's log ends with an entry of its term. The node ignores a leader of an
                // earlier term.
                let is_heard = other.last().is_some_and(|last| last.term() >= term);
                if is_heard && other.len() <= self.bounds.leaders_log && match_each_other(own, other, Aged::term) {
                    let (log, leaders) = (number(log), number(leaders));
                    start_states.extend(clocks.iter().map(|&clock| StartState { log, leaders, clock }));
                }
            }
        }
        start_states
    }

    fn steps(&self, initial: &StartState, steps: &mut Vec<Step>) {
        let [own, leaders] = self.logs_of(initial);
        let last = leaders[leaders.len() - 1];
        for reading in (last.stamp..=last.stamp + last.age).filter(|&reading| fits(u64::from(reading), leaders)) {
            for from in 0..=leaders.len() {
                steps.extend((from..=leaders.len()).map(|through| Step::Hear { entries: from..through, reading }));
            }
        }
        // The node's own steps do not depend on the leader's log.
        if leaders == own || (own.is_empty() && leaders.len() == 1) {
            for passes in 0..=2 {
                steps.extend((0..=passes).map(|unmeasured| Step::Lead { passes, unmeasured }));
            }
            steps.extend((0..=own.len()).map(|lost| Step::Restart { lost }));
        }
    }

    fn take(&self, initial: &StartState, taken: &Step) -> Result<Option<&'static str>, Violation> {
        let [own, leaders] = self.logs_of(initial);
        let mut node = self.node(initial);
        let before = node.clock();
        let is_own = before == Stamp(u64::from(initial.clock));
        require!(
            invariants::Property::ClockMonotonicity,
            is_own,
            "a clock of its own log is heard, and it reads {before}"
        )?;
        match taken {
            Step::Hear { entries, reading } => {
                let body = append(&stamped(leaders), entries.start, entries.end, 0, u64::from(*reading));
                let term = leaders[leaders.len() - 1].term();
                step(&mut node, Input::Receive(message(LEADER, term, body)));
                // Entries that stay beyond the leader's are the node's own.
                let log = Clocks::is_kept(&node, [own, leaders])?;
                let goes_back = node.clock() < before;
                require!(
                    invariants::Property::ClockMonotonicity,
                    !goes_back || log != own,
                    "the clock went back from {before} to {}, and the log stayed",
                    node.clock()
                )?;
                Ok(match node.clock() == before && u64::from(*reading) > before.0 {
                    _ if goes_back => Some("a clock goes back with its log"),
                    true if log == own => Some("a clock of another log is not taken over"),
                    _ => None,
                })
            }
            Step::Lead { passes, unmeasured } => Clocks::lead(node, own, *passes, *unmeasured).map(|()| None),
            Step::Restart { lost } => {
                let log = &own[..own.len() - lost];
                let node = recover(SERVERS, node.hard_state(), &stamped(log));
                Clocks::is_kept(&node, [log, &[]]).map(|_| None)
            }
        }
    }

    fn properties(&self) -> Vec<Property<Induction<Clocks>>> {
        properties![
            always: ClusterTimeNeverRunsAhead, ClockMonotonicity, ElectionsLoseNoTime, LogMatching, Assertions;
            sometimes: "a clock goes back with its log", "a clock of another log is not taken over"
        ]
    }

    fn picture(&self, initial: &StartState) -> String {
        let [own, leaders] = self.logs_of(initial);
        let log = |log: &[Aged]| {
            let entry = |entry: &Aged| format!("term {} stamped {} aged {}", entry.term, entry.stamp, entry.age);
            log.iter().map(entry).collect::<Vec<_>>().join(", ")
        };
        format!("log [{}], clock {}; a leader has had the log [{}]", log(own), initial.clock, log(leaders))
    }

    fn sentence(&self, step: &Step) -> String {
        match step {
            Step::Hear { entries, reading } => {
                let Range { start, end } = entries;
                format!("the node hears the leader's entries behind {start} up to {end}, when its clock read {reading}")
            }
            Step::Lead { passes, unmeasured } => {
                format!("the node is elected; {passes} pass, of which it does not measure {unmeasured}; it appends")
            }
            Step::Restart { lost } => format!("the node starts again, without its last {lost} entries"),
        }
    }
}
