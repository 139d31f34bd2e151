//! The page of experiment `pause`.

use super::super::lanes::{PausedRound, paused_rounds};
use super::{Figures, Round};
use crate::event::Event;
use crate::report::table::{Table, ms};
use crate::report::{Page, Results, Run};
use crate::resource::rule::Fence;
use crate::worker::pause::How;

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (ttl, pause) = results.runs.first().map_or((0, 0), |run| (run.figures.ttl_ms, run.figures.pause_ms));
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (summary, values) = (summary(results), values(results));
    let plots: String =
        results.runs.iter().map(|run| format!("![Timeline of {0}](pause/{0}.svg)\n\n", run.backend)).collect();
    let markdown = format!(
        "# A pause longer than the TTL

A lock with a TTL does not protect a resource from a holder that is paused. The fencing token does,
on every lock service whose tokens grow.

**Question.** Worker a acquires the lock, reads the value, is paused for {pause} ms between acquire
and write, and writes. The TTL is {ttl} ms. Worker b waits for the same lock, reads, writes and
releases. What does the resource hold at the end?

## Set-up

{setups}
{commands}
Each worker and the resource is a process of its own. The pause is a sleep of the job, or a real
SIGSTOP of the process with a SIGCONT after it. Locks are not renewed, and all times are those of
one machine's monotonic clock. The resource syncs each accepted write before it answers. The write
is a read-modify-write: a worker puts back the value that it has read, with a line of its own. So
the value is *whole* if it has the line of each accepted write, and *corrupted* otherwise.

`palisade-signed` is Palisade with `--sign-grants` and a resource with `--require-signature`: it
accepts no number without the cluster's signature. [prediction](prediction.md) shows the client that
this is for, which makes a token up.

Two histories are recorded and judged by the checkers of docs/conformance/histories.md: the
workers' (grants, releases and accesses), and the same grants with the accesses as the resource saw
them.

## Figures

{summary}
`stale writes` is `resource_stale_writes_accepted_total`, `409` is
`resource_stale_token_rejections_total`, both read from the resource's `/metrics`. `violations` is
the number that the checkers found in the workers' history and in the resource's.

The values at the end of the first round with a stop:

{values}
{plots}## Predicted and seen

{predictions}
## What it means

- The lock service is right in every round in which the checkers accuse it of nothing: it grants
  the lock to b after a's lease has ended. The mistake is a's belief that it still holds the lock,
  and no lock service can correct the belief of a process that does not run.
- Without the fence, the resource accepts a's write after b's. The line of b, which the resource had
  acknowledged, is lost.
- With the fence, the resource compares two numbers. It refuses a's write, and needs no clock and no
  connection to the lock service for that.
- A signature does not help against a pause: a's token is genuine, and stale. The fence refuses it
  all the same.
- a's release changes nothing on any backend: the lock is not a's any more.

## What bounds it

- The pauses are far longer than the TTL, so the outcome does not depend on timing. What happens
  when they are about as long is measured in [renew](renew.md).
- ZooKeeper's client renews its session by itself as long as its process runs, and so does
  Palisade's client. The workers here use both without that (`--renewal on-request`), so that a
  sleep means the same on all backends. With automatic renewal only the stop has this effect.
- Redlock has no fencing token. The number that is used here grows in these rounds because all five
  servers answer; a crash or a partition can repeat it or make it fall.
- The resource must be able to compare and store the token with the write, in one step. A resource
  that cannot do so gets nothing from fencing tokens.
"
    );
    let mut files: Vec<_> = results.runs.iter().map(|run| (format!("{}.svg", run.backend), plot(run))).collect();
    files.push(("rounds.csv".to_owned(), csv(results)));
    Page { markdown, files }
}

/// The rounds of each case, added up.
fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | pause | fence | rounds | accepted writes | stale writes | 409 | whole values | \
         violations, workers | violations, resource",
    );
    for run in &results.runs {
        for (how, fence) in cases(run) {
            let rounds: Vec<_> = case(run, how, fence).collect();
            let sum = |of: &dyn Fn(&Round) -> u64| rounds.iter().map(|round| of(round)).sum::<u64>().to_string();
            table.row([
                run.backend.clone(),
                how.name().to_owned(),
                fence.name().to_owned(),
                rounds.len().to_string(),
                sum(&|round| round.counts.writes),
                sum(&|round| round.counts.stale_accepted),
                sum(&|round| round.counts.stale_rejections),
                sum(&|round| u64::from(round.whole())),
                sum(&|round| round.workers_judged.resource.len() as u64),
                sum(&|round| round.resource_judged.resource.len() as u64),
            ]);
        }
    }
    table.markdown()
}

fn values(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | fence | accepted writes, in their order | value at the end | ");
    for run in &results.runs {
        for fence in [Fence::Off, Fence::On] {
            let Some(round) = case(run, How::Stop, fence).next() else { continue };
            let mut writes: Vec<_> =
                round.a.iter().map(|line| ("a", line)).chain(round.b.iter().map(|line| ("b", line))).collect();
            writes.sort_by_key(|(_, line)| line.clock_us);
            let writes = writes.iter().filter_map(|(owner, line)| match line.event {
                Event::Written { token, .. } => Some(format!("{owner} with token {token}")),
                _ => None,
            });
            let value = round.value.trim_end().replace('\n', "`, `");
            let whole = if round.whole() { "whole" } else { "**corrupted**" };
            table.row([
                run.backend.clone(),
                fence.name().to_owned(),
                writes.collect::<Vec<_>>().join(", "),
                format!("`{value}`"),
                whole.to_owned(),
            ]);
        }
    }
    table.markdown()
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | pause | fence | round | granted_ttl_ms | a_token | b_token | a_paused_ms | b_waited_ms | a_write | \
         writes | stale_writes | rejections | whole | violations_workers | violations_resource | violations_service",
    );
    for run in &results.runs {
        for round in &run.figures.rounds {
            let (mut tokens, mut waited, mut ttl) = (Vec::new(), 0, 0);
            for line in round.a.iter().chain(&round.b) {
                if let Event::Acquired { token, waited_us, ttl_ms } = line.event {
                    tokens.push(token.to_string());
                    (waited, ttl) = (waited_us, ttl_ms);
                }
            }
            tokens.resize(2, String::new());
            let [a_token, b_token] = [tokens[0].clone(), tokens[1].clone()];
            let paused = round.a.iter().find_map(|line| match line.event {
                Event::Resumed { paused_us } => Some(paused_us),
                _ => None,
            });
            table.row([
                run.backend.clone(),
                round.how.name().to_owned(),
                round.fence.name().to_owned(),
                round.round.to_string(),
                ttl.to_string(),
                a_token,
                b_token,
                paused.map_or_else(String::new, ms),
                ms(waited),
                (if round.refused() { "refused" } else { "accepted" }).to_owned(),
                round.counts.writes.to_string(),
                round.counts.stale_accepted.to_string(),
                round.counts.stale_rejections.to_string(),
                round.whole().to_string(),
                round.workers_judged.resource.len().to_string(),
                round.resource_judged.resource.len().to_string(),
                (round.workers_judged.service.len() + round.resource_judged.service.len()).to_string(),
            ]);
        }
    }
    table.csv()
}

/// The first round of each case.
fn plot(run: &Run<Figures>) -> String {
    let rounds = cases(run).into_iter().filter_map(|(how, fence)| {
        let round = case(run, how, fence).next()?;
        let name = format!("{}, fence {}", how.name(), fence.name());
        Some(PausedRound { name, lines: [&round.a, &round.b], stale: false })
    });
    paused_rounds(&run.backend, rounds)
}

fn cases(run: &Run<Figures>) -> Vec<(How, Fence)> {
    let mut cases: Vec<_> = run.figures.rounds.iter().map(|round| (round.how, round.fence)).collect();
    cases.dedup();
    cases
}

fn case(run: &Run<Figures>, how: How, fence: Fence) -> impl Iterator<Item = &Round> {
    run.figures.rounds.iter().filter(move |round| round.how == how && round.fence == fence)
}
