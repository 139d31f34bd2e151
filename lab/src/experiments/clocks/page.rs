//! The page of experiment `clocks`.

use super::super::lanes::{end_us, lane, seconds};
use super::{Clock, ClockCase, Contest, Figures, JUMP_S, LATE_MS, Leases, RATE, Round, TTL_MS};
use crate::report::plot::{BAD, COLOURS, GREY, Lane, timeline};
use crate::report::table::{Table, median, ms};
use crate::report::{Page, Results, Run};
use crate::resource::rule::Fence;

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (summary, clocks) = (summary(results), clocks(results));
    let plots: String =
        testable(results).map(|run| format!("![Timeline of {0}](clocks/{0}.svg)\n\n", run.backend)).collect();
    let (ttl, late) = (TTL_MS / 1000, LATE_MS / 1000);
    let markdown = format!(
        "# Clocks that jump or run fast

Redis counts a lock's TTL by its wall clock. A jump ahead ends locks early, on a majority of
Redlock's instances too, and so does a clock that runs fast: two clients hold the lock, and the
fence refuses the stale write. Palisade and ZooKeeper count by monotonic clocks, which do not move
with the wall clock.

**Question.** A client holds a lock with a TTL of {ttl} s, and writes and releases within it. What
happens if the wall clocks of some servers jump by {JUMP_S} s meanwhile, differ all the time, or run
{RATE} times as fast?

## Set-up

{setups}
{commands}
Servers run under libfaketime: a file sets each server's wall clock off while it runs. Monotonic
clocks stay as they are (`FAKETIME_DONT_FAKE_MONOTONIC=1`), as they do when an operator or NTP sets
a machine's clock. Clients and the resource have the machine's own clock.

The holder acquires the lock and reads the value. The clocks are set 0.3 s later, and another client
asks for the lock at once: granted, it writes and releases. The holder writes and releases 2.5 s
after the clocks were set. All of that lies within its TTL, so the holder makes no mistake. The
cases:

- *Skew*: clocks differ from before the grant, and do not jump.
- *Ahead*: a minority, a majority or all of the servers jump ahead; the leader first, if there is
  one.
- *Back*: all servers jump back, and the holder neither writes nor releases, as if it were killed.
  The other client waits for {ttl} s and {late} s more.
- *Fast*: all clocks run {RATE} times as fast, from the moment at which they would have jumped: their
  offset grows every 20 ms.

Each server is asked for its time after the clocks were set, and at the end of the round if they run
fast. Redis answers with it; etcd, ZooKeeper
and Palisade are made to write a line with it into their logs.

## Figures

{summary}
`two holders` counts locks that the other client was granted within the TTL of a holder that had not
released it. `stale writes` is `resource_stale_writes_accepted_total`, `409` is
`resource_stale_token_rejections_total`. `violations` are those that the checkers found in the
history: of the lock service, and of the resource. `waited` is the time from the holder's request to
the other client's grant; a dash means that there was none.

{clocks}
{plots}## Predicted and seen

{predictions}
## What it means

- Redis notes the wall-clock time at which a key ends. If the clock passes that time early, the lock
  is free early. One instance is enough for a single Redis; Redlock breaks when a majority jumps,
  and survives a minority.
- Redlock's allowance for clock drift is a part of the TTL (1% and 2 ms). It covers clocks that run
  at slightly different rates, which its description assumes, and neither a jump nor a clock that
  gains more than 1%.
- Constant differences do no harm: a TTL is a length, and each server adds it to its own time.
- A jump back blocks the lock of a crashed holder for as long as the jump is, beyond its TTL.
- With the fence, the resource refuses the stale write in each of these rounds: the comparison of
  two tokens needs no clock. Redlock's number grows here because all instances counted the first
  grant; it is no fencing token (see [pause](pause.md)).
- Palisade's leases count in cluster time, which the leader takes from its monotonic clock.
  ZooKeeper counts sessions by Java's `System.nanoTime`. Both services show the jump in their logs,
  and grant the lock after its release or its TTL.

## What bounds it

- **etcd is not testable by this method.** Go reads the clock without the C library, so libfaketime
  does not reach it: the second table shows servers that notice nothing. Their rounds say nothing
  about clocks, and are in the CSV file only. The kernel's clock would have to be set, which moves
  all programs of the machine.
- Only wall clocks are set. A monotonic clock that stands still, jumps or runs at another rate, as in
  a virtual machine that is suspended, is another fault, and would touch Palisade and ZooKeeper: a
  leader whose monotonic clock gains ends leases early ([protocol](../protocol.md)). libfaketime
  0.9.10 cannot show it: with the monotonic clock, it changes waits so that no Palisade node starts.
  The [simulation](../conformance/simulation.md) has nodes with such clocks.
- {RATE} times as fast is far beyond what a broken oscillator does. A clock that gains a part p ends a
  lease after TTL / (1 + p): the effect is the same, and hard to hit in a short run.
- A jump of {JUMP_S} s is far above the TTL, so the outcome does not depend on timing. A smaller jump
  shortens leases by its length. NTP slews small differences, and jumps for large ones.
- libfaketime 0.9.10 takes the ends of Java's waits for wall-clock times, so that ZooKeeper spins
  and hardly answers. `FAKETIME_FORCE_MONOTONIC_FIX=0` ends that; ZooKeeper runs here with it.
- ZooKeeper's and Palisade's leases are not renewed here, as on all pages.
"
    );
    let mut files: Vec<_> = testable(results).map(|run| (format!("{}.svg", run.backend), plot(run))).collect();
    files.push(("rounds.csv".to_owned(), csv(results)));
    Page { markdown, files }
}

fn rounds(figures: &Figures, case: ClockCase) -> impl Iterator<Item = &Round> {
    figures.rounds.iter().filter(move |round| round.case == case)
}

/// The runs that show something.
fn testable(results: &Results<Figures>) -> impl Iterator<Item = &Run<Figures>> {
    results.runs.iter().filter(|run| run.figures.leases != Leases::Untestable)
}

/// A row for each backend, case and rule.
fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | clocks | fence | rounds | two holders | stale writes | 409 | corrupted values | \
         violations, service | violations, resource | waited, median, ms",
    );
    for Run { backend, figures, .. } in testable(results) {
        for case in ClockCase::all(figures.servers) {
            for fence in [Fence::Off, Fence::On] {
                let contests = rounds(figures, case).flat_map(|round| &round.contests);
                let contests: Vec<_> = contests.filter(|contest| contest.fence == fence).collect();
                if contests.is_empty() {
                    continue;
                }
                let sum =
                    |of: &dyn Fn(&Contest) -> u64| contests.iter().map(|contest| of(contest)).sum::<u64>().to_string();
                let mut waited: Vec<_> = contests.iter().filter_map(|contest| contest.waited_us()).collect();
                waited.sort_unstable();
                table.row([
                    backend.clone(),
                    case.describe(figures.servers),
                    fence.name().to_owned(),
                    contests.len().to_string(),
                    sum(&|contest| u64::from(contest.two_holders())),
                    sum(&|contest| contest.counts.stale_accepted),
                    sum(&|contest| contest.counts.stale_rejections),
                    sum(&|contest| u64::from(!contest.whole())),
                    sum(&|contest| contest.judged.service.len() as u64),
                    sum(&|contest| contest.judged.resource.len() as u64),
                    median(&waited, u64::midpoint).map_or_else(|| "–".to_owned(), ms),
                ]);
            }
        }
    }
    table.markdown()
}

/// The clocks of each backend's servers, with the largest difference between what was set and seen.
fn clocks(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | times that clocks were set | largest error of what servers show, s | ");
    for Run { backend, figures, .. } in &results.runs {
        let moved: Vec<_> =
            figures.rounds.iter().flat_map(|round| &round.clocks).filter(|clock| clock.set_ms != 0).collect();
        let error = |clock: &&Clock| clock.seen_ms.abs_diff(clock.set_ms);
        let largest = moved.iter().map(error).max().unwrap_or_default();
        let seen = match figures.leases {
            Leases::Untestable => "servers notice nothing: **not testable**",
            Leases::WallClock | Leases::Monotonic => "servers show the offset",
        };
        table.row([
            backend.clone(),
            moved.len().to_string(),
            format!("{}.{}", largest / 1000, largest % 1000 / 100),
            seen.to_owned(),
        ]);
    }
    table.markdown()
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | clocks | round | fence | offsets_set_ms | offsets_seen_ms | two_holders | waited_ms | \
         stale_accepted | stale_rejections | whole",
    );
    for Run { backend, figures, .. } in &results.runs {
        for round in &figures.rounds {
            let list = |of: &dyn Fn(&Clock) -> i64| {
                round.clocks.iter().map(|clock| of(clock).to_string()).collect::<Vec<_>>().join(" ")
            };
            for contest in &round.contests {
                table.row([
                    backend.clone(),
                    round.case.describe(figures.servers),
                    round.round.to_string(),
                    contest.fence.name().to_owned(),
                    list(&|clock| clock.set_ms),
                    list(&|clock| clock.seen_ms),
                    contest.two_holders().to_string(),
                    contest.waited_us().map(ms).unwrap_or_default(),
                    contest.counts.stale_accepted.to_string(),
                    contest.counts.stale_rejections.to_string(),
                    contest.whole().to_string(),
                ]);
            }
        }
    }
    table.csv()
}

/// The first round in which all clocks jump ahead, with the last rule.
fn plot(run: &Run<Figures>) -> String {
    let all = ClockCase::Ahead(run.figures.servers);
    let Some(round) = rounds(&run.figures, all).next() else { return String::new() };
    let Some(contest) = round.contests.last() else { return String::new() };
    let to = seconds(end_us(&contest.holder).max(end_us(&contest.other))) + 0.8;
    let mut holder = lane(&contest.holder, to, COLOURS[0]);
    let (what, colour) = if contest.holder.refused() { ("refused", BAD) } else { ("written", COLOURS[0]) };
    holder.marks.push((seconds(end_us(&contest.holder)), what.to_owned(), colour));
    let jump = vec![(seconds(round.set_us), format!("all jump ahead by {JUMP_S} s"), BAD)];
    let clocks = Lane { name: "clocks of the servers".to_owned(), spans: Vec::new(), marks: jump };
    let other = lane(&contest.other, to, if contest.two_holders() { BAD } else { COLOURS[0] });
    timeline("seconds", to, &[clocks, holder, other], &[("holds", COLOURS[0]), ("second holder", BAD), ("waits", GREY)])
}
