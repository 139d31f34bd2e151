//! The page of experiment `redlock`.

use super::{Fault, Figures, RedlockClient, Round, Tokens, Writes};
use crate::report::plot::{BAD, COLOURS, GOOD, Lane, timeline};
use crate::report::table::{Table, ms};
use crate::report::{Page, Results, Run};
use crate::resource::rule::Fence;

const FAULTS: [Fault; 6] = [
    Fault::MinorityPartition,
    Fault::MajorityPartition,
    Fault::SyncedCrash,
    Fault::DelayedRestart,
    Fault::Pause,
    Fault::Crash,
];

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (grants, writes) = (grants(results), writes(results));
    let markdown = format!(
        "# Redlock under partition, pause and crash

A majority of instances does not prevent two owners: an instance that forgets its key is enough, and
so is an owner that is paused. The fence refuses the earlier owner's write, but only with tokens
from one counter. Redlock's own numbers are no fencing tokens.

**Question.** Client A is granted the lock by instances 1, 2 and 3 of five, because it cannot reach
4 and 5. When is client B granted the lock, too, and what does the resource do with both writes?

## Set-up

{setups}
{commands}
| fault | what happens |
|---|---|
| minority partition | A cannot reach instances 4 and 5; B reaches all |
| majority partition | A cannot reach instances 3, 4 and 5; B reaches all |
| crash with sync | instance 3 is killed by SIGKILL and started again at once; `appendfsync always` |
| crash, delayed restart | as the next one, but instance 3 stays away until the TTL has passed |
| pause | A is stopped by SIGSTOP until its lease is over and its key at instance 3 is gone; B reaches 3, 4 and 5 |
| crash without sync | instance 3 is killed and started again at once; `appendonly no` |

A partition is a link that is held between one client and one instance: nothing arrives, and nothing
is closed. An instance that does not answer within 200 ms counts as out of reach. The clients are
processes of their own, with the algorithm of Redlock's documentation, its validity time included.
Where two owners are predicted, both write, B first. Before that, A has failed three times, because
it reached only instances 1 and 2, as happens under contention.

Tokens come from one of two sources. *Redlock's own* is the greatest of the counters of the
instances that granted the lock. *One counter* is a sixth Redis that syncs each write, which an
owner asks when it has the lock.

## Figures

{grants}
*Two holders* counts the rounds in which B was granted the lock before the end of A's lease, by A's
clock, which is right.

{writes}
`stale writes` counts the rounds in which A's write was accepted after B's, as the value shows. The
resource counts one only if the token tells it.

![Timeline of a pause and a crash](redlock/timeline.svg)

## Predicted and seen

{predictions}
## What it means

- A partition alone breaks nothing. With a majority out of reach, A gets no lock, which is right.
- A crash breaks nothing if each instance syncs each write, or if a crashed instance stays away for
  the longest TTL. Both must be set up; the defaults of Redis do neither. Then two owners hold the
  lock while both leases run, and no clock is wrong.
- A pause breaks no promise of the lock: B is granted it after A's lease. A does not know that.
- In both cases the fence keeps the resource right, with tokens from one counter. Such a counter
  must survive what Redlock was built to survive; then it could keep the lock, too.
- With Redlock's own numbers the fence accepts A's stale write. Failed attempts use up numbers at
  the instances that they reach, so A's number is higher than that of B, which was granted the lock
  later.

The same two flaws as the checker's prediction beside a run: [prediction](prediction.md).

## What bounds it

- The faults are forced. How often they meet is not measured.
- `appendonly no` stands for the writes that a crash loses: SIGKILL alone does not lose what Redis
  has given to the system.
- All clocks are right here. A clock that jumps has the effect of a crash without sync.
"
    );
    let timeline = results.runs.first().map(plot).unwrap_or_default();
    let files = vec![("timeline.svg".to_owned(), timeline), ("rounds.csv".to_owned(), csv(results))];
    Page { markdown, files }
}

fn grants(results: &Results<Figures>) -> String {
    let mut table = Table::of("fault | rounds | A granted | B refused while A's lease ran | B granted | two holders");
    for fault in FAULTS {
        let rounds: Vec<_> = all(results).filter(|round| round.fault == fault).collect();
        let count = |of: &dyn Fn(&Round) -> bool| rounds.iter().filter(|round| of(round)).count().to_string();
        table.row([
            name(fault).to_owned(),
            rounds.len().to_string(),
            count(&|round| round.a.granted_us.is_some()),
            count(&Round::refused_in_time),
            count(&|round| round.b.granted_us.is_some()),
            count(&Round::two_holders),
        ]);
    }
    table.markdown()
}

fn writes(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "fault | fence | tokens | rounds | A's token, B's token | accepted writes | stale writes | 409 | \
         counted as stale by the resource",
    );
    for fault in [Fault::Pause, Fault::Crash] {
        for (fence, tokens) in [(Fence::Off, Tokens::Counter), (Fence::On, Tokens::Own), (Fence::On, Tokens::Counter)] {
            let wanted = Some(Writes { fence, tokens });
            let rounds: Vec<_> = all(results).filter(|round| (round.fault, round.writes) == (fault, wanted)).collect();
            let Some(first) = rounds.first() else { continue };
            let sum = |of: &dyn Fn(&Round) -> u64| rounds.iter().map(|round| of(round)).sum::<u64>().to_string();
            let counts = |round: &Round| round.counts.unwrap_or_default();
            table.row([
                name(fault).to_owned(),
                fence.name().to_owned(),
                source(tokens).to_owned(),
                rounds.len().to_string(),
                format!("{}, {}", number(first.a.token), number(first.b.token)),
                sum(&|round| counts(round).writes),
                sum(&|round| u64::from(round.stale_write())),
                sum(&|round| counts(round).stale_rejections),
                sum(&|round| counts(round).stale_accepted),
            ]);
        }
    }
    table.markdown()
}

/// The first round of a pause and of a crash, without the fence and with it.
fn plot(run: &Run<Figures>) -> String {
    let (mut lanes, mut end) = (Vec::new(), 1.0_f64);
    for fault in [Fault::Pause, Fault::Crash] {
        for fence in [Fence::Off, Fence::On] {
            let wanted = Some(Writes { fence, tokens: Tokens::Counter });
            let Some(round) = run.figures.rounds.iter().find(|it| (it.fault, it.writes) == (fault, wanted)) else {
                continue;
            };
            let seconds = |us: u64| us as f64 / 1e6;
            let last = [round.a.written_us, round.b.written_us].into_iter().flatten().map(seconds).fold(0.0, f64::max);
            end = end.max(last);
            for (owner, result) in [("A", &round.a), ("B", &round.b)] {
                let lane = format!("{}, fence {}: {owner}", name(fault), fence.name());
                let mut lane = Lane { name: lane, spans: Vec::new(), marks: Vec::new() };
                if let (Some(from), Some(until)) = (result.granted_us, result.lease_until_us) {
                    // The lease ends after the last write of a crash: the plot does not show its end.
                    lane.spans.push((seconds(from), seconds(until).min(last + 0.4), COLOURS[0]));
                }
                if let (Some((from, to)), "A") = (round.stopped_us, owner) {
                    let from = result.lease_until_us.map_or(from, |until| from.max(until));
                    lane.spans.push((seconds(from), seconds(to), COLOURS[1]));
                }
                if let Some(at) = result.written_us {
                    let accepted = round.accepted.iter().any(|name| name == owner);
                    let word = if accepted { "accepted" } else { "refused" };
                    let colour = if owner == "A" && accepted { BAD } else { GOOD };
                    lane.marks.push((seconds(at), format!("token {} {word}", number(result.token)), colour));
                }
                lanes.push(lane);
            }
        }
    }
    let legend = [("lease", COLOURS[0]), ("stopped, no lease", COLOURS[1])];
    timeline("seconds since the beginning of the case", end * 1.25, &lanes, &legend)
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "fault | fence | tokens | round | ttl_ms | a_granted_ms | a_lease_until_ms | a_number | a_token | \
         a_written_ms | b_refused_ms | b_granted_ms | b_number | b_token | b_written_ms | accepted | two_holders | \
         stale_write | rejections | violations_service | violations_resource",
    );
    for round in all(results) {
        let RedlockClient { granted_us, lease_until_us, number: a_number, token, written_us, .. } = &round.a;
        let at = |us: &Option<u64>| us.map_or_else(String::new, ms);
        table.row([
            name(round.fault).to_owned(),
            round.writes.map_or("", |writes| writes.fence.name()).to_owned(),
            round.writes.map_or("", |writes| source(writes.tokens)).to_owned(),
            round.round.to_string(),
            round.ttl_ms.to_string(),
            at(granted_us),
            at(lease_until_us),
            number(*a_number),
            number(*token),
            at(written_us),
            at(&round.b.refused_us),
            at(&round.b.granted_us),
            number(round.b.number),
            number(round.b.token),
            at(&round.b.written_us),
            round.accepted.join(" "),
            round.two_holders().to_string(),
            round.stale_write().to_string(),
            round.counts.map_or_else(String::new, |counts| counts.stale_rejections.to_string()),
            round.judged.service.len().to_string(),
            round.judged.resource.len().to_string(),
        ]);
    }
    table.csv()
}

fn all(results: &Results<Figures>) -> impl Iterator<Item = &Round> {
    results.runs.iter().flat_map(|run| &run.figures.rounds)
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

fn source(tokens: Tokens) -> &'static str {
    match tokens {
        Tokens::Own => "Redlock's own",
        Tokens::Counter => "one counter",
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::MinorityPartition => "minority partition",
        Fault::MajorityPartition => "majority partition",
        Fault::SyncedCrash => "crash with sync",
        Fault::DelayedRestart => "crash, delayed restart",
        Fault::Pause => "pause",
        Fault::Crash => "crash without sync",
    }
}
