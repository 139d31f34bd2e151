//! The page of experiment `prediction`.

use super::{Done, Figures, Run};
use crate::report::plot::{BAD, GOOD, Lane, timeline};
use crate::report::table::Table;
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let runs: Vec<_> = results.runs.iter().flat_map(|run| &run.figures.runs).collect();
    let summary = summary(&runs);
    let stories: String = runs.iter().filter(|run| !run.repaired).map(|run| story(run, &runs)).collect();
    let markdown = format!(
        "# Prediction and run, side by side

The real servers do what the checker predicted, step by step: each flawed design of the gallery that
is run here ends on real servers in the violation that its model has.

**Question.** The checker finds a shortest path to the flaw of each design in
[the gallery](../gallery.md). Do the real Redis, Redlock and Palisade follow this path? Four of the
seven designs also run with their repair: does it end in a refusal?

## Set-up

{setups}
{commands}
The steps are not written down here again: the run reads the traces in docs/gallery.md, which a test
compares with the checker's output. Each sentence of a trace is mapped to one action: a command to a
server, SIGSTOP and SIGCONT, SIGKILL and a restart, a link that is held, a clock that is set. A step
without an action is an error. After each step the run reads the keys and roles from the servers,
the reports of the clients and the value of the resource, and puts them into the words of the model.
If the state differs from the model's anywhere, the run ends and has failed.

Each client is a process of its own that does one step at a time. A client that was stopped by
SIGSTOP goes on where it was: it writes without another look at its clock. Whether its lease is over
is decided by the machine's monotonic clock. A held link is a TCP forwarder that keeps what both
sides send, and delivers it later.

## Figures

{summary}
![Steps that led to the model's state](prediction/steps.svg)

{stories}## Predicted and seen

{predictions}
## What it means

- The models leave out almost everything about the servers. What they keep is enough: in these
  stories the real servers end where the model does, with the same steps.
- Without a fence, no server makes a mistake in the stories of a pause, and the resource accepts the
  write of an earlier holder. With the fence it answers 409 to the same write, in the same run of
  events.
- A fence that believes every number is broken by one liar, or by one bug. With signed tokens the
  resource answers 403 to the made-up one, and the holder writes.
- Compare-and-delete ends the story of GET, then DEL at its fifth step.
- The stories of a failover, a clock and a crash run without a repair here; the gallery says what it
  takes. [redlock](redlock.md) shows the delayed restart, and that the fence refuses the stale write
  after a crash, too.

## What bounds it

- The order of the steps is forced, and so are delays: nothing here says how often they happen by
  themselves.
- One run per story shows that the trace is possible, not that the model is right in all others.
- Only the shortest trace is run. The checker explores all orders; the run follows one.
"
    );
    Page { markdown, files: vec![("steps.svg".to_owned(), plot(&runs)), ("steps.csv".to_owned(), csv(results))] }
}

fn agreed(run: &Run) -> usize {
    run.steps.iter().filter(|step| step.differences.is_empty()).count()
}

/// A bar for each run: the steps that led to the model's state, those that did not or were not done, and the end.
fn plot(runs: &[&Run]) -> String {
    let most = runs.iter().map(|run| run.length).max().unwrap_or(1) as f64;
    let lane = |run: &&Run| {
        let (agreed, all) = (agreed(run) as f64, run.length as f64);
        let spans = vec![(0.0, agreed, GOOD), (agreed, all, BAD)];
        let name = run.model.strip_prefix("gallery-").unwrap_or(&run.model);
        let name = format!("{name}{}", if run.repaired { ", repaired" } else { "" });
        let spans = spans.into_iter().filter(|(from, to, _)| from < to).collect();
        let (word, colour) = if run.violated() { ("violated", BAD) } else { ("holds", GOOD) };
        let marks = vec![(all, format!("{}: {word}", run.property), colour)];
        Lane { name, spans, marks }
    };
    let lanes: Vec<_> = runs.iter().map(lane).collect();
    timeline("steps", most * 1.6, &lanes, &[("as predicted", GOOD), ("not as predicted", BAD)])
}

fn summary(runs: &[&Run]) -> String {
    let mut table = Table::of(
        "model | design | steps as predicted | property | at the end | writes accepted | 409 | \
         violations in the history",
    );
    for run in runs {
        let count = |of: &dyn Fn(crate::experiments::processes::Counts) -> u64| {
            run.ending.counts.map_or_else(|| "–".to_owned(), |counts| of(counts).to_string())
        };
        table.row([
            format!("`{}`", run.model),
            (if run.repaired { "with the repair" } else { "as it is" }).to_owned(),
            format!("{} of {}", agreed(run), run.length),
            run.property.clone(),
            (if run.violated() { "**violated**" } else { "holds" }).to_owned(),
            count(&|counts| counts.writes),
            count(&|counts| counts.stale_rejections),
            (run.ending.judged.resource.len() + run.ending.judged.service.len()).to_string(),
        ]);
    }
    table.markdown()
}

/// A story's tables.
fn story(run: &Run, runs: &[&Run]) -> String {
    let (title, setup, repair) = words(run);
    let steps = steps(run.steps.iter().enumerate());
    let end = ending(run);
    let repaired = runs.iter().find(|other| other.repaired && other.model == run.model);
    let repaired = repaired.map_or_else(String::new, |repaired| {
        let changed = repaired.steps.iter().enumerate().filter(|(_, step)| step.repaired);
        format!("{repair}\n\n{}\n{}", self::steps(changed), ending(repaired))
    });
    format!("### {title}\n\n{setup}\n\n{steps}\n{end}{repaired}")
}

fn steps<'a>(steps: impl Iterator<Item = (usize, &'a Done)>) -> String {
    let mut table = Table::of("step | predicted by the model | done to the real servers | observed");
    for (index, step) in steps {
        let lines = |changes: &[String]| match changes {
            [] => "no change".to_owned(),
            changes => changes.join("<br>"),
        };
        let mut observed = lines(&step.observed);
        if !step.differences.is_empty() {
            observed = format!("{observed}<br>**not as predicted:** {}", lines(&step.differences));
        }
        let sentence = if step.repaired { "with the repair" } else { step.predicted.sentence.as_str() };
        table.row([
            (index + 1).to_string(),
            format!("*{sentence}*<br>{}", lines(&step.predicted.changes)),
            format!("{} ms: {}", step.at_ms, step.did),
            observed,
        ]);
    }
    table.markdown()
}

/// What was violated, with the sentence of the checkers.
fn ending(run: &Run) -> String {
    let holds = if run.violated() { "is violated" } else { "holds" };
    let shown = match run.ending.counts {
        Some(counts) => {
            let untrusted = match counts.untrusted {
                0 => String::new(),
                untrusted => format!(", without a signature that counts: {untrusted}"),
            };
            format!(
                "writes that the resource accepted: {}, of them stale: {}, refused: {}{untrusted}",
                counts.writes, counts.stale_accepted, counts.stale_rejections
            )
        }
        None => format!("the number of clients that hold the lock is {}", run.holders),
    };
    let judged = run.ending.judged.resource.iter().chain(&run.ending.judged.service).next();
    let judged = judged.map_or_else(
        || "The checkers of histories find no violation.\n\n".to_owned(),
        |sentence| format!("The checkers of histories say:\n\n```\n{sentence}\n```\n\n"),
    );
    format!("*{}* {holds}: {shown}.\n{judged}", run.property)
}

/// A story's title, what its run adds to the model, and its repair.
fn words(run: &Run) -> (&'static str, String, &'static str) {
    let ttl = run.ttl_ms;
    match run.model.as_str() {
        "gallery-redis-failover" => (
            "A key on Redis, and a failover",
            format!(
                "Three Redis: servers 2 and 3 replicate from server 1 through a link that is held from the start.\n\
                 That is the lag of asynchronous replication, made longer. The promotion is what Sentinel sends.\n\
                 The TTL is {ttl} ms. A primary is called old if another one has continued its replication history."
            ),
            "",
        ),
        "gallery-redis-release" => (
            "GET, then DEL",
            format!(
                "One Redis. Client A reaches it through a link, which is held before A sends DEL and passes at\n\
                 step 5. The TTL is {ttl} ms."
            ),
            "**With compare-and-delete**, the same steps. A's script arrives and deletes nothing, so A's next\nrequest is refused:",
        ),
        "gallery-redlock-clock" => (
            "Redlock, and a clock that jumps",
            format!("Five Redis under libfaketime, which moves the wall clock of one. The TTL is {ttl} ms."),
            "",
        ),
        "gallery-redlock-crash" => (
            "Redlock, and a crash",
            format!(
                "Five Redis that keep nothing on the disk (`appendonly no`): a restart finds no key, as after a\n\
                 crash before the next snapshot. The TTL is {ttl} ms."
            ),
            "",
        ),
        "gallery-redlock-pause" => (
            "Redlock, and a client that pauses",
            format!(
                "Five Redis that sync each write. The TTL is {ttl} ms. Client A takes the time, and then waits\n\
                 {} ms before each of its requests, so its keys expire one after the other. When it looks at its\n\
                 clock, it also fetches a number from a counter, a sixth Redis: the fencing token. Without the\n\
                 fence, the resource ignores it.",
                run.gap_ms
            ),
            "**With the fence**, the same steps. Steps 1 to 11 have the same outcome; then the resource refuses\nthe write:",
        ),
        "gallery-fencing" => (
            "Any lock with a TTL, and a client that pauses",
            format!(
                "Three nodes of Palisade, which make no mistake. The TTL is {ttl} ms. The grants of the model are\n\
                 numbered from 1; a token of Palisade is larger, and grows with each grant."
            ),
            "**With the fence**, the same steps, and the resource refuses the last one:",
        ),
        "gallery-made-up-token" => (
            "Fencing tokens, and a client that makes one up",
            format!(
                "Three nodes of Palisade with `--sign-grants`, and a resource that checks tokens and believes every\n\
                 number. Client B presents {}. The TTL is {ttl} ms.",
                u64::MAX
            ),
            "**With signatures**, the same steps. The resource runs with `--require-signature`, and has nothing but\n\
             the root's public key. It refuses B's number and accepts A's signed token:",
        ),
        _ => ("A story of the gallery", format!("The TTL is {ttl} ms."), "**With the repair**:"),
    }
}

fn csv(results: &Results<Figures>) -> String {
    let mut table =
        Table::of("backend | model | repaired | step | at_ms | sentence | predicted | done | observed | differences");
    for run in &results.runs {
        for story in &run.figures.runs {
            for (index, step) in story.steps.iter().enumerate() {
                table.row([
                    run.backend.clone(),
                    story.model.clone(),
                    story.repaired.to_string(),
                    (index + 1).to_string(),
                    step.at_ms.to_string(),
                    step.predicted.sentence.clone(),
                    step.predicted.changes.join("; "),
                    step.did.clone(),
                    step.observed.join("; "),
                    step.differences.join("; "),
                ]);
            }
        }
    }
    table.csv()
}
