//! The numbers of the second table: latencies, hand-overs, and violations with the fence on.

use std::collections::BTreeMap;

use super::super::{contention, ten_million, work};
use super::cells::NOT_RUN;
use super::{Kept, of};
use crate::contend::summary::Latency;
use crate::dlock::Backend;
use crate::history::Judgement;
use crate::report::table::ms;
use crate::resource::rule::Fence;

/// The 99th percentile of an acquire without contention is to be below it.
const TARGET_US: u64 = 3_000;
/// Contenders for the hot key.
const CONTENDERS: u32 = 200;

pub(super) const HEAD: [&str; 8] = [
    "backend",
    "acquire without contention, p99, ms (values); target: below 3",
    "hot key, 200 contenders, p99, ms (values)",
    "what bounds it",
    "violations with the fence on",
    "hand-overs a second, TTL above the work",
    "TTL below the work",
    "very many locks, acquired of those asked for; what ended the fill: [ten-million](ten-million.md)",
];

/// What the table shows.
pub(super) const TEXT: &str = "\
The numbers come from [contention](contention.md), from [work](work.md), where 3 workers do the
jobs, and from [ten-million](ten-million.md), which asks slower lock services for fewer locks. A
99th percentile has the number of its values in parentheses. A wait at the hot key is the queue
divided by the hand-overs a second. Their ceiling is 1 / (work + acquire + release), of medians
without contention; a queue at the server hands over faster than that. Waiters that spin (redis,
redlock) may wait far longer: see [fairness](fairness.md).

*Violations* are writes that were accepted out of the tokens' order: those that the checkers of
histories found, and those that the resource counted, in all experiments that record histories of
fenced writes. Of the races of [fenced-stores](fenced-stores.md), whose tokens come from no lock
service, one counts if a lower token stayed or a late write was accepted. Where the lock service
loses or repeats a token, the resource sees no stale one and accepts what the checkers find.
";

impl Kept {
    pub(super) fn numbers(&self, backend: Backend) -> [String; HEAD.len()] {
        let (contention, work) = (of(&self.contention, backend), of(&self.work, backend));
        let [hot_key, bound] = hot_key(contention);
        let violations = text(&self.violations(backend));
        let many = many(of(&self.ten_million, backend));
        [backend.to_string(), acquire(contention), hot_key, bound, violations, above(work), below(work), many]
    }

    /// What was found with the fence on, by experiment.
    fn violations(&self, backend: Backend) -> Vec<Violations> {
        let mut all = Vec::new();
        let mut add = |page, judged: [&Judgement; 2], counted| {
            let checkers = judged.map(|judged| judged.resource.len()).into_iter().max().unwrap_or_default();
            all.push(Violations { page, checkers, counted, keys: 1 });
        };
        for round in of(&self.pause, backend).into_iter().flat_map(|figures| &figures.rounds) {
            if round.fence == Fence::On {
                add("pause", [&round.workers_judged, &round.resource_judged], round.counts.stale_accepted);
            }
        }
        for case in of(&self.work, backend).into_iter().flat_map(|figures| &figures.cases) {
            add("work", [&case.workers_judged, &case.resource_judged], case.counts.stale_accepted);
        }
        for round in of(&self.fenced_stores, backend).into_iter().flat_map(|figures| &figures.rounds) {
            if round.fence == Fence::On {
                add("fenced-stores", [&round.judged; 2], round.stale_write().into());
            }
        }
        for race in of(&self.fenced_stores, backend).into_iter().flat_map(|figures| &figures.races) {
            if race.fence == Fence::On {
                add("fenced-stores", [&race.judged; 2], (!race.highest_stays() || !race.late_refused).into());
            }
        }
        for run in of(&self.prediction, backend).into_iter().flat_map(|figures| &figures.runs) {
            // The resource also checks tokens in the run without the repair if the repair is a signature.
            let fenced = run.repaired || run.is_about_the_holder();
            if let Some(counts) = run.ending.counts.filter(|_| fenced) {
                add("prediction", [&run.ending.judged; 2], counts.stale_accepted);
            }
        }
        for round in of(&self.failover, backend).into_iter().flat_map(|figures| &figures.rounds) {
            for contest in round.contests.iter().filter(|contest| contest.fence == Fence::On) {
                let [held, queue] = &contest.judged;
                add("failover", [held; 2], contest.counts.stale_accepted);
                add("failover", [queue; 2], 0);
            }
        }
        for round in of(&self.clocks, backend).into_iter().flat_map(|figures| &figures.rounds) {
            for contest in round.contests.iter().filter(|contest| contest.fence == Fence::On) {
                add("clocks", [&contest.judged; 2], contest.counts.stale_accepted);
            }
        }
        for round in of(&self.redlock, backend).into_iter().flat_map(|figures| &figures.rounds) {
            if round.writes.is_some_and(|writes| writes.fence == Fence::On) {
                add("redlock", [&round.judged; 2], round.counts.map_or(0, |counts| counts.stale_accepted));
            }
        }
        let renew = of(&self.renew, backend).into_iter().flat_map(|figures| &figures.judged);
        let ttl = of(&self.ttl, backend).into_iter().flat_map(|figures| &figures.judged);
        for (page, judged) in renew.map(|judged| ("renew", judged)).chain(ttl.map(|judged| ("ttl", judged))) {
            if judged.fence == Fence::On {
                let (checkers, counted) = (judged.workers.max(judged.resource), judged.counts.stale_accepted);
                all.push(Violations { page, checkers, counted, keys: judged.keys });
            }
        }
        all
    }
}

/// Writes that were accepted out of the tokens' order, with the fence on.
pub(super) struct Violations {
    /// The experiment.
    pub(super) page: &'static str,
    /// Those that the checkers found.
    pub(super) checkers: usize,
    /// Those that the resource counted.
    pub(super) counted: u64,
    /// Keys, each with a history.
    pub(super) keys: usize,
}

pub(super) fn text(all: &[Violations]) -> String {
    let keys: usize = all.iter().map(|of| of.keys).sum();
    let checkers: usize = all.iter().map(|of| of.checkers).sum();
    let counted: u64 = all.iter().map(|of| of.counted).sum();
    let mut pages: Vec<_> = all.iter().filter(|of| of.checkers > 0 || of.counted > 0).map(|of| of.page).collect();
    pages.dedup();
    match (keys, pages.is_empty()) {
        (0, _) => NOT_RUN.to_owned(),
        (_, true) => format!("0 by the checkers, 0 by the resource, {keys} keys"),
        _ => {
            let pages: Vec<_> = pages.into_iter().map(|page| format!("[{page}]({page}.md)")).collect();
            format!("**{checkers} by the checkers, {counted} by the resource**, {keys} keys: {}", pages.join(", "))
        }
    }
}

pub(super) fn acquire(figures: Option<&contention::Figures>) -> String {
    match figures.map(|figures| &figures.acquire) {
        None => NOT_RUN.to_owned(),
        Some(acquire) if acquire.p99_us < TARGET_US => p99(acquire),
        Some(acquire) => format!("**{}**", p99(acquire)),
    }
}

/// The 99th percentile with the number of its values.
fn p99(latency: &Latency) -> String {
    format!("{} ({})", ms(latency.p99_us), latency.count)
}

/// The 99th percentile, and the wait that follows from the hand-overs a second.
pub(super) fn hot_key(figures: Option<&contention::Figures>) -> [String; 2] {
    let case = figures.and_then(|figures| figures.cases.iter().find(|case| case.contenders == CONTENDERS));
    let (Some(figures), Some(case)) = (figures, case) else { return [NOT_RUN.to_owned(), NOT_RUN.to_owned()] };
    let rate = case.summary.handovers_per_second;
    let wait = f64::from(CONTENDERS) / rate * 1e3;
    let ceiling = figures.ceiling();
    let bound = format!("{CONTENDERS} / {rate:.0} hand-overs a second = {wait:.0} ms; ceiling {ceiling:.0} a second");
    [p99(&case.summary.latency), bound]
}

/// Hand-overs a second with a TTL of twice the work, which is the last case of each length of work.
fn above(figures: Option<&work::Figures>) -> String {
    let cases = figures.into_iter().flat_map(|figures| &figures.cases);
    let above = cases.filter(|case| !case.is_below() && !case.fenced_read);
    let rates: BTreeMap<_, _> = above.map(|case| (case.work_ms, case.handovers_per_second())).collect();
    let rates: Vec<_> = rates.into_iter().map(|(work_ms, rate)| format!("work {work_ms} ms: {rate:.2}")).collect();
    if rates.is_empty() { NOT_RUN.to_owned() } else { rates.join("; ") }
}

/// What a TTL below the work takes from the jobs.
fn below(figures: Option<&work::Figures>) -> String {
    let part = |fenced_read: bool| {
        let cases = figures.into_iter().flat_map(|figures| &figures.cases);
        let below: Vec<_> = cases.filter(|case| case.is_below() && case.fenced_read == fenced_read).collect();
        let sum = |of: fn(&work::WorkCase) -> usize| below.iter().map(|case| of(case)).sum::<usize>();
        let read = if fenced_read { "fenced" } else { "plain" };
        let (lost, jobs) = (sum(work::WorkCase::lost), sum(|case| case.jobs.len()));
        let (dropped, accepted) = (sum(work::WorkCase::dropped), sum(work::WorkCase::accepted));
        let text =
            format!("{read} reads: {lost} of {jobs} leases lost, {dropped} of {accepted} accepted writes dropped");
        (!below.is_empty()).then_some(text)
    };
    let parts: Vec<_> = [false, true].into_iter().filter_map(part).collect();
    if parts.is_empty() { NOT_RUN.to_owned() } else { parts.join("; ") }
}

/// The largest fill: its locks, and what ended it.
pub(super) fn many(figures: Option<&ten_million::Figures>) -> String {
    let largest = figures.and_then(|figures| figures.cases.iter().max_by_key(|case| case.asked));
    largest.map_or_else(
        || NOT_RUN.to_owned(),
        |case| match &case.ended {
            None => format!("{} of {}", case.taken, case.asked),
            Some(reason) => format!("**{} of {}**: {reason}", case.taken, case.asked),
        },
    )
}
