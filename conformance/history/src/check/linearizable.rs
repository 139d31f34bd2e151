//! Linearizability of short histories, one key at a time, by search.
//!
//! # What it proves
//!
//! That all operations on a key can be ordered so that each takes effect at one moment between its
//! invocation and its completion (an acquire that waits: at two), and a sequential fenced FIFO lock
//! gives exactly these answers; or that no such order exists. Linearizability is local (Herlihy and
//! Wing, 1990): a history is linearizable if each key's part of it is.
//!
//! # What it costs
//!
//! The problem is NP-complete. The history of a key may have 128 steps; longer ones are undecided
//! and left to the other checkers. The search remembers at most [`BUDGET`] states, and is undecided
//! if it needs more.
//!
//! # What it does not find
//!
//! Anything on a key of which claims on several keys were asked for: these keys are counted, and left to the
//! other checkers. Wrong values of grants. Violations across keys: one token counter for all of them,
//! sessions that end everywhere at once. Unknown outcomes explain many wrong answers.

use std::fmt::Write;
use std::rc::Rc;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use super::facts::Facts;
use super::fenced_lock::FencedLock;
use super::steps::{Index, Steps, Timed};
use super::{MOST, Verdict, Violation, count};
use crate::processes::processes;
use crate::{History, Key, Time};

/// The checker's name.
pub const NAME: &str = "linearizable";

/// Number of states that a search may remember.
pub const BUDGET: usize = 20_000;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// There is an order.
    Linearizable,
    /// The key has claims that the sequential lock does not know: on several keys.
    Unknown,
    /// The search exceeded its bounds.
    Undecided,
    /// There is no order.
    Refused,
}

/// Runs a search on every key, with `budget` states each.
pub fn check(history: &History, budget: usize) -> Verdict {
    let facts = Facts::of(history);
    let mut violations = Vec::new();
    let (mut undecided, mut unknown) = (0, 0);
    for (key, outcome) in searches(&facts, budget) {
        match outcome {
            Outcome::Linearizable => {}
            Outcome::Unknown => unknown += 1,
            Outcome::Undecided => undecided += 1,
            Outcome::Refused if violations.len() < MOST => violations.push(accuse(history, key, budget)),
            Outcome::Refused => {}
        }
    }
    let mut checked = count(facts.keys.len(), "key");
    if undecided > 0 {
        let _ = write!(checked, ", {undecided} too long to be decided");
    }
    if unknown > 0 {
        let _ = write!(checked, ", {unknown} with claims that the search does not know");
    }
    Verdict { checker: NAME, checked, violations }
}

/// The result for a whole history: refused if any key's part is, else undecided if any is.
pub fn decide(history: &History, budget: usize) -> Outcome {
    let facts = Facts::of(history);
    let mut outcomes: Vec<Outcome> = searches(&facts, budget).map(|(_, outcome)| outcome).collect();
    outcomes.sort();
    outcomes.pop().unwrap_or(Outcome::Linearizable)
}

/// A search for each key, and one for the sessions without a key.
fn searches<'h>(facts: &Facts<'h>, budget: usize) -> impl Iterator<Item = (Option<&'h Key>, Outcome)> {
    let index = Index::of(facts);
    let keys = facts.keys.iter().enumerate().map(|(key_index, key)| (Some(key_index), Some(*key)));
    keys.chain([(None, None)]).map(move |(key_index, key)| (key, search(facts, &index, key_index, budget)))
}

fn search(facts: &Facts<'_>, index: &Index, key: Option<usize>, budget: usize) -> Outcome {
    if !index.is_known(key) {
        return Outcome::Unknown;
    }
    let Some((steps, context)) = Steps::of(facts, index, key) else { return Outcome::Undecided };
    let context = Rc::new(context);
    context.budget.set(budget);
    let tester = tester(&steps, FencedLock::new(context.clone()));
    match (tester.is_consistent(), context.budget.get()) {
        (true, _) => Outcome::Linearizable,
        (false, 0) => Outcome::Undecided,
        (false, _) => Outcome::Refused,
    }
}

/// The tester requires processes that do one thing at a time, and their invocations and returns in
/// order. At the same moment invocations come first: intervals that touch may have overlapped. A
/// step without an end returns after all others. The tester tries processes in order, so steps that
/// only look come first.
fn tester(steps: &[Timed], lock: FencedLock) -> LinearizabilityTester<(bool, usize), FencedLock> {
    let changes = |step: &Timed| !step.step.act.is_read_only();
    let of_kind = |kind: bool| steps.iter().filter(move |step| changes(step) == kind).map(|step| (step.from, step.to));
    let (mut looking, mut changing) = (processes(of_kind(false)).into_iter(), processes(of_kind(true)).into_iter());
    let process = |step: &Timed| {
        let assigned = if changes(step) { &mut changing } else { &mut looking };
        (changes(step), assigned.next().expect("every step has a process"))
    };
    let assigned: Vec<(bool, usize)> = steps.iter().map(process).collect();
    let mut moments: Vec<(Time, bool, usize)> = Vec::new();
    for (step_index, step) in steps.iter().enumerate() {
        moments.extend([(step.from, false, step_index), (step.to, true, step_index)]);
    }
    moments.sort_unstable();
    let mut tester = LinearizabilityTester::new(lock);
    for (_, returns, step_index) in moments {
        let (process, step) = (assigned[step_index], &steps[step_index]);
        let taken = if returns {
            tester.on_return(process, step.seen.clone())
        } else {
            tester.on_invoke(process, step.step.clone())
        };
        taken.expect("a process has one step at a time");
    }
    tester
}

/// Names the answer after which the history is no longer linearizable: every prefix of a
/// linearizable history is linearizable.
fn accuse(history: &History, key: Option<&Key>, budget: usize) -> Violation {
    let mut ends: Vec<_> = history.operations.iter().filter(|operation| operation.completed() < Time::NEVER).collect();
    ends.sort_by_key(|operation| operation.completed());
    let refused = |moment: Time| {
        let beginning = history.until(moment);
        let facts = Facts::of(&beginning);
        let key_index = key.map(|key| facts.key_named(key));
        // A key that no operation has named yet cannot be refused.
        key_index != Some(None) && search(&facts, &Index::of(&facts), key_index.flatten(), budget) == Outcome::Refused
    };
    let first = ends.partition_point(|operation| !refused(operation.completed()));
    let of = key.map_or(String::from("the sessions"), |key| format!("the operations on {key}"));
    match ends.get(first) {
        Some(operation) => Violation(format!(
            "{of} must fit into one order, and they did until {}, but no order explains {operation}",
            operation.completed(),
        )),
        None => Violation(format!("{of} must fit into one order, but no order explains them")),
    }
}
