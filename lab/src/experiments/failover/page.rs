//! The page of experiment `failover`.

use super::super::clients::Wrote;
use super::super::lanes::{end_us, lane, seconds};
use super::{Contest, FailoverCase, Figures, PROMOTION_MS, Round};
use crate::report::plot::{BAD, COLOURS, GOOD, GREY, Lane, timeline};
use crate::report::table::{Table, median, ms};
use crate::report::{Page, Results, Run};
use crate::resource::rule::Fence;

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (gaps, locks, loss) = (gaps(results), locks(results), loss(results));
    let plots: String =
        results.runs.iter().map(|run| format!("![Timeline of {0}](failover/{0}.svg)\n\n", run.backend)).collect();
    let markdown = format!(
        "# A leader that is killed

A cluster that agrees by majority keeps locks, tokens and queues when its leader is killed. A Redis
whose replica is promoted loses what the replica had not received: a lock, and its fencing token
with it, so that the fence does not help.

**Question.** The leader (of Redis, the primary) is killed by SIGKILL under load. For how long does
the service grant nothing? Does a held lock survive? Are waiters granted the lock in the order of
their arrival? Do tokens still grow?

## Set-up

{setups}
{commands}
Four clients take locks without a competitor, one after the other: the longest time between two of
their grants is the *gap*. They give up a request after 500 ms, and send another one.

A *holder* acquires its lock before the kill, reads the value, writes it back 6 s after the kill and
releases; a *challenger* waits for the same lock, and an *earlier* client had it before and wrote
nothing. Another key has five waiters that arrived 300 ms apart, before the kill; its holder
releases 2.5 s after the kill. No lease ends in a round. Clients repeat what fails. Holder,
challenger and queue exist once for each rule of the resource (fence off, fence on), with a resource
of their own.

- *In sync*: all servers have the holder's grant before the kill. For Redis, the experiment asks the
  replica.
- *Lagging*: a follower is stopped by SIGSTOP before the grant to the earlier client, and resumed
  after the kill of the leader. At Redis's primary, `CLIENT KILL TYPE replica` also closes the
  replica's connection, as a network fault would; otherwise the grant would wait in the replica's
  socket.

Redis has one replica, with asynchronous replication as is its default. The experiment stands in for
Sentinel: {PROMOTION_MS} ms after the kill it sends `REPLICAOF NO ONE` to the replica. Redis's
clients know both addresses, and use the server that says it is the primary.

## Figures

{gaps}
`gap` is the longest time without a grant to the clients without a competitor. Redis's contains the
{PROMOTION_MS} ms until the promotion. `queue, first grant` is the time from the kill to the first
waiter's grant: 2500 ms are the holder's own.

{locks}
`overtakings` are pairs of waiters that were granted the lock against the order of their arrival.
Redis has no queue: its waiters spin. `lost locks` are those that the challenger was granted while
the holder held them. `tokens not above earlier ones` are grants whose token is not above those of
all earlier grants of the key. `violations` are those that the checkers of histories found, of the
lock service and of the resource.

{loss}
{plots}## Predicted and seen

{predictions}
## What it means

- etcd, ZooKeeper and Palisade answer an acquire when a majority has it, and only a server that has
  it can lead next. So the lock, its token and the queue survive, also if a follower lags.
- Redis answers when the primary has the lock. This is within its promise: replication is
  asynchronous, and the documentation of Redis Sentinel says that acknowledged writes may be lost in
  a failover. A lock needs more than that promise.
- The token is lost with the lock: Redis counts it in a key of its own. In the lagging rounds the
  challenger's token is *lower* than the holder's, although it was granted later. A resource that
  compares tokens accepts the challenger's write, and then the holder's: the value has lost a line,
  and no write was refused. Fencing is as reliable as the service that makes the tokens.
- The checkers of histories see what the resource cannot: two holders at the same time.

## What bounds it

- The lagging rounds force what usually takes a coincidence: a replica that lags by the holder's
  grant at the moment of the crash. The rounds in sync show that the same failover loses nothing
  otherwise. `WAIT` and `min-replicas-to-write` make a loss rarer; Redis's documentation says of
  neither that it excludes one.
- Redis's gap is chosen by the experiment. Sentinel waits for `down-after-milliseconds` (30 s by
  default), and then agrees on a new primary.
- The gaps of the others follow from their election timeouts: Palisade's and etcd's defaults (150 ms
  and 1 s), and ZooKeeper's `tickTime` of 200 ms. A timeout that is too short for a network makes
  elections without a crash.
- A server may never answer what it had received at the kill. Then the gap is the client's timeout:
  these clients give up after 500 ms.
- SIGKILL ends a process, whose connections the system closes at once. A machine that loses power
  closes none, and is missed later.
- Palisade's leader withdraws the wait of a connection that is closed. So a waiter keeps its
  position if it stays at the new leader: these clients leave a server that does not answer only
  when another one has answered as the leader.
- A stopped follower of etcd, ZooKeeper and Palisade finds the grant in its socket when it is
  resumed. No majority depends on it: it is stopped until the leader is dead.
- Servers, clients and the resource share one machine.
"
    );
    let mut files: Vec<_> = results.runs.iter().map(|run| (format!("{}.svg", run.backend), plot(run))).collect();
    files.push(("rounds.csv".to_owned(), csv(results)));
    Page { markdown, files }
}

/// The rounds of a case.
fn rounds(figures: &Figures, case: FailoverCase) -> impl Iterator<Item = &Round> {
    figures.rounds.iter().filter(move |round| round.case == case)
}

/// From the kill to the first grant of the queue after it.
fn queue_us(round: &Round, contest: &Contest) -> Option<u64> {
    let after = contest.queue.iter().filter_map(|job| Some(job.granted?.at_us)).filter(|&at| at > round.kill_us);
    after.min().map(|at| at - round.kill_us)
}

fn gaps(results: &Results<Figures>) -> String {
    let mut table =
        Table::of("backend | case | rounds | gap, median, ms | gap, maximum, ms | queue, first grant, maximum, ms");
    for run in &results.runs {
        for case in FailoverCase::ALL {
            let mut gaps: Vec<_> = rounds(&run.figures, case).map(|round| round.gap_us).collect();
            gaps.sort_unstable();
            let queues = rounds(&run.figures, case)
                .flat_map(|round| round.contests.iter().filter_map(|contest| queue_us(round, contest)));
            let Some(&longest) = gaps.last() else { continue };
            table.row([
                run.backend.clone(),
                case.name().to_owned(),
                gaps.len().to_string(),
                median(&gaps, u64::midpoint).map_or_else(String::new, ms),
                ms(longest),
                queues.max().map_or_else(|| "–".to_owned(), ms),
            ]);
        }
    }
    table.markdown()
}

fn locks(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | case | locks held over the kill | lost locks | waiters | left out | overtakings | \
         tokens not above earlier ones | 409 | corrupted values | violations, service | violations, resource",
    );
    for run in &results.runs {
        for case in FailoverCase::ALL {
            let contests: Vec<_> = rounds(&run.figures, case).flat_map(|round| &round.contests).collect();
            let sum =
                |of: &dyn Fn(&Contest) -> usize| contests.iter().map(|contest| of(contest)).sum::<usize>().to_string();
            table.row([
                run.backend.clone(),
                case.name().to_owned(),
                contests.len().to_string(),
                sum(&|contest| usize::from(contest.lost())),
                sum(&|contest| contest.queue.len() - 1),
                sum(&Contest::left_out),
                if run.figures.queue { sum(&Contest::overtakings) } else { "no queue".to_owned() },
                sum(&Contest::tokens_not_above),
                sum(&|contest| usize::try_from(contest.counts.stale_rejections).unwrap_or(usize::MAX)),
                sum(&|contest| usize::from(!contest.whole())),
                sum(&|contest| contest.judged.iter().map(|judged| judged.service.len()).sum()),
                sum(&|contest| contest.judged.iter().map(|judged| judged.resource.len()).sum()),
            ]);
        }
    }
    table.markdown()
}

/// The first round in which a lock was lost, step by step.
fn loss(results: &Results<Figures>) -> String {
    let contests = |run: &'_ Run<Figures>| {
        let rounds = run.figures.rounds.clone().into_iter();
        rounds.flat_map(|round| round.contests.into_iter().map(move |contest| (round.kill_us, contest)))
    };
    let mut lost = results.runs.iter().flat_map(|run| contests(run).map(|found| (run.backend.clone(), found)));
    let Some((backend, (kill_us, contest))) =
        lost.find(|(_, (_, contest))| contest.lost() && contest.fence == Fence::On)
    else {
        return "No lock was lost with the fence on.\n".to_owned();
    };
    let mut table = Table::of("client | token | granted, ms | asked for the release, ms | write");
    let since = |at: Option<u64>| {
        at.map_or_else(String::new, |at| match at >= kill_us {
            true => ms(at - kill_us),
            false => format!("–{}", ms(kill_us - at)),
        })
    };
    for job in contest.held_jobs() {
        table.row([
            job.owner.clone(),
            job.granted.map(|grant| grant.token.to_string()).unwrap_or_default(),
            since(job.granted.map(|grant| grant.at_us)),
            since(job.release_us),
            match job.wrote {
                None => "none",
                Some(Wrote::Accepted { .. }) => "accepted",
                Some(Wrote::Refused { .. }) => "refused",
            }
            .to_owned(),
        ]);
    }
    let value = contest.value.trim_end().replace('\n', "`, `");
    let accused = contest.judged[0].service.first().map_or("nothing", String::as_str);
    format!(
        "A round of {backend} in which the lock was lost, with the fence on; times count from the kill:\n\n{}\n\
         The value at the end: `{value}`. The checkers' first accusation:\n\n```text\n{accused}\n```\n",
        table.markdown()
    )
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | case | round | fence | killed | grants | gap_ms | queue_first_grant_ms | lost | overtakings | \
         tokens_not_above | whole",
    );
    for run in &results.runs {
        for round in &run.figures.rounds {
            for contest in &round.contests {
                table.row([
                    run.backend.clone(),
                    round.case.name().to_owned(),
                    round.round.to_string(),
                    contest.fence.name().to_owned(),
                    round.killed.clone(),
                    round.grants.to_string(),
                    ms(round.gap_us),
                    queue_us(round, contest).map(ms).unwrap_or_default(),
                    contest.lost().to_string(),
                    contest.overtakings().to_string(),
                    contest.tokens_not_above().to_string(),
                    contest.whole().to_string(),
                ]);
            }
        }
    }
    table.csv()
}

/// The last round, which is a lagging one.
fn plot(run: &Run<Figures>) -> String {
    let Some(round) = run.figures.rounds.last() else { return String::new() };
    let Some(contest) = round.contests.last() else { return String::new() };
    let last = contest.held_jobs().chain(&contest.queue).map(end_us).max().unwrap_or(round.kill_us);
    let to = seconds(last + 500_000);
    let lane = |job, colour| lane(job, to, colour);
    let gap = (seconds(round.gap_from_us), seconds(round.gap_from_us + round.gap_us), BAD);
    let kill = (seconds(round.kill_us), format!("{} is killed", round.killed), BAD);
    let before = (0.0, seconds(round.gap_from_us), GOOD);
    let after = (gap.1, to, GOOD);
    let mut lanes = vec![Lane { name: "other locks".to_owned(), spans: vec![before, gap, after], marks: vec![kill] }];
    lanes.push(lane(&contest.holder, COLOURS[0]));
    lanes.push(lane(&contest.challenger, if contest.lost() { BAD } else { COLOURS[0] }));
    lanes.extend(contest.queue.iter().map(|job| lane(job, COLOURS[0])));
    let legend = [("granted", GOOD), ("no grant, 2nd holder", BAD), ("holds", COLOURS[0]), ("waits", GREY)];
    timeline("seconds", to, &lanes, &legend)
}
