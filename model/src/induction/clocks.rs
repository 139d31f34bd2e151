//! Clocks: whatever a node has measured or heard, its clock has moved on from the stamp of every entry in its log by no more
//! than the entry's *age*, which is the real time since its leader stamped it. So no session ends early under any leader.
//!
//! The history is made of logs whose entries have ages. The invariants are:
//!
//! - **a log**: an entry is no older than those before it, its stamp is no less than theirs, and two stamps are no further apart
//!   than the two ages;
//! - **two logs** are of one history: a term has one leader, whose log only grows;
//! - **a node**: its clock is at or behind no stamp of its log, and ahead of none by more than its age;
//! - **a message**: the same of the clock that its leader had when it sent it, and of the log that the leader had then.
//!
//! The message may be as old as one likes: ages grow, and what the invariant says of it stays true. Time that passes lets a
//! leader's clock move on by at most as much. A crash loses the clock, and perhaps the end of the log.
//!
//! Left out: snapshots (an installed one is a log that is gone, with the stamp of its last entry), hand-overs, and changes of the
//! members, which do not touch clocks.

use std::ops::Range;

use palisade_spec::invariants::Violation;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, HardState, Input, Node, NodeId, Output, Payload, Stamp, Term};
use stateright::Property;

use super::logs::{self, Stamped, append, grown, match_each_other, message, recover, step};
use super::{Case, Induction, Latest, State, properties};
use crate::locks::require;

/// How many servers there are.
const SERVERS: u32 = 3;
/// Who sends what the node hears.
const LEADER: NodeId = NodeId(2);

/// What is varied.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Up to which term.
    pub terms: u64,
    /// How many entries the node's log may have.
    pub log: usize,
    /// How many the log of a leader that it hears may have.
    pub leaders_log: usize,
    /// The last stamp.
    pub stamps: u64,
    /// The greatest age.
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
    /// All logs, the shorter ones first.
    logs: Vec<Vec<Aged>>,
}

/// A node: its log, by its place in the list, and its clock; and the log of a leader that it may hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scene {
    log: u32,
    leaders: u32,
    clock: u8,
}

/// What happens to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It hears these entries of the leader's log, and what the leader's clock read.
    Hear {
        /// The entries, by their places in the leader's log.
        entries: Range<usize>,
        /// What the leader's clock read.
        reading: u8,
    },
    /// It wins an election, measures time, and appends.
    Lead {
        /// How much real time passes meanwhile.
        passes: u8,
        /// How much of that it does not measure.
        unmeasured: u8,
    },
    /// It starts again from its disk, which lacks the last entries.
    Restart {
        /// How many.
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

    fn logs_of(&self, scene: &Scene) -> [&[Aged]; 2] {
        [scene.log, scene.leaders].map(|log| &self.logs[log as usize][..])
    }

    /// A follower with this log and this clock.
    fn node(&self, scene: &Scene) -> Node<LockTable> {
        thread_local! {
            static NODE: Latest<(u32, u8), Node<LockTable>> = const { Latest::new() };
        }
        NODE.with(|latest| {
            latest.get((scene.log, scene.clock), || {
                let log = stamped(&self.logs[scene.log as usize]);
                let term = log.last().map_or(1, |last| last.0);
                let mut node = recover(SERVERS, HardState { term: Term(term), vote: None }, &log);
                let heartbeat = append(&log, log.len(), log.len(), 0, u64::from(scene.clock));
                step(&mut node, Input::Receive(message(LEADER, term, heartbeat)));
                node
            })
        })
    }

    /// The invariant of a node, of which each entry is that of one of these logs.
    fn is_kept(node: &Node<LockTable>, known: [&[Aged]; 2]) -> Result<Vec<Aged>, Violation> {
        let log = logs::stamped(node);
        let origin = known.into_iter().find(|origin| stamped(origin).starts_with(&log));
        let origin = origin.ok_or_else(|| Violation {
            property: "log matching",
            detail: format!("the log has become {log:?}, a beginning of neither {known:?}"),
        })?;
        let log = &origin[..log.len()];
        let (clock, property) = (node.clock().0, "cluster time never runs ahead");
        let detail = || format!("the clock reads {clock}, and the log is {log:?}");
        if fits(clock, log) { Ok(log.to_vec()) } else { Err(Violation { property, detail: detail() }) }
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
        if !node.is_leader() || node.clock() != before {
            let detail = format!("its clock read {before}, and reads {}", node.clock());
            return Err(Violation { property: "elections lose no time", detail });
        }
        let mut log = [log, &[new(before)]].concat();
        Clocks::is_kept(&node, [&log, &[]])?;
        step(&mut node, Input::ClockAdvanced(u64::from(passes - unmeasured)));
        log.iter_mut().for_each(|entry| entry.age += passes);
        Clocks::is_kept(&node, [&log, &[]])?;
        let sent = step(&mut node, Input::Propose(vec![Payload::Noop]));
        log.push(new(node.clock()));
        Clocks::is_kept(&node, [&log, &[]])?;
        for output in sent {
            let Output::Send(sent) = output else { continue };
            let Body::AppendEntries { stamp, .. } = sent.body else { continue };
            let detail = || format!("a message says that the clock reads {stamp}, and the log is {log:?}");
            if !fits(stamp.0, &log) {
                return Err(Violation { property: "cluster time never runs ahead", detail: detail() });
            }
        }
        let ordered = |pair: &[Aged]| {
            let apart = u64::from(pair[1].stamp).checked_sub(u64::from(pair[0].stamp));
            let ages = u64::from(pair[0].age).checked_sub(u64::from(pair[1].age));
            apart.zip(ages).is_some_and(|(stamps, ages)| stamps <= ages)
        };
        let detail = || format!("two stamps of {log:?} are further apart than the ages of their entries");
        if log.windows(2).all(ordered) {
            Ok(())
        } else {
            Err(Violation { property: "clock monotonicity", detail: detail() })
        }
    }
}

fn stamped(log: &[Aged]) -> Vec<Stamped> {
    log.iter().map(|entry| (u64::from(entry.term), u64::from(entry.stamp))).collect()
}

impl Case for Clocks {
    type Scene = Scene;
    type Step = Step;

    fn scenes(&self) -> Vec<Scene> {
        let mut scenes = Vec::new();
        let number = |place: usize| u32::try_from(place).expect("some thousand logs");
        for (log, own) in self.logs.iter().enumerate().filter(|(_, log)| log.len() <= self.bounds.log) {
            let clocks: Vec<u8> = match own.last() {
                None => (0..=u8::try_from(self.bounds.stamps + self.bounds.ages).expect("small")).collect(),
                Some(last) => {
                    (last.stamp..=last.stamp + last.age).filter(|&clock| fits(u64::from(clock), own)).collect()
                }
            };
            let term = own.last().map_or(1, Aged::term);
            for (leaders, other) in self.logs.iter().enumerate() {
                // A leader's log ends with an entry of its term. One of an earlier term than the node's is not heard.
                let is_heard = other.last().is_some_and(|last| last.term() >= term);
                if is_heard && other.len() <= self.bounds.leaders_log && match_each_other(own, other, Aged::term) {
                    let (log, leaders) = (number(log), number(leaders));
                    scenes.extend(clocks.iter().map(|&clock| Scene { log, leaders, clock }));
                }
            }
        }
        scenes
    }

    fn steps(&self, scene: &Scene, steps: &mut Vec<Step>) {
        let [own, leaders] = self.logs_of(scene);
        let last = leaders[leaders.len() - 1];
        for reading in (last.stamp..=last.stamp + last.age).filter(|&reading| fits(u64::from(reading), leaders)) {
            for from in 0..=leaders.len() {
                steps.extend((from..=leaders.len()).map(|through| Step::Hear { entries: from..through, reading }));
            }
        }
        // What a node does by itself does not depend on whom it may hear.
        if leaders == own || (own.is_empty() && leaders.len() == 1) {
            for passes in 0..=2 {
                steps.extend((0..=passes).map(|unmeasured| Step::Lead { passes, unmeasured }));
            }
            steps.extend((0..=own.len()).map(|lost| Step::Restart { lost }));
        }
    }

    fn take(&self, scene: &Scene, taken: &Step) -> Result<Option<&'static str>, Violation> {
        let [own, leaders] = self.logs_of(scene);
        let mut node = self.node(scene);
        let before = node.clock();
        let is_own = before == Stamp(u64::from(scene.clock));
        require("clock monotonicity", is_own, || format!("a clock of its own log is heard, and it reads {before}"))?;
        match taken {
            Step::Hear { entries, reading } => {
                let body = append(&stamped(leaders), entries.start, entries.end, 0, u64::from(*reading));
                let term = leaders[leaders.len() - 1].term();
                step(&mut node, Input::Receive(message(LEADER, term, body)));
                // Of a log that stays beyond the leader's entries, the rest is its own.
                let log = Clocks::is_kept(&node, [own, leaders])?;
                let goes_back = node.clock() < before;
                if goes_back && log == own {
                    let detail = format!("the clock went back from {before} to {}, and the log stayed", node.clock());
                    return Err(Violation { property: "clock monotonicity", detail });
                }
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

    fn properties() -> Vec<Property<Induction<Clocks>>> {
        properties![
            always: "cluster time never runs ahead", "clock monotonicity", "elections lose no time", "log matching", "assertions";
            sometimes: "a clock goes back with its log", "a clock of another log is not taken over"
        ]
    }

    fn picture(&self, scene: &Scene) -> String {
        let [own, leaders] = self.logs_of(scene);
        let log = |log: &[Aged]| {
            let entry = |entry: &Aged| format!("term {} stamped {} aged {}", entry.term, entry.stamp, entry.age);
            log.iter().map(entry).collect::<Vec<_>>().join(", ")
        };
        format!("log [{}], clock {}; a leader has had the log [{}]", log(own), scene.clock, log(leaders))
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
