//! Experiment `work`: jobs that take longer than the TTL of their lock, and jobs that do not.
//!
//! A few workers do jobs on one key: acquire, read the value, work, put it back with a line of their own, release. Nothing
//! is renewed. With a TTL below the work, each lease ends under its holder, and the resource's fence is all that is left.
//!
//! The fence orders writes. It knows nothing of what a job has read before, so a job that reads before the last holder's
//! write and writes after it drops that write, and both have rising tokens. A *fenced read* closes this: the job shows its
//! token to the resource before it reads, and the resource refuses lower ones from then on.

mod figures;
mod page;

pub use figures::{Figures, Job, WorkCase, Write};
use futures_util::future::try_join_all;
pub use page::page;

use super::processes::{Resource, Worker};
use super::{Context, Found, contenders, path_text, scratch};
use crate::dlock::Backend;
use crate::event::millis;
use crate::history::{Judgement, merge, seen_by_resource};
use crate::report::Prediction;
use crate::resource::rule::Fence;
use crate::worker::job::lines;

pub(super) const WORKERS: usize = 3;
/// Lengths of the work in milliseconds, and how many such jobs each worker does.
const WORKS: [(u64, u64); 3] = [(50, 30), (500, 8), (5_000, 2)];
/// Rounds without contention, for the ceiling.
const UNCONTENDED: u64 = 50;
/// The shortest TTL that Palisade accepts. The other backends round up what is too short for them.
const PALISADE_TTL_MS: u64 = 100;

/// What a case is run with.
#[derive(Debug, Clone, Copy)]
struct Plan {
    name: &'static str,
    work_ms: u64,
    ttl_ms: u64,
    fenced_read: bool,
    jobs: u64,
}

impl Plan {
    /// A TTL of half the work, then one of twice the work. Only the first can lose a lock, and needs fenced reads.
    fn of_work(context: &Context, (work_ms, jobs): (u64, u64)) -> [Plan; 3] {
        let jobs = context.rounds.unwrap_or(jobs);
        let shortest = if context.backend == Backend::Palisade { PALISADE_TTL_MS } else { 1 };
        let plan =
            |name, ttl_ms: u64, fenced_read| Plan { name, work_ms, ttl_ms: ttl_ms.max(shortest), fenced_read, jobs };
        [plan("half", work_ms / 2, false), plan("half-fenced", work_ms / 2, true), plan("twice", work_ms * 2, false)]
    }
}

/// The longest work and the shorter ones, with the number of such jobs that each worker does. Of a length that was asked
/// for, it does as many as of the next longer one.
pub(super) fn works(asked_ms: Option<u64>) -> ((u64, u64), Vec<(u64, u64)>) {
    let [shorter @ .., longest] = WORKS;
    let like = |work_ms| WORKS.into_iter().find(|(length, _)| *length >= work_ms).unwrap_or(longest);
    match asked_ms {
        Some(work_ms) => ((work_ms, like(work_ms).1), Vec::new()),
        None => (longest, shorter.to_vec()),
    }
}

/// Runs all cases on one backend. Those of the longest work run beside the others: they do little but sleep.
///
/// # Errors
/// A process fails, or an acquire timed out.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let load_average = contenders::load_average();
    let locks = contenders::connect(context)?;
    // ZooKeeper needs some rounds before it is as fast as it stays.
    contenders::uncontended(&locks, "work-first", std::time::Duration::ZERO, 20).await?;
    let [acquire, _, release] =
        contenders::uncontended(&locks, "work-uncontended", std::time::Duration::ZERO, UNCONTENDED).await?;
    let group = async |work| try_join_all(Plan::of_work(context, work).map(|plan| case(context, plan))).await;
    let (longest, shorter) = works(context.work.map(millis));
    eprintln!("work: {}: {} cases", context.backend, 3 * (1 + shorter.len()));
    let short = async {
        let mut cases = Vec::new();
        for work in shorter {
            cases.extend(group(work).await?);
        }
        Ok::<_, String>(cases)
    };
    let (mut cases, long) = tokio::try_join!(short, group(longest))?;
    cases.extend(long);
    let predictions = predictions(&cases, context.backend.fences());
    Ok((Figures { load_average, acquire, release, cases }, predictions))
}

async fn case(context: &Context, plan: Plan) -> Result<WorkCase, String> {
    let directory = scratch()?;
    // A job with a fenced read shows its token twice.
    let resource = Resource::start_with(directory.path(), Fence::On, &["--same-token", "allow"]).await?;
    let key = format!("work-{}-{}", plan.work_ms, plan.name);
    let mut histories = Vec::new();
    let mut workers = Vec::new();
    for number in 1..=WORKERS {
        let (owner, history) = (format!("{key}-{number}"), directory.path().join(format!("worker-{number}.jsonl")));
        let (ttl, work, jobs) = (format!("{}ms", plan.ttl_ms), format!("{}ms", plan.work_ms), plan.jobs.to_string());
        let mut flags = vec!["--resource", &resource.url, "--key", &key, "--ttl", &ttl, "--work", &work];
        flags.extend(["--jobs", &jobs, "--history", path_text(&history)?]);
        // Redlock: an instance that syncs on a busy disk is to give its vote all the same.
        flags.extend(["--instance-timeout", "500ms"]);
        if plan.fenced_read {
            flags.push("--fenced-read");
        }
        workers.push(Worker::start(context, &owner, &flags)?);
        histories.push(history);
    }
    let lines_of_workers = try_join_all(workers.into_iter().map(Worker::finish)).await?;
    let counts = resource.counts().await?;
    let value = resource.client.read(&key).await?.map(|value| value.value).unwrap_or_default();
    let resource_history = resource.end().await?;
    let workers = merge(&histories.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
    let resource = seen_by_resource(&workers, merge(&[&resource_history])?);
    let (granted_ttl_ms, jobs) = figures::jobs(&lines_of_workers)?;
    Ok(WorkCase {
        work_ms: plan.work_ms,
        asked_ttl_ms: plan.ttl_ms,
        granted_ttl_ms,
        fenced_read: plan.fenced_read,
        jobs,
        kept: lines(&value).len(),
        counts,
        workers_judged: Judgement::without_search(&workers),
        resource_judged: Judgement::without_search(&resource),
    })
}

/// `fences`: whether the tokens grow with every grant. Redlock's numbers do not. If two jobs have the same one, the resource
/// accepts both writes, and the checkers object. So of Redlock only the resource's rule and the leases are predicted.
fn predictions(cases: &[WorkCase], fences: bool) -> Vec<Prediction> {
    let sum = |of: &[&WorkCase], what: &dyn Fn(&WorkCase) -> usize| of.iter().map(|case| what(case)).sum::<usize>();
    let (below, above): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.is_below());
    let all: Vec<_> = cases.iter().collect();
    let cases_with = |what: &str, of: &[&WorkCase], like: &dyn Fn(&WorkCase) -> bool| {
        Prediction::all(what, of.len(), of.iter().filter(|case| like(case)).count())
    };
    let stale = |case: &WorkCase| usize::try_from(case.counts.stale_accepted).unwrap_or(usize::MAX);
    let mut predictions = vec![
        Prediction::none("stale writes that the resource accepted", sum(&all, &WorkCase::accepted), sum(&all, &stale)),
        cases_with("TTL below the work: cases in which leases were lost", &below, &|case| case.lost() > 0),
        cases_with(
            "TTL below the work, fenced reads: cases in which the resource refused writes",
            &below.iter().copied().filter(|case| case.fenced_read).collect::<Vec<_>>(),
            &|case| case.refused() > 0,
        ),
    ];
    if fences {
        let what = "cases in which both histories have as many violations as the resource counts";
        predictions.insert(1, cases_with(what, &all, &WorkCase::agrees));
    }
    let in_time = sum(&above, &WorkCase::in_time);
    let what = "TTL above the work: leases lost by jobs that took less than two thirds of the TTL";
    predictions.push(Prediction::none(what, in_time, sum(&above, &WorkCase::lost_in_time)));
    if fences {
        let plain: Vec<_> = below.iter().copied().filter(|case| !case.fenced_read).collect();
        let fenced: Vec<_> = cases.iter().filter(|case| case.fenced_read).collect();
        let whole: Vec<_> = above.iter().copied().filter(|case| case.lost() == 0).collect();
        predictions.extend([
            cases_with(
                "TTL below the work, plain reads: cases in which accepted writes were dropped",
                &plain,
                &|case| case.dropped() > 0,
            ),
            Prediction::none(
                "fenced reads: accepted writes that were dropped",
                sum(&fenced, &WorkCase::accepted),
                sum(&fenced, &WorkCase::dropped),
            ),
            Prediction::none(
                "TTL above the work, no lease lost: writes refused or dropped",
                sum(&whole, &|case| case.jobs.len()),
                sum(&whole, &|case| case.refused() + case.dropped()),
            ),
            cases_with("cases in which the checkers accuse the lock service of nothing", &all, &|case| {
                case.workers_judged.service.is_empty() && case.resource_judged.service.is_empty()
            }),
        ]);
    }
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::processes::Counts;

    fn job(used_ms: u64, write: Write, lost: bool) -> Job {
        let used_us = used_ms * 1000;
        Job { worker: 1, asked_us: 0, granted_us: 0, used_us, token: 1, write, lost }
    }

    /// Two jobs, with a TTL of half or twice the work.
    fn case(below: bool, fenced_read: bool, jobs: [Job; 2], kept: usize) -> WorkCase {
        let granted_ttl_ms = if below { 250 } else { 1000 };
        WorkCase {
            work_ms: 500,
            asked_ttl_ms: granted_ttl_ms,
            granted_ttl_ms,
            fenced_read,
            jobs: jobs.into(),
            kept,
            counts: Counts::default(),
            workers_judged: Judgement::default(),
            resource_judged: Judgement::default(),
        }
    }

    fn as_predicted() -> [WorkCase; 3] {
        let [lost, refused] = [job(500, Write::Accepted, true), job(500, Write::Refused, true)];
        let kept = job(500, Write::Accepted, false);
        [
            case(true, false, [lost.clone(), kept.clone()], 1),
            case(true, true, [refused, kept.clone()], 1),
            case(false, false, [kept.clone(), kept], 2),
        ]
    }

    fn failed(cases: &[WorkCase]) -> Vec<String> {
        predictions(cases, true).into_iter().filter(|it| !it.holds).map(|it| it.predicted).collect()
    }

    #[test]
    fn what_is_not_as_predicted_is_found() {
        assert_eq!(failed(&as_predicted()), Vec::<String>::new());
        let changed = |change: &dyn Fn(&mut [WorkCase; 3])| {
            let mut cases = as_predicted();
            change(&mut cases);
            failed(&cases)
        };
        let one =
            |failed: Vec<String>, words: &str| assert!(failed.len() == 1 && failed[0].contains(words), "{failed:?}");
        one(changed(&|cases| cases[0].jobs[0].lost = false), "leases were lost");
        one(changed(&|cases| cases[0].kept = 2), "plain reads");
        one(changed(&|cases| cases[1].kept = 0), "fenced reads: accepted");
        one(changed(&|cases| cases[2].kept = 1), "refused or dropped");
        let lost = changed(&|cases| cases[2].jobs[0].lost = true);
        assert!(lost.len() == 2 && lost[0].contains("two thirds"), "{lost:?}");
        one(changed(&|cases| cases[2].workers_judged.service.push(String::new())), "accuse");
        one(changed(&|cases| cases[2].resource_judged.resource.push(String::new())), "both histories");
        let stale = changed(&|cases| cases[0].counts.stale_accepted = 1);
        assert!(stale.len() == 2 && stale[0].contains("the resource accepted"), "{stale:?}");
        let accepted = changed(&|cases| (cases[1].jobs[0].write, cases[1].kept) = (Write::Accepted, 2));
        one(accepted, "the resource refused writes");
    }

    #[test]
    fn work_that_was_asked_for_has_the_jobs_of_the_next_longer_one() {
        assert_eq!(works(None), (WORKS[2], WORKS[..2].to_vec()));
        assert_eq!(works(Some(51)), ((51, WORKS[1].1), vec![]));
        assert_eq!(works(Some(9_000)), ((9_000, WORKS[2].1), vec![]));
    }

    #[test]
    fn numbers_that_repeat_are_no_surprise_with_redlock() {
        let mut cases = as_predicted();
        cases[0].resource_judged.resource.push(String::new());
        assert!(predictions(&cases, false).iter().all(|prediction| prediction.holds));
    }

    #[test]
    fn a_lease_that_a_late_job_lost_is_no_mistake() {
        let [below, fenced, _] = as_predicted();
        let late = case(false, false, [job(700, Write::Accepted, true), job(500, Write::Accepted, false)], 1);
        let failed = failed(&[below, fenced, late]);
        assert!(failed.len() == 1 && failed[0].contains("no lease lost"), "{failed:?}");
    }
}
