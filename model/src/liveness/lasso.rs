//! An infinite run as text: the steps to a cycle, and the cycle.

use std::fmt;

use super::fair::{Circle, Fairness};
use super::graph::{Edge, Graph, fingerprint, steps};
use super::{Live, Response};
use crate::trace::{Step, Trace, trace_of_way};

/// The text for a run that stutters.
pub const NEVER: &str = "nothing more happens";

/// A fair run on which a response never happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Lasso {
    /// The steps to the cycle, followed by the steps of the cycle, once.
    pub trace: Trace,
    /// Number of steps to the cycle.
    pub stem: usize,
    /// Number of steps before the response is due.
    pub due_after: usize,
    /// The response that is due and never happens.
    pub of: String,
    /// Why the run is fair: a line for each class.
    pub fairness: Vec<String>,
}

impl Lasso {
    /// Number of steps to the cycle, and of the cycle.
    pub fn steps(&self) -> usize {
        self.trace.steps.len()
    }

    /// The steps of the cycle; empty if the run stutters.
    pub fn cycle(&self) -> &[Step] {
        &self.trace.steps[self.stem..]
    }

    /// Retraces a violation of the graph in the model.
    pub(super) fn new<M: Live>(model: &M, graph: &Graph, response: &Response, circle: &Circle) -> Lasso {
        let initial =
            model.init_states().into_iter().find(|state| fingerprint(state) == graph.fingerprint(circle.initial));
        let mut state = initial.expect("the run begins in an initial state");
        let mut way = Vec::new();
        for &Edge { to, classes } in circle.stem.iter().chain(&circle.cycle) {
            // Merged states have the same future: one of the actions leads to the next fingerprint.
            let step = steps(model, &state)
                .into_iter()
                .find(|(_, own, next)| *own == classes && fingerprint(next) == graph.fingerprint(to));
            let (action, _, next) = step.expect("states that count as one have the same future");
            way.push((std::mem::replace(&mut state, next), Some(action)));
        }
        way.push((state, None));
        let trace = trace_of_way(model, response.property, false, &way);
        let stem = circle.stem.len();
        let fairness = fairness(model, graph, circle);
        Lasso { trace, stem, due_after: circle.pending_after, of: response.of.clone(), fairness }
    }
}

/// Why a run with this cycle is fair.
fn fairness<M: Live>(model: &M, graph: &Graph, circle: &Circle) -> Vec<String> {
    let stem = circle.stem.len();
    let begin = circle.stem.last().map_or(circle.initial, |edge| edge.to);
    let states: Vec<u32> = std::iter::once(begin).chain(circle.cycle.iter().map(|edge| edge.to)).collect();
    let reason = |(index, class): (usize, super::Class)| {
        let bit = 1 << index;
        let taken = circle.cycle.iter().position(|edge| edge.classes & bit != 0);
        let idle = states.iter().position(|state| graph.enabled[*state as usize] & bit == 0);
        let why = match (taken, idle, class.fairness) {
            (Some(step), ..) => format!("happens in step {}", stem + step + 1),
            (None, Some(_), Fairness::Strong) => "is never possible".to_string(),
            (None, Some(_), Fairness::Weak) if circle.cycle.is_empty() => "is never possible".to_string(),
            (None, Some(after), Fairness::Weak) => format!("is not possible after step {}", stem + after),
            (None, None, _) => unreachable!("the cycle is fair"),
        };
        format!("{}: {why}", class.name)
    };
    model.classes().into_iter().enumerate().map(reason).collect()
}

/// The numbered steps, each with its changes, and why the run is fair.
impl fmt::Display for Lasso {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lasso { trace, stem, due_after, of, fairness } = self;
        writeln!(f, "\"{}\" is violated for {of}: due after step {due_after}, and never served\n", trace.property)?;
        writeln!(f, "{}\n", trace.initial.trim_end())?;
        let line = |f: &mut fmt::Formatter<'_>, number: usize| {
            let Step { action, outcome, .. } = &trace.steps[number];
            writeln!(f, "{:>3}. {action}", number + 1)?;
            outcome.lines().try_for_each(|line| writeln!(f, "       {line}"))
        };
        (0..*stem).try_for_each(|number| line(f, number))?;
        if self.cycle().is_empty() {
            writeln!(f, "from here {NEVER}")?;
        } else {
            writeln!(f, "from here the following repeats for ever:")?;
            (*stem..self.steps()).try_for_each(|number| line(f, number))?;
        }
        writeln!(f, "this is fair:")?;
        fairness.iter().try_for_each(|line| writeln!(f, "     {line}"))
    }
}
