//! Experiment `prediction`: the shortest traces of the gallery, done step by step to real servers.
//!
//! The checker predicts how a flawed design fails: docs/gallery.md has the traces. Here each step of a trace is a real
//! action: a command to a server, SIGSTOP, SIGKILL, a link that is held, a clock that is set. After each step the state of
//! the servers, clients and resource is read and compared with the model's. A difference makes the run fail, and so does a
//! step without an action.
//!
//! | file | contents |
//! |---|---|
//! | `trace` | the traces of docs/gallery.md, and the states that follow from them |
//! | `action` | what each sentence of a trace means for real servers |
//! | `story` | the stories that run, with their servers and repairs |
//! | `system`, `observe` | the real servers and clients: actions, and what is observed |
//! | `steps` (beside this directory) | the clients, as processes of their own that do one step at a time |
//! | `page` | the page |

mod action;
mod observe;
mod page;
mod story;
mod system;
mod trace;

use std::sync::Arc;

pub use page::page;
use serde::{Deserialize, Serialize};
use story::{STORIES, Story};
use system::{Ending, System};
use trace::{State, Step};

use super::{Context, Found};
use crate::report::Prediction;
use crate::servers::{self, Cluster, Signing};

/// The stories of one lock service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The runs, with the repair after those without.
    pub runs: Vec<Run>,
}

/// A story that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The flawed model.
    pub model: String,
    /// The property that the model violates.
    pub property: String,
    /// Whether the repair was in force.
    pub repaired: bool,
    /// The TTL of every key.
    pub ttl_ms: u64,
    /// How long client A waited before each of its requests.
    pub gap_ms: u64,
    /// The steps of the trace.
    pub length: usize,
    /// Whether the first state was the model's.
    pub began: bool,
    /// The steps that were done. After a step with another state than the model's, none is done.
    pub steps: Vec<Done>,
    /// How many clients hold the lock at the end.
    pub holders: usize,
    /// How it ended.
    pub ending: Ending,
}

/// A step that was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// What the model says.
    pub predicted: Step,
    /// Whether the repair changes this step, so that another state than the flawed model's is expected.
    pub repaired: bool,
    /// Time since the first step began, in milliseconds.
    pub at_ms: u64,
    /// What was done, with the answers.
    pub did: String,
    /// What changed.
    pub observed: Vec<String>,
    /// The changes from the state that was expected to the one that was observed.
    pub differences: Vec<String>,
}

impl Run {
    /// Whether every step was done, and led to the state that was expected.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.began && self.steps.len() == self.length && self.steps.iter().all(|step| step.differences.is_empty())
    }

    /// Whether the property is that the holder's write is accepted, not that a stale one is refused.
    #[must_use]
    pub fn is_about_the_holder(&self) -> bool {
        self.property == "the holder may write"
    }

    /// Whether the model's property is violated at the end, as the servers and the resource show it.
    #[must_use]
    pub fn violated(&self) -> bool {
        match self.ending.counts {
            Some(counts) if self.is_about_the_holder() => counts.stale_rejections > 0,
            Some(counts) => counts.stale_accepted > 0,
            None => self.holders > 1,
        }
    }

    /// Whether the checkers of histories say the same about the property. They know no property of the holder's: there
    /// they must find nothing.
    #[must_use]
    pub fn judged_alike(&self) -> bool {
        let Ending { counts, judged } = &self.ending;
        match counts {
            Some(counts) => judged.service.is_empty() && judged.resource.len() as u64 == counts.stale_accepted,
            None => judged.service.is_empty() == (self.holders <= 1),
        }
    }
}

/// Runs the stories of one lock service.
///
/// # Errors
/// A server or a process fails, or a step has no action.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let mut runs = Vec::new();
    for story in STORIES.iter().filter(|story| story.backend() == context.backend) {
        eprintln!("prediction: {}: {}", context.backend, story.model);
        let signing = story.signed.then(Signing::create).transpose()?;
        let signing = signing.as_ref();
        let cluster = match story.options(signing, context.palisade.as_deref()) {
            Some(options) => {
                Arc::new(servers::start(context.cluster.kind(), &options).await.map_err(|error| error.to_string())?)
            }
            None => context.cluster.clone(),
        };
        let repaired = async {
            if story.repair.is_empty() { Ok(None) } else { one(story, true, signing, cluster.clone()).await.map(Some) }
        };
        let (flawed, repaired) = tokio::try_join!(one(story, false, signing, cluster.clone()), repaired)?;
        runs.push(flawed);
        runs.extend(repaired);
    }
    let predictions = predictions(&runs);
    Ok((Figures { runs }, predictions))
}

async fn one(
    story: &'static Story,
    repaired: bool,
    signing: Option<&Signing>,
    cluster: Arc<Cluster>,
) -> Result<Run, String> {
    let trace = story.trace()?;
    let planned = story.plan(&trace, repaired)?;
    let mut system = System::start(story, repaired, signing, cluster).await?;
    let mut before = system.observe().await?;
    let began = trace.first == before;
    let (start, mut steps) = (std::time::Instant::now(), Vec::new());
    for plan in planned {
        let at_ms = crate::event::millis(start.elapsed());
        let failed = |reason| format!("{}, step {}, `{}`: {reason}", story.model, steps.len() + 1, plan.step.sentence);
        let did = system.act(plan.action).await.map_err(failed)?;
        let after = system.observe().await.map_err(failed)?;
        let (observed, differences) = (before.changes(&after), plan.after.changes(&after));
        let agrees = plan.after == after;
        steps.push(Done { predicted: plan.step, repaired: plan.repaired, at_ms, did, observed, differences });
        before = after;
        if !agrees {
            break;
        }
    }
    let holders = holders(&before);
    let ending = system.end().await?;
    let (model, property, length) = (trace.model, trace.property, trace.steps.len());
    let (ttl_ms, gap_ms) = (story.ttl_ms, story.gap_ms);
    Ok(Run { model, property, repaired, ttl_ms, gap_ms, length, began, steps, holders, ending })
}

/// How many clients hold the lock in a state.
fn holders(state: &State) -> usize {
    let clients = state.0.iter().filter(|(subject, _)| subject.starts_with("client "));
    clients.filter(|(_, fields)| fields.iter().any(|(_, value)| value == "holds the lock")).count()
}

fn predictions(runs: &[Run]) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    for run in runs {
        let name = format!("{}{}", run.model, if run.repaired { ", repaired" } else { "" });
        let agreed = run.steps.iter().filter(|step| step.differences.is_empty()).count();
        let agreed = if run.began { agreed } else { 0 };
        predictions.push(Prediction::all(format!("{name}: each step leads to the model's state"), run.length, agreed));
        let (word, as_said) = if run.repaired { ("holds", !run.violated()) } else { ("is violated", run.violated()) };
        let what = format!("{name}: *{}* {word} at the end", run.property);
        predictions.push(Prediction::all(what, 1, usize::from(as_said)));
        if let (true, Some(counts)) = (run.repaired, run.ending.counts) {
            let (what, refused) = match run.is_about_the_holder() {
                true => ("the made-up token is refused with 403", counts.untrusted),
                false => ("the stale write is refused with 409", counts.stale_rejections),
            };
            let refused = usize::try_from(refused).unwrap_or(usize::MAX);
            predictions.push(Prediction::all(format!("{name}: {what}"), 1, refused));
        }
        let what = match run.is_about_the_holder() {
            true => format!("{name}: the checkers of histories, which know stale writes only, find none"),
            false => format!("{name}: the checkers of histories say the same"),
        };
        predictions.push(Prediction::all(what, 1, usize::from(run.judged_alike())));
    }
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::processes::Counts;
    use crate::history::Judgement;

    fn run(differences: &[&str], stale_accepted: u64, found: usize) -> Run {
        let step = Done {
            predicted: Step { sentence: String::new(), changes: Vec::new() },
            repaired: false,
            at_ms: 0,
            did: String::new(),
            observed: Vec::new(),
            differences: differences.iter().map(|&difference| difference.to_owned()).collect(),
        };
        let judged = Judgement { resource: vec![String::new(); found], ..Judgement::default() };
        Run {
            model: "gallery-fencing".to_owned(),
            property: "no stale write".to_owned(),
            repaired: false,
            ttl_ms: 1,
            gap_ms: 0,
            length: 1,
            began: true,
            steps: vec![step],
            holders: 0,
            ending: Ending { counts: Some(Counts { stale_accepted, ..Counts::default() }), judged },
        }
    }

    fn hold(run: Run) -> Vec<bool> {
        predictions(&[run]).iter().map(|prediction| prediction.holds).collect()
    }

    #[test]
    fn a_made_up_token_must_lock_the_holder_out_or_be_refused() {
        let run = |repaired: bool, counts: Counts| {
            let run = Run { property: "the holder may write".to_owned(), repaired, ..run(&[], 0, 0) };
            hold(Run { ending: Ending { counts: Some(counts), ..run.ending.clone() }, ..run })
        };
        let counts = Counts::default;
        assert_eq!(run(false, Counts { stale_rejections: 1, ..counts() }), [true, true, true]);
        assert_eq!(run(false, counts()), [true, false, true]);
        assert_eq!(run(true, Counts { untrusted: 1, ..counts() }), [true, true, true, true]);
        assert_eq!(run(true, counts()), [true, true, false, true]);
        assert_eq!(run(true, Counts { stale_rejections: 1, untrusted: 1, ..counts() }), [true, false, true, true]);
    }

    #[test]
    fn a_run_as_predicted_holds() {
        assert_eq!(hold(run(&[], 1, 1)), [true, true, true]);
    }

    #[test]
    fn another_state_a_missing_violation_and_a_checker_that_disagrees_are_found() {
        assert_eq!(hold(run(&["lock: free → A"], 1, 1)), [false, true, true]);
        assert_eq!(hold(run(&[], 0, 0)), [true, false, true]);
        assert_eq!(hold(run(&[], 1, 0)), [true, true, false]);
        let mut short = run(&[], 1, 1);
        short.steps.clear();
        assert!(!short.agrees() && !hold(short)[0]);
        let mut began = run(&[], 1, 1);
        began.began = false;
        assert!(!hold(began)[0], "another first state was accepted");
    }

    #[test]
    fn a_repair_without_a_refusal_has_failed() {
        let mut repaired = run(&[], 0, 0);
        repaired.repaired = true;
        assert_eq!(hold(repaired.clone()), [true, true, false, true]);
        repaired.ending.counts = Some(Counts { stale_rejections: 1, ..Counts::default() });
        assert_eq!(hold(repaired), [true, true, true, true]);
    }
}
