//! The page of experiment `tokens`.

use super::{CLIENTS, Figures, ROUNDS, SHARDS, TokensCase};
use crate::report::plot::{COLOURS, Lane, timeline};
use crate::report::table::{Table, median_of, ms};
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (cases, errors) = (cases(results), errors(results));
    let markdown = format!(
        "# Where tokens come from

A fencing token must grow with every grant of its key. A counter of the key's own does that and can
never be deleted; a common counter leaves one key behind, and a number that the store gives its
writes anyway leaves none.

**Question.** What do the sources of fencing tokens cost: a counter for each key, {SHARDS} counters,
one counter for all, and the number of the store's own write? What stays behind, and which tokens
can be compared?

## Set-up

{setups}
{commands}
{CLIENTS} clients with connections of their own lock and release keys at random, each attempt after
its last one, so that locks are seldom waited for and a common counter is written by every grant.
The sources take turns within a round, and the next round has them in the other order; {ROUNDS}
rounds, if the command does not state another number. When all locks are released, the counters are
counted.

## Figures

{cases}
`ratio` is the median of the rounds' ratios to the backend's first source. `out of order` counts
grants whose token is not above that of each grant, of any key, that had ended before they were
asked for. `left` are the counters that exist when no lock is held; their bytes are Redis's `MEMORY
USAGE`, and the lengths of the counters' names in etcd. `violations` are those that the checkers
found in the histories, each key judged by itself.

![Grants a second](tokens/grants.svg)

{errors}
## Predicted and seen

{predictions}
## What it means

- A common counter is no bottleneck where the store does one thing after the other anyway: Redis
  executes its scripts on one thread, and etcd applies its transactions in the order of its log.
- A counter for each key stays for ever. If an operator deletes it, tokens start again at 1, and a
  resource that has seen a higher one refuses every later holder. A counter with a TTL is deleted,
  too.
- Only tokens of a common source can be compared between keys. A resource that several locks guard,
  or that keeps one highest token for all its keys, needs them.
- The number of a write costs nothing, and is read with the answer. Palisade's tokens are positions
  in its log, etcd's are revisions, ZooKeeper's are transaction ids.

## What bounds it

- A Redis Cluster executes a script only if all its keys are in one slot. A counter for each key can
  be put into its lock's slot; a common counter cannot.
- Redlock's numbers are no fencing tokens ([redlock](redlock.md)), and etcd's lock service has only
  the revision, as `etcd` here.
- Each attempt opens a session of its own with ZooKeeper and with Palisade, and grants a lease of
  its own with etcd. With Redis it is one script. So only the sources of one backend can be compared
  here; [peers](peers.md) compares the lock services.
- All clients are tasks of one process, which shares the machine with the servers.
"
    );
    Page { markdown, files: vec![("grants.svg".to_owned(), plot(results)), ("cases.csv".to_owned(), csv(results))] }
}

/// A bar for each source: grants a second, the median of the rounds.
fn plot(results: &Results<Figures>) -> String {
    let (mut lanes, mut most, mut legend) = (Vec::new(), 1.0_f64, Vec::new());
    for (number, run) in results.runs.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        legend.push((run.backend.as_str(), colour));
        for case in &run.figures.cases {
            let (rate, _) = medians(case, case);
            most = most.max(rate);
            let name = format!("{}, {}: {rate:.0}", run.backend, case.tokens);
            lanes.push(Lane { name, spans: vec![(0.0, rate, colour)], marks: Vec::new() });
        }
    }
    timeline("grants a second, median of the rounds", most * 1.05, &lanes, &legend)
}

/// The medians of a source: its rate, and its rounds' ratios to the first source.
fn medians(case: &TokensCase, first: &TokensCase) -> (f64, f64) {
    let pairs = case.rates.iter().zip(&first.rates).filter(|(_, first)| **first > 0.0);
    let ratio = median_of(pairs.map(|(rate, first)| rate / first));
    (median_of(case.rates.iter().copied()).unwrap_or_default(), ratio.unwrap_or_default())
}

fn cases(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | tokens | grants/s, median | ratio | acquire p50, ms | p99, ms | grants | failed | keys locked | \
         out of order | left | their bytes | violations",
    );
    for run in &results.runs {
        for case in &run.figures.cases {
            let (rate, ratio) = medians(case, &run.figures.cases[0]);
            let comparable = if case.is_common() { "" } else { ": cannot be compared" };
            table.row([
                run.backend.clone(),
                format!("`{}`", case.tokens),
                format!("{rate:.0}"),
                format!("{ratio:.2}"),
                ms(case.acquire.p50_us),
                ms(case.acquire.p99_us),
                case.acquire.count.to_string(),
                case.failed.to_string(),
                case.locked.to_string(),
                format!("{}{comparable}", case.out_of_order),
                case.left.counters.to_string(),
                case.left.bytes.to_string(),
                case.violations.len().to_string(),
            ]);
        }
    }
    table.markdown()
}

fn errors(results: &Results<Figures>) -> String {
    let lines = results.runs.iter().flat_map(|run| {
        let failed = run.figures.cases.iter().filter_map(|case| Some((&case.tokens, case.error.as_ref()?)));
        failed.map(|(tokens, error)| format!("- {}, `{tokens}`: {error}\n", run.backend)).collect::<Vec<_>>()
    });
    let lines: String = lines.collect();
    if lines.is_empty() {
        "No attempt and no release failed.\n".to_owned()
    } else {
        format!("First errors:\n\n{lines}")
    }
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | tokens | round | grants_per_second | load_average | window_us | keys");
    for run in &results.runs {
        let Figures { load_average, keys, window_us, cases } = &run.figures;
        for case in cases {
            for (round, rate) in case.rates.iter().enumerate() {
                table.row([
                    run.backend.clone(),
                    case.tokens.clone(),
                    round.to_string(),
                    format!("{rate:.3}"),
                    load_average.clone(),
                    window_us.to_string(),
                    keys.to_string(),
                ]);
            }
        }
    }
    table.csv()
}
