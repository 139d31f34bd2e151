//! The page of experiment `fenced-stores`.

use super::super::lanes::{PausedRound, paused_rounds};
use super::{Figures, RACES, Race, Round, WRITERS};
use crate::event::{Event, Line};
use crate::report::table::{Table, ms};
use crate::report::{Page, Results, Run};
use crate::resource::rule::Fence;
use crate::stores::Kind;
use crate::worker::pause::How;

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (ttl, pause) = results.runs.first().map_or((0, 0), |run| (run.figures.ttl_ms, run.figures.pause_ms));
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (stores, summary, values, raced) = (stores(results), summary(results), values(results), raced(results));
    let plots: String =
        results.runs.iter().map(|run| format!("![Timeline of {0}](fenced-stores/{0}.svg)\n\n", run.backend)).collect();
    let markdown = format!(
        "# The fence where it bites

Ordinary stores can check a fencing token themselves. A PostgreSQL row does it with one condition in
one statement, an object store with a conditional put.

**Question.** Worker a acquires the lock, reads the value, is paused for {pause} ms between acquire
and write, and writes. The TTL is {ttl} ms. Worker b waits for the same lock, reads, writes and
releases. Does a store that knows nothing of locks refuse a's write, if the write states a's token?

## Set-up

{setups}
{stores}
{commands}
Each worker is a process of its own that talks to the store directly. The pause is a sleep of the
job, or a real SIGSTOP of the process with a SIGCONT after it. Locks are not renewed. Workers read,
add a line and write back. So the value is *whole* if it has the line of each accepted write, and
*corrupted* otherwise.

**PostgreSQL, fence on.** The check and the write are one statement. Zero changed rows are the
refusal. The statement that is sent is an INSERT whose conflict becomes this UPDATE, because the row
does not exist before the first write:

```sql
UPDATE fenced SET value = $1, fence = $2 WHERE key = $3 AND fence < $2
```

**Object store, fence on.** The object contains its token. The writer reads the object and stops if
its token is not above the one in the object. Otherwise it puts the new object with
`If-Match: ETAG`, or with `If-None-Match: *` if there is none. The store answers 412 if the object
is not the one that was read; the writer then reads again and decides again. The header of
`lab/src/stores/objects.rs` explains why this is safe, and why the token must be in the content.

**Fence off.** The same writes without the condition.

## Figures

{summary}
`stale writes` are those that replaced a value with a higher token. `violations` is the number that
the checkers of [histories](../conformance/histories.md) found in the workers' history.

What is stored at the end of the first round with a stop:

{values}
{plots}### {WRITERS} writers at the same time

{WRITERS} writers with connections of their own write to one key at the same time, with the tokens 1 to
{WRITERS} in a random order, {RACES} times in each round. A write with token 1 follows. No lock is used:
what is tested is the store's condition. `lost swaps` are conditional puts that met another writer's
object. The checkers accuse an accepted write only if it began after the answer to one with a higher
token, which the late write always did.

{raced}
## Predicted and seen

{predictions}
## What it means

- The application needs no service in front of its data. A column and a condition are enough, or a
  number in the object and a header.
- Each store decides in one step of its own: PostgreSQL under the row's lock, the object store by
  the condition of the put. A check that the writer makes before an unconditional write is not a
  fence, because the pause may come between the two.
- The order in which writes arrive does not matter. The highest token stays, and each lower one is
  refused from then on.
- PostgreSQL needs one statement, whatever the other writers do. The object store needs a GET and a
  PUT, and both again for each lost swap.
- An equal token is refused. A writer that lost the answer to its write may repeat it: a refusal
  that names its own token says that the write was done before.

## What bounds it

- The fence protects one row or one object, not what is beside it. A job that writes several rows
  needs the condition on one row, for example the lock's own, in the same transaction as all other
  writes. A job that writes several objects has no such transaction: each object needs a token, and
  a paused job can leave some of them written.
- Side effects outside the store are not fenced: a mail, a payment, a call to a service that does
  not check the token.
- Other writers must use the condition too. One UPDATE without it, by a script or an administrator,
  ends the protection. A trigger that refuses a falling `fence` would enforce it in PostgreSQL.
- A deleted row or object forgets its token, and the next write is accepted with any. An application
  that deletes must keep the token, for example in a row that is marked as deleted.
- Reads are not fenced. A paused reader acts on an old value.
- The tokens must grow for as long as the data lives. A lock service that is set up anew and counts
  from 1 again is refused by every row. Redlock has no fencing token at all.
- PostgreSQL's `bigint` holds tokens below 2^63.
- The object store is moto's server, in memory: it shows the protocol of S3, not its durability or
  speed. It tests a put's condition and replaces the object in two steps, so the lab runs it with
  one thread, which makes them one. A store whose conditional put is not atomic cannot be fenced
  like this.
"
    );
    let mut files: Vec<_> = results.runs.iter().map(|run| (format!("{}.svg", run.backend), plot(run))).collect();
    files.push(("rounds.csv".to_owned(), csv(results)));
    files.push(("races.csv".to_owned(), races_csv(results)));
    Page { markdown, files }
}

fn stores(results: &Results<Figures>) -> String {
    let mut table = Table::of("store | server | in the run of");
    for kind in Kind::ALL {
        let mut versions: Vec<(&str, Vec<&str>)> = Vec::new();
        for run in &results.runs {
            for (_, version) in run.figures.stores.iter().filter(|(store, _)| *store == kind) {
                match versions.iter_mut().find(|(known, _)| known == version) {
                    Some((_, runs)) => runs.push(&run.backend),
                    None => versions.push((version, vec![&run.backend])),
                }
            }
        }
        for (version, runs) in versions {
            table.row([kind.to_string(), version.to_owned(), runs.join(", ")]);
        }
    }
    table.markdown()
}

/// The rounds of each case, added up.
fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "lock | store | pause | fence | rounds | accepted writes | stale writes | refused writes | whole values | \
         violations",
    );
    for run in &results.runs {
        for (store, how, fence) in cases(run) {
            let rounds: Vec<_> = case(run, store, how, fence).collect();
            let sum = |of: &dyn Fn(&Round) -> usize| rounds.iter().map(|round| of(round)).sum::<usize>().to_string();
            table.row([
                run.backend.clone(),
                store.to_string(),
                how.name().to_owned(),
                fence.name().to_owned(),
                rounds.len().to_string(),
                sum(&|round| round.accepted().len()),
                sum(&|round| usize::from(round.stale_write())),
                sum(&|round| usize::from(round.refused())),
                sum(&|round| usize::from(round.whole())),
                sum(&|round| round.judged.resource.len()),
            ]);
        }
    }
    table.markdown()
}

fn values(results: &Results<Figures>) -> String {
    let mut table = Table::of("lock | store | fence | accepted tokens, in order | stored token | value | ");
    for run in &results.runs {
        for (store, _, fence) in cases(run).into_iter().filter(|(_, how, _)| *how == How::Stop) {
            let Some(round) = case(run, store, How::Stop, fence).next() else { continue };
            let tokens: Vec<_> = round.accepted().iter().map(u64::to_string).collect();
            let (token, value) = match &round.stored {
                Some(stored) => (stored.fence.to_string(), stored.value.trim_end().replace('\n', "`, `")),
                None => (String::new(), String::new()),
            };
            table.row([
                run.backend.clone(),
                store.to_string(),
                fence.name().to_owned(),
                tokens.join(", "),
                token,
                format!("`{value}`"),
                (if round.whole() { "whole" } else { "**corrupted**" }).to_owned(),
            ]);
        }
    }
    table.markdown()
}

fn raced(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "in the run of | store | fence | races | accepted writes | refused writes | lost swaps | \
         highest token stayed | late write refused | races with violations",
    );
    for run in &results.runs {
        for store in Kind::ALL {
            for fence in [Fence::Off, Fence::On] {
                let races: Vec<&Race> =
                    run.figures.races.iter().filter(|race| (race.store, race.fence) == (store, fence)).collect();
                if races.is_empty() {
                    continue;
                }
                let sum = |of: &dyn Fn(&Race) -> u64| races.iter().map(|race| of(race)).sum::<u64>().to_string();
                table.row([
                    run.backend.clone(),
                    store.to_string(),
                    fence.name().to_owned(),
                    races.len().to_string(),
                    sum(&|race| race.accepted),
                    sum(&|race| race.refused),
                    sum(&|race| race.lost_swaps),
                    sum(&|race| u64::from(race.highest_stays())),
                    sum(&|race| u64::from(race.late_refused)),
                    sum(&|race| u64::from(!race.judged.resource.is_empty())),
                ]);
            }
        }
    }
    table.markdown()
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | store | pause | fence | round | a_token | b_token | a_paused_ms | b_waited_ms | a_write | \
         stored_token | stale_write | whole | violations_store | violations_service | value",
    );
    for run in &results.runs {
        for round in &run.figures.rounds {
            let granted = |lines: &[Line]| {
                let acquired = |line: &Line| match line.event {
                    Event::Acquired { token, waited_us, .. } => Some((token.to_string(), ms(waited_us))),
                    _ => None,
                };
                lines.iter().find_map(acquired).unwrap_or_default()
            };
            let ((a_token, _), (b_token, b_waited)) = (granted(&round.a), granted(&round.b));
            let paused = round.a.iter().find_map(|line| match line.event {
                Event::Resumed { paused_us } => Some(ms(paused_us)),
                _ => None,
            });
            let (token, value) = match &round.stored {
                Some(stored) => (stored.fence.to_string(), stored.value.clone()),
                None => (String::new(), String::new()),
            };
            table.row([
                run.backend.clone(),
                round.store.to_string(),
                round.how.name().to_owned(),
                round.fence.name().to_owned(),
                round.round.to_string(),
                a_token,
                b_token,
                paused.unwrap_or_default(),
                b_waited,
                (if round.refused() { "refused" } else { "accepted" }).to_owned(),
                token,
                round.stale_write().to_string(),
                round.whole().to_string(),
                round.judged.resource.len().to_string(),
                round.judged.service.len().to_string(),
                value,
            ]);
        }
    }
    table.csv()
}

fn races_csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | store | fence | accepted | refused | lost_swaps | stored_token | value_fits | late_refused | \
         violations",
    );
    for run in &results.runs {
        for race in &run.figures.races {
            table.row([
                run.backend.clone(),
                race.store.to_string(),
                race.fence.name().to_owned(),
                race.accepted.to_string(),
                race.refused.to_string(),
                race.lost_swaps.to_string(),
                race.stored.to_string(),
                race.value_fits.to_string(),
                race.late_refused.to_string(),
                race.judged.resource.len().to_string(),
            ]);
        }
    }
    table.csv()
}

/// The first round with a stop of each store.
fn plot(run: &Run<Figures>) -> String {
    let stops = cases(run).into_iter().filter(|(_, how, _)| *how == How::Stop);
    let rounds = stops.filter_map(|(store, how, fence)| {
        let round = case(run, store, how, fence).next()?;
        let name = format!("{store}, fence {}", fence.name());
        Some(PausedRound { name, lines: [&round.a, &round.b], stale: round.stale_write() })
    });
    paused_rounds(&run.backend, rounds)
}

fn cases(run: &Run<Figures>) -> Vec<(Kind, How, Fence)> {
    let mut cases: Vec<_> = run.figures.rounds.iter().map(|round| (round.store, round.how, round.fence)).collect();
    cases.dedup();
    cases
}

fn case(run: &Run<Figures>, store: Kind, how: How, fence: Fence) -> impl Iterator<Item = &Round> {
    run.figures.rounds.iter().filter(move |round| (round.store, round.how, round.fence) == (store, how, fence))
}
