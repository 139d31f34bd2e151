//! The page of `ten-million`.

use super::watch::Sample;
use super::{Case, Figures, KEYS};
use crate::report::plot::{Axes, Series, series};
use crate::report::table::Table;
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (fills, expiries, notes, plots) = (fills(results), expiries(results), notes(results), plots(results));
    let keys = results.runs.iter().map(|run| run.figures.keys).min().unwrap_or(0);
    let trial = if keys < KEYS {
        format!("\n**A trial with {keys} keys: no basis for a comparison.**\n")
    } else {
        String::new()
    };
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

| case | locks |
|---|---|
| redis, active | `SET key owner NX PX ttl` in pipelines, synced before the answers; active expiry at its default pace |
| redis, lazy | a 20th of the keys in a Redis in memory whose active expiry was turned off (`DEBUG SET-ACTIVE-EXPIRE 0`) |
| etcd, lease-each | a lease and a key for each lock, for a 200th of the keys |
| etcd, lease-shared | up to 1,000 locks on one lease, 128 in a transaction |
| redlock, majority | a key in five Redis for each lock, synced, for a 100th of the keys; by the lab's lock library, 32 at a time |
| zookeeper, session-each | a session and an ephemeral node for each lock, for a 1,000th of the keys; in the same way |
| palisade, session-shared | up to 10,000 locks on one session, each acquired by a request of its own |
| palisade, session-each | a session for each lock, for a 20th of the keys |

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
When all TTLs had passed:

{expiries}
{plots}
*Files* in the plots are the lengths of the files in the data directory. Logs are preallocated, so
that they do not show what a lock takes on the disk.

Limits and steps:

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
  less than 1 GiB of memory left. The column *ended* says which of them it was.
- Memory is the resident memory of the process. Allocators and runtimes keep freed memory, so it
  falls late or not at all. ZooKeeper's is a Java heap, which does not show what a lock takes.
- No history is recorded, and the checkers of histories judge nothing here: in a fill one program
  acquires each key once, so no two clients contend for a lock; and to record each acquire would
  take memory and time from the servers.
"
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
            // Locks that ended before the last TTL was over were removed while others were acquired.
            gone.filter(|_| at.locks > 0)
                .map_or_else(String::new, |seconds| format!("{:.0}", case.taken as f64 / seconds)),
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
