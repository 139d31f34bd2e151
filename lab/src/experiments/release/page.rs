//! The page of experiment `release`.

use super::{Figures, How, Round, TTL_MS};
use crate::report::plot::{BAD, GOOD, Lane, timeline};
use crate::report::table::Table;
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (summary, accusation) = (summary(results), accusation(results));
    let markdown = format!(
        "# Releasing a lock that is not yours any more

A release must compare and delete in one step. GET, then DEL, deletes the lock of another owner.

**Question.** Owner a acquires the lock with a TTL of {TTL_MS} ms, and its lease ends before it
releases. b acquires the lock. Then a releases. Does b still hold the lock?

## Set-up

{setups}
{commands}
All owners are in one process, so that the order of the steps is forced. After a's release, c asks
for the lock without waiting, and b renews. If b holds the lock, c is refused and the renewal
succeeds. The history of each round is judged by the checkers of docs/conformance/histories.md.

*GET, then DEL* is the release that many programs contain: GET the key, compare the value with
one's own, then DEL. Here a's lease ends between the two commands, and b acquires the lock in that
gap.

## Figures

{summary}
![Rounds in which b keeps its lock](release/rounds.svg)

{accusation}## Predicted and seen

{predictions}
## What it means

- The gap between GET and DEL is small in practice, but any pause makes it larger, and nothing
  bounds a pause. The outcome is two holders, and neither is told.
- Redis closes the gap with one script that compares and deletes. etcd revokes a lease, ZooKeeper
  deletes a session's own node, and Palisade compares the session and its token: they have no such
  gap.
- A safe release protects the lock of b. It does not protect the resource from a's late write: only
  the fence does (see [pause](pause.md)).

## What bounds it

- The gap is forced here; how often programs hit it is not measured.
"
    );
    Page { markdown, files: vec![("rounds.svg".to_owned(), plot(results)), ("rounds.csv".to_owned(), csv(results))] }
}

/// The rounds of each kind of release on each backend.
fn kinds(results: &Results<Figures>) -> Vec<(&str, How, Vec<&Round>)> {
    let mut kinds = Vec::new();
    for run in &results.runs {
        for how in [How::Safe, How::GetThenDel] {
            let rounds: Vec<_> = run.figures.rounds.iter().filter(|round| round.how == how).collect();
            if !rounds.is_empty() {
                kinds.push((run.backend.as_str(), how, rounds));
            }
        }
    }
    kinds
}

/// A bar for each kind of release: rounds in which it changed nothing for b, and the others.
fn plot(results: &Results<Figures>) -> String {
    let mut most = 1.0_f64;
    let lanes = kinds(results).into_iter().map(|(backend, how, rounds)| {
        let all = rounds.len() as f64;
        let harmless = rounds.iter().filter(|round| round.harmless()).count() as f64;
        most = most.max(all);
        let spans = vec![(0.0, harmless, GOOD), (harmless, all, BAD)];
        let spans = spans.into_iter().filter(|(from, to, _)| from < to).collect();
        Lane { name: format!("{backend}, {}", word(how)), spans, marks: Vec::new() }
    });
    let lanes: Vec<_> = lanes.collect();
    timeline("rounds", most * 1.02, &lanes, &[("b keeps its lock", GOOD), ("a frees b's lock", BAD)])
}

fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | release | rounds | a's release reported success | c was granted the lock beside b | \
         b's renewal found its lock | rounds with violations",
    );
    for (backend, how, rounds) in kinds(results) {
        let count = |of: &dyn Fn(&Round) -> bool| rounds.iter().filter(|round| of(round)).count().to_string();
        table.row([
            backend.to_owned(),
            word(how).to_owned(),
            rounds.len().to_string(),
            count(&|round| round.a_released),
            count(&|round| round.tokens.2.is_some()),
            count(&|round| round.b_renewed),
            count(&|round| !round.judged.service.is_empty()),
        ]);
    }
    table.markdown()
}

/// What the checkers say of the first round with a wrong release.
fn accusation(results: &Results<Figures>) -> String {
    let rounds = results.runs.iter().flat_map(|run| &run.figures.rounds);
    let found = rounds.filter(|round| round.how == How::GetThenDel).find_map(|round| round.judged.service.first());
    found.map_or_else(String::new, |sentence| {
        format!("The checkers' sentence about the first round with GET, then DEL:\n\n```\n{sentence}\n```\n\n")
    })
}

fn csv(results: &Results<Figures>) -> String {
    let mut table =
        Table::of("backend | release | round | a_token | b_token | c_token | a_released | b_renewed | violations");
    for run in &results.runs {
        for round in &run.figures.rounds {
            let (a, b, c) = round.tokens;
            table.row([
                run.backend.clone(),
                word(round.how).to_owned(),
                round.round.to_string(),
                a.to_string(),
                b.to_string(),
                c.map_or_else(String::new, |token| token.to_string()),
                round.a_released.to_string(),
                round.b_renewed.to_string(),
                round.judged.service.len().to_string(),
            ]);
        }
    }
    table.csv()
}

fn word(how: How) -> &'static str {
    match how {
        How::Safe => "the backend's",
        How::GetThenDel => "GET, then DEL",
    }
}
