//! The page of `ten-million`.

use super::watch::Sample;
use super::{Case, Figures, KEYS};
use crate::generate::backends::{
    ETCD_AT_ONCE, ETCD_CONNECTIONS, ETCD_TXN, LIBRARY_AT_ONCE, PALISADE_AT_ONCE, PALISADE_CONNECTIONS,
    REDIS_CONNECTIONS, REDIS_PIPELINE,
};
use crate::generate::fill::SPARE_MEMORY;
use crate::report::plot::{Axes, Series, series};
use crate::report::table::Table;
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (fills, expiries, notes, plots) = (fills(results), expiries(results), notes(results), plots(results));
    let (ended, worse, sampled, judged) = (ended(results), worse(results), sampled(results), judged(results));
    let keys = results.runs.iter().map(|run| run.figures.keys).min().unwrap_or(0);
    let trial = if keys < KEYS {
        format!("\n**A trial with {keys} keys: no basis for a comparison.**\n")
    } else {
        String::new()
    };
    let spare = format!("{:.0}%", 100.0 * SPARE_MEMORY);
    let (etcd_limit, palisade_limit) = (super::etcd::SHARED_LIMIT.as_secs(), super::palisade::LIMIT.as_secs());
    let (redlock_limit, zookeeper_limit) = (super::redlock::LIMIT.as_secs(), super::zookeeper::LIMIT.as_secs());
    let markdown = format!(
        "# Ten million short-lived locks

Locks that are not released end with their TTL. What a lock service takes for them depends on when
it removes what has ended, and not on the TTL.
{trial}
**Question.** What do {keys} locks take in memory, how fast are they acquired, what remains
of them when their TTLs have passed, and where does each system end?

## Set-up

{setups}
{commands}
Keys come from a seed (`palisade-lab gen` acquires the same). A calibration run measures how fast
the system is; the locks then get TTLs that all end at the same moment, some seconds after the last
of them was acquired. etcd's TTLs are whole seconds, rounded up: its locks end up to a second later.
No lock is renewed or released. Samples are of the only server, or of the leader. Each case begins
with newly started servers.

| case | locks | connections × locks in flight on each, at most |
|---|---|---|
| redis, active | `SET key owner NX PX ttl` in pipelines, synced before the answers; active expiry at its default pace | {REDIS_CONNECTIONS} × {REDIS_PIPELINE} |
| redis, lazy | a 20th of the keys in a Redis in memory whose active expiry was turned off (`DEBUG SET-ACTIVE-EXPIRE 0`) | {REDIS_CONNECTIONS} × {REDIS_PIPELINE} |
| etcd, lease-each | a lease and a key for each lock, for a 200th of the keys | {ETCD_CONNECTIONS} × {ETCD_AT_ONCE} |
| etcd, lease-shared | up to 1,000 locks on one lease, {ETCD_TXN} in a transaction | {ETCD_CONNECTIONS} × {ETCD_TXN} |
| redlock, majority | a key in five Redis for each lock, synced, for a 100th of the keys; by the lab's lock library | {LIBRARY_AT_ONCE} × 1, to each Redis |
| zookeeper, session-each | a session and an ephemeral node for each lock, for a 1,000th of the keys; in the same way | {LIBRARY_AT_ONCE} × 1 |
| palisade, session-shared | up to 10,000 locks on one session, each acquired by a request of its own | {PALISADE_CONNECTIONS} × {PALISADE_AT_ONCE} |
| palisade, session-each | a session for each lock, for a 20th of the keys | {PALISADE_CONNECTIONS} × {PALISADE_AT_ONCE} |

The cases differ in the number of locks in flight, and the rates depend on it: the column
`acquired a second` does not compare lock services under the same load.

The locks of Redis have no fencing token here: a token needs a counter for each key, which no TTL
removes. Redlock counts so, and its case shows what stays. Those of etcd have the revision, those of
ZooKeeper the transaction's number, and those of Palisade the token of the grant. So Redis is asked
for less.

## Figures

Bytes for each lock are the growth of the process's memory until the TTLs had passed, divided by the
locks. `used_memory` is what Redis counts itself; for etcd it is the part
of the database that is in use. Locks are the keys, those with a TTL on Redlock, and the ephemeral
nodes on ZooKeeper.

{fills}
{ended}
{worse}
When all TTLs had passed:

{expiries}
{plots}
*Files* in the plots are the lengths of the files in the data directory. Logs are preallocated, so
that they do not show what a lock takes on the disk.

{sampled}Limits and steps:

{notes}
## Predicted and seen

{predictions}
## What it means

- **Redis**: a key whose TTL has passed is no lock any more, and still takes its memory until
  Redis removes it. It does so when a command names the key (lazy), and in cycles of 25 ms at
  most, ten a second (active). Until then `DBSIZE` and `used_memory` count it; with `maxmemory`
  and `noeviction`, Redis would refuse new locks because of expired keys.
- **etcd**: ended leases are revoked at 1,000 a second at most, so very many locks with leases of
  their own stay held long after their TTL. Locks on shared leases end together, in few
  revocations. Each acquire and each release is a revision that stays until compaction; without
  it, the quota is reached by few keys too. Then etcd refuses acquires until the database was
  compacted and defragmented and the alarm was disarmed.
- **Redlock**: each lock is a key in five instances, and a round to all of them. The counters from
  which its numbers come are never removed: what the locks leave grows with each new key.
- **ZooKeeper**: a lock is a session, and no session outlasts `maxSessionTimeout`, so the rate of
  acquires bounds how many unrenewed locks there are at the same time. The container of each key
  outlasts its lock, and ZooKeeper deletes 10,000 of them a minute at most.
- **Palisade**: the leader ends due sessions in sweeps, a bounded number of claims each, so that
  other clients are served meanwhile; that bounds how fast very many locks go. One session holds
  10,000 locks at most, and a cluster has 1,000,000 sessions unless `--max-sessions` says
  otherwise: with a session for each lock, the second limit is where it ends.

## What bounds it

- All servers share one machine with the load generator: three nodes of a replicated system do
  three times the work of one Redis.
- The fills with shared leases and sessions end after {etcd_limit} and {palisade_limit} s
  (`--duration` sets another time); that of Redlock after {redlock_limit} s, and that of ZooKeeper
  after {zookeeper_limit} s, before its first session ends. A fill also ends when the machine has
  less than {spare} of its memory left. The column *ended* says which of them it was.
- Memory is the resident memory of the process. Allocators and runtimes keep freed memory, so it
  falls late or not at all. ZooKeeper's is a Java heap, which does not show what a lock takes.
{judged}"
    );
    let mut files = vec![("cases.csv".to_owned(), csv(results))];
    for (backend, case) in cases(results) {
        files.push((file(backend, case), plot(case)));
    }
    Page { markdown, files }
}

fn cases(results: &Results<Figures>) -> impl Iterator<Item = (&str, &Case)> {
    results.runs.iter().flat_map(|run| run.figures.cases.iter().map(move |case| (run.backend.as_str(), case)))
}

fn file(backend: &str, case: &Case) -> String {
    format!("{backend}-{}.svg", case.name)
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

fn most(case: &Case, value: impl Fn(&Sample) -> u64) -> u64 {
    case.samples.iter().map(value).max().unwrap_or(0)
}

fn fills(results: &Results<Figures>) -> String {
    let mut table = Table::new(&[
        "backend",
        "case",
        "locks",
        "acquired a second",
        "memory at most, MiB",
        "bytes of memory a lock",
        "used, bytes a lock",
        "ended",
    ]);
    for (backend, case) in cases(results) {
        let bytes = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
        let used = case.samples.iter().any(|sample| sample.used.is_some());
        table.row([
            backend.to_owned(),
            case.name.clone(),
            format!("{} of {}", case.taken, case.asked),
            format!("{:.0}", case.rate()),
            mib(most(case, |sample| sample.resident)),
            bytes(case.per_lock(|sample| sample.resident)),
            bytes(case.per_lock(|sample| sample.used.unwrap_or(0)).filter(|_| used)),
            case.ended.clone().unwrap_or_else(|| "complete".to_owned()),
        ]);
    }
    table.markdown()
}

/// What ended the fills that are not complete.
fn ended(results: &Results<Figures>) -> String {
    let lines: String = cases(results)
        .filter_map(|(backend, case)| {
            let (name, taken, asked) = (&case.name, case.taken, case.asked);
            let reason = case.ended.as_ref()?;
            Some(format!(
                "- {backend}, {name}: after {taken} of {asked} locks, at {:.0} a second: {reason}\n",
                case.rate()
            ))
        })
        .collect();
    match lines.is_empty() {
        true => "No fill ended before its last lock.\n".to_owned(),
        false => format!("**What ended the fills** that did not get all their locks:\n\n{lines}"),
    }
}

/// Where a case of another lock service has a better figure than one of Palisade's.
fn worse(results: &Results<Figures>) -> String {
    /// A name, whether more is better, and the figure of a case with its text.
    type Measure = (&'static str, bool, fn(&Case) -> Option<f64>);
    let measures: [Measure; 3] = [
        ("locks acquired a second", true, |case| Some(case.rate())),
        ("bytes of memory a lock", false, |case| case.per_lock(|sample| sample.resident).map(|bytes| bytes as f64)),
        ("locks removed a second", true, removed),
    ];
    let mut lines = String::new();
    for (_, own) in cases(results).filter(|(backend, _)| *backend == "palisade") {
        for (what, more, of) in measures {
            let Some(value) = of(own) else { continue };
            let better = cases(results).filter(|(backend, _)| *backend != "palisade").filter_map(|(backend, case)| {
                let its = of(case).filter(|its| if more { *its > value } else { *its < value })?;
                Some(format!("{backend}, {}: {its:.0}", case.name))
            });
            let better: Vec<_> = better.collect();
            if !better.is_empty() {
                lines += &format!("- {what}, {}: {value:.0}; {}\n", own.name, better.join("; "));
            }
        }
    }
    match (lines.is_empty(), cases(results).any(|(backend, _)| backend == "palisade")) {
        (_, false) => "Palisade was not measured.\n".to_owned(),
        (true, true) => "**Where Palisade is worse**: nowhere in these figures.\n".to_owned(),
        (false, true) => format!("**Where Palisade is worse**, case by case:\n\n{lines}"),
    }
}

/// What the checkers say of the samples.
fn sampled(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | case | keys of the sample | granted to a second client while held | refused to it | \
         granted again later | operations | violations",
    );
    let mut some = false;
    for (backend, case) in cases(results) {
        let Some(sampled) = &case.sampled else { continue };
        some = true;
        let count = |count: Option<u64>| count.map_or_else(|| "not asked".to_owned(), |count| count.to_string());
        table.row([
            backend.to_owned(),
            case.name.clone(),
            sampled.keys.to_string(),
            count(sampled.rivals),
            sampled.refused.to_string(),
            count(sampled.again),
            sampled.operations.to_string(),
            sampled.violations.len().to_string(),
        ]);
    }
    match some {
        true => format!("The histories of a sample of the keys:\n\n{}\n", table.markdown()),
        false => String::new(),
    }
}

/// What of the fills is in a history.
fn judged(results: &Results<Figures>) -> String {
    let missing: Vec<_> = cases(results).filter(|(_, case)| case.sampled.is_none()).collect();
    let mut text = String::new();
    if missing.len() < cases(results).count() {
        text += &format!(
            "- The history of a sample of {} keys of each fill is recorded, and judged key by key: their acquires,\n  \
             a second client that asks for each of them while they are held, and one that asks when all locks have\n  \
             ended. To record each acquire would take memory and time from the servers. The tokens in them are Palisade's\n  \
             and ZooKeeper's own; the other grants are numbered in the order in which the client saw them.\n",
            super::sample::KEYS
        );
    }
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(|(backend, case)| format!("{backend}, {}", case.name)).collect();
        text += &format!("- These runs are older than the histories, and have none: {}.\n", missing.join("; "));
    }
    text
}

/// Locks removed a second when all TTLs had passed; none: not all were removed, or all before.
fn removed(case: &Case) -> Option<f64> {
    let seconds = case.reclaim_ms()?.max(1) as f64 / 1e3;
    // Locks that ended before the last TTL was over were removed while others were acquired.
    case.at_passed().filter(|at| at.locks > 0).map(|_| case.taken as f64 / seconds)
}

fn expiries(results: &Results<Figures>) -> String {
    let mut table = Table::new(&[
        "backend",
        "case",
        "locks that the system still had",
        "used then, MiB",
        "memory then, MiB",
        "all gone after, s",
        "removed a second",
        "used at the end, MiB",
        "memory at the end, MiB",
    ]);
    for (backend, case) in cases(results) {
        let (at, last) =
            (case.at_passed().cloned().unwrap_or_default(), case.samples.last().cloned().unwrap_or_default());
        let used = |sample: &Sample| sample.used.map_or_else(String::new, mib);
        let gone = case.reclaim_ms().map(|ms| ms.max(1) as f64 / 1e3);
        table.row([
            backend.to_owned(),
            case.name.clone(),
            at.locks.to_string(),
            used(&at),
            mib(at.resident),
            gone.map_or_else(|| format!("{} left", last.locks), |seconds| format!("{seconds:.1}")),
            removed(case).map_or_else(String::new, |rate| format!("{rate:.0}")),
            used(&last),
            mib(last.resident),
        ]);
    }
    table.markdown()
}

fn notes(results: &Results<Figures>) -> String {
    let mut table = Table::new(&["backend", "what was done", "what was found"]);
    for run in &results.runs {
        for note in &run.figures.notes {
            table.row([run.backend.clone(), note.what.clone(), note.found.clone()]);
        }
    }
    table.markdown()
}

fn plots(results: &Results<Figures>) -> String {
    let mut text = "The plots show each value in percent of its greatest in the case.\n".to_owned();
    for (backend, case) in cases(results) {
        text.push_str(&format!("\n![{backend}, {}](ten-million/{})\n", case.name, file(backend, case)));
    }
    text
}

/// Each value in percent of its greatest, over time.
fn plot(case: &Case) -> String {
    type Value = fn(&Sample) -> u64;
    let values: [(&str, Value); 4] = [
        ("locks", |sample| sample.locks),
        ("used", |sample| sample.used.unwrap_or(0)),
        ("resident memory", |sample| sample.resident),
        ("files", |sample| sample.disk),
    ];
    let mut lines: Vec<Series> = values
        .into_iter()
        .filter(|(_, value)| most(case, value) > 0)
        .map(|(name, value)| {
            let greatest = most(case, value) as f64;
            let point = |sample: &Sample| (sample.at_ms as f64 / 1e3, 100.0 * value(sample) as f64 / greatest);
            let name = match name {
                "locks" => format!("{name}: {greatest}"),
                _ => format!("{name}: {:.0} MiB", greatest / f64::from(1 << 20)),
            };
            Series { name, points: case.samples.iter().map(point).collect(), line: true }
        })
        .collect();
    let passed = case.passed_ms as f64 / 1e3;
    lines.push(Series {
        name: "all TTLs have passed".to_owned(),
        points: vec![(passed, 0.0), (passed, 100.0)],
        line: true,
    });
    let end = case.samples.last().map_or(1.0, |sample| sample.at_ms as f64 / 1e3).max(passed) * 1.02;
    let axes = Axes {
        x: "seconds".to_owned(),
        y: "percent of the greatest value".to_owned(),
        // Room for the legend.
        x_range: (0.0, end),
        y_range: (0.0, 160.0),
        logarithmic: false,
    };
    series(&axes, &lines)
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::new(&["backend", "case", "at_ms", "locks", "resident", "disk", "used", "other"]);
    for (backend, case) in cases(results) {
        for sample in &case.samples {
            let optional = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
            table.row([
                backend.to_owned(),
                case.name.clone(),
                sample.at_ms.to_string(),
                sample.locks.to_string(),
                sample.resident.to_string(),
                sample.disk.to_string(),
                optional(sample.used),
                optional(sample.other),
            ]);
        }
    }
    table.csv()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::sample::Sampled;
    use super::*;
    use crate::report::Run;
    use crate::report::setup::Setup;

    fn results(cases: [(&str, Case); 2]) -> Results<Figures> {
        let run = |(backend, case): (&str, Case)| Run {
            backend: backend.to_owned(),
            setup: Setup::of("", String::new(), Path::new("/")),
            figures: Figures { keys: 100, cases: vec![case], notes: Vec::new() },
            predictions: Vec::new(),
        };
        Results { runs: cases.map(run).into() }
    }

    fn case(taken: u64, fill_ms: u64) -> Case {
        Case { name: "each".to_owned(), asked: 100, taken, fill_ms, ..Case::default() }
    }

    #[test]
    fn page_has_the_locks_in_flight() {
        let page = page(&results([("palisade", case(100, 1)), ("redis", case(100, 1))])).markdown;
        for row in ["a 20th of the keys | 2 × 500 |", "for a 200th of the keys | 16 × 16 |", " | 4 × 1000 |\n"] {
            assert!(page.contains(row), "{row} is missing in\n{page}");
        }
    }

    #[test]
    fn losses_and_ends_come_from_the_figures() {
        let slow = results([("palisade", case(100, 1_000)), ("redis", case(100, 500))]);
        assert!(
            worse(&slow).ends_with("\n\n- locks acquired a second, each: 100; redis, each: 200\n"),
            "{}",
            worse(&slow)
        );
        assert_eq!(ended(&slow), "No fill ended before its last lock.\n");
        let fast = results([("palisade", case(100, 500)), ("redis", case(100, 1_000))]);
        assert_eq!(worse(&fast), "**Where Palisade is worse**: nowhere in these figures.\n");
        let ended_case = Case { ended: Some("no memory".to_owned()), ..case(40, 1_000) };
        let short = results([("etcd", ended_case), ("redis", case(100, 1_000))]);
        assert!(ended(&short).ends_with("- etcd, each: after 40 of 100 locks, at 40 a second: no memory\n"));
        assert_eq!(worse(&short), "Palisade was not measured.\n");
    }

    #[test]
    fn samples_have_a_table_and_older_runs_are_named() {
        let sampled = Sampled { keys: 10, rivals: Some(0), refused: 10, operations: 30, ..Sampled::default() };
        let new = Case { sampled: Some(sampled), ..case(100, 1) };
        let results = results([("etcd", case(100, 1)), ("redis", new)]);
        assert!(self::sampled(&results).contains("| redis | each | 10 | 0 | 10 | not asked | 30 | 0 |"));
        assert!(judged(&results).ends_with("older than the histories, and have none: etcd, each.\n"));
    }
}
