//! The cells: each from the figures of one experiment on one lock service, or from none.

use std::collections::BTreeMap;
use std::fmt;

use self::Outcome::{Seen, Violation};
use super::super::clocks::{self, ClockCase, Leases};
use super::super::failover::{self, FailoverCase};
use super::super::redlock::{self, Fault, Tokens};
use super::super::release::{self, How};
use super::super::{fairness, pause};
use crate::report::table::median;
use crate::resource::rule::Fence;

pub(super) const NOT_RUN: &str = "not run";

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Like this.
    Seen(&'static str),
    /// Like this, which a lock or a fence must exclude.
    Violation(&'static str),
}

/// How many cases ended in which way. As text, it is a cell.
pub(super) struct Tally(BTreeMap<Outcome, usize>);

impl Tally {
    fn of<T>(cases: impl IntoIterator<Item = T>, outcome: impl Fn(T) -> Outcome) -> Tally {
        let mut counts = BTreeMap::new();
        for case in cases {
            *counts.entry(outcome(case)).or_default() += 1;
        }
        Tally(counts)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NOT_RUN);
        }
        let all: usize = self.0.values().sum();
        let parts = self.0.iter().map(|(outcome, count)| match outcome {
            Seen(what) => format!("{what}, {count} of {all}"),
            Violation(what) => format!("**{what}, {count} of {all}**"),
        });
        f.write_str(&parts.collect::<Vec<_>>().join(" and "))
    }
}

/// What became of the paused holder's write.
pub(super) fn stale_write(figures: Option<&pause::Figures>, fence: Fence) -> String {
    let accepted = if fence == Fence::On { Violation("accepted") } else { Seen("accepted") };
    let rounds = figures.into_iter().flat_map(|figures| &figures.rounds).filter(|round| round.fence == fence);
    let outcome = |round: &pause::Round| match round {
        round if round.counts.stale_accepted > 0 => accepted,
        round if round.refused() => Seen("refused"),
        round if round.whole() => Seen("not stale"),
        _ => Violation("value corrupted"),
    };
    Tally::of(rounds, outcome).to_string()
}

pub(super) fn former_release(figures: Option<&release::Figures>) -> String {
    let rounds = |how| figures.into_iter().flat_map(|figures| &figures.rounds).filter(move |round| round.how == how);
    let harmless = |round: &release::Round| match round.harmless() {
        true => Seen("changes nothing"),
        false => Violation("touches another's lock"),
    };
    let frees = |round: &release::Round| Seen(if round.deleted() { "frees another's lock" } else { "frees nothing" });
    let safe = Tally::of(rounds(How::Safe), harmless);
    match Tally::of(rounds(How::GetThenDel), frees) {
        Tally(counts) if counts.is_empty() => safe.to_string(),
        wrong => format!("{safe}; GET, then DEL {wrong}"),
    }
}

pub(super) fn order_of_arrival(figures: Option<&fairness::Figures>) -> String {
    let Some(figures) = figures else { return NOT_RUN.to_owned() };
    let (granted, far) = (figures.summary.granted, figures.apart.overtakings);
    let near = match figures.summary.order.overtakings.saturating_sub(far) {
        0 => String::new(),
        near => format!(", {near} of nearer arrivals"),
    };
    match (granted, far) {
        (0, _) => "no grants".to_owned(),
        (_, 0) => format!("kept, {granted} grants: 0 overtakings{near}"),
        _ => format!("not kept{}: {far} overtakings{near}", if figures.queue { "" } else { ", waiters spin" }),
    }
}

pub(super) fn held_lock(figures: Option<&failover::Figures>) -> String {
    over_failover(figures, |contest| match contest {
        contest if contest.lost() => Violation("two holders"),
        contest if contest.challenger.granted() => Seen("kept"),
        _ => Seen("not handed over"),
    })
}

pub(super) fn tokens(figures: Option<&failover::Figures>) -> String {
    over_failover(figures, |contest| match contest.tokens_not_above() {
        0 => Seen("grow"),
        _ => Violation("do not grow"),
    })
}

/// The contests of a failover; where a replica may lack what the primary had answered, for each of the two cases.
fn over_failover(figures: Option<&failover::Figures>, outcome: fn(&failover::Contest) -> Outcome) -> String {
    let Some(figures) = figures else { return NOT_RUN.to_owned() };
    let contests = |cases: &[FailoverCase]| {
        let rounds = figures.rounds.iter().filter(|round| cases.contains(&round.case));
        Tally::of(rounds.flat_map(|round| &round.contests), outcome)
    };
    if !figures.asynchronous {
        return contests(&FailoverCase::ALL).to_string();
    }
    let [in_sync, lagging] = FailoverCase::ALL.map(|case| contests(&[case]));
    format!("replica in sync: {in_sync}; it lags: {lagging}")
}

/// The gaps of all rounds in seconds: the median, the least and the greatest.
pub(super) fn gap(figures: Option<&failover::Figures>) -> String {
    let rounds = figures.into_iter().flat_map(|figures| &figures.rounds);
    let mut gaps: Vec<_> = rounds.map(|round| round.gap_us).collect();
    gaps.sort_unstable();
    let (Some(figures), Some(middle)) = (figures, median(&gaps, u64::midpoint)) else { return NOT_RUN.to_owned() };
    let [middle, least, most] =
        [middle, gaps[0], gaps[gaps.len() - 1]].map(|gap_us| format!("{:.1}", gap_us as f64 / 1e6));
    let chosen = if figures.asynchronous { ", which the experiment chose" } else { "" };
    format!("{middle} ({least} to {most}){chosen}")
}

/// With Redlock's own numbers as tokens, after failed attempts, when the earlier owner is paused: what became of its write; the
/// numbers. A crash has a cell of its own.
pub(super) fn own_tokens(figures: Option<&redlock::Figures>) -> [Tally; 2] {
    let rounds = figures.into_iter().flat_map(|figures| &figures.rounds).filter(|round| round.fault == Fault::Pause);
    let own = |round: &&redlock::Round| {
        round.writes.is_some_and(|writes| writes.fence == Fence::On && writes.tokens == Tokens::Own)
    };
    let rounds: Vec<_> = rounds.filter(own).collect();
    let writes = Tally::of(&rounds, |round| match round {
        round if round.stale_write() => Violation("accepted"),
        round if round.refused_write() => Seen("refused"),
        _ => Seen("not stale"),
    });
    let numbers = Tally::of(&rounds, |round| match (round.a.token, round.b.token) {
        (Some(a), Some(b)) if b <= a => Violation("do not grow"),
        (Some(_), Some(_)) => Seen("grow"),
        _ => Seen("are not granted twice"),
    });
    [writes, numbers]
}

pub(super) fn one_crashes(figures: Option<&redlock::Figures>) -> String {
    let [synced, unsynced] = [Fault::SyncedCrash, Fault::Crash].map(|fault| {
        let rounds = figures.into_iter().flat_map(|figures| &figures.rounds).filter(|round| round.fault == fault);
        Tally::of(rounds, |round| match round {
            round if round.two_holders() => Violation("two holders"),
            round if round.refused_in_time() => Seen("kept"),
            _ => Seen("not asked for"),
        })
    });
    format!("with sync: {synced}; without: {unsynced}")
}

/// Clocks that jump ahead, of a minority and a majority of the servers if that makes a difference; and back.
pub(super) fn jumps(figures: Option<&clocks::Figures>) -> String {
    let Some(figures) = figures else { return NOT_RUN.to_owned() };
    if figures.leases == Leases::Untestable {
        return "not testable".to_owned();
    }
    let contests = |of: &dyn Fn(ClockCase) -> bool, without: &dyn Fn(&clocks::Contest) -> Outcome| {
        let rounds = figures.rounds.iter().filter(|round| of(round.case));
        Tally::of(rounds.flat_map(|round| &round.contests), |contest| match contest.two_holders() {
            true => Violation("two holders"),
            false => without(contest),
        })
    };
    let ahead = |part: &dyn Fn(usize) -> bool| {
        let outcome = |contest: &clocks::Contest| match contest.whole() {
            true if contest.other.granted() => Seen("kept"),
            true => Seen("not handed over"),
            false => Violation("value corrupted"),
        };
        contests(&|case| matches!(case, ClockCase::Ahead(number) if part(number)), &outcome)
    };
    let back = contests(&|case| case == ClockCase::Back, &|contest| match &contest.other {
        other if other.granted() => Seen("free at the TTL"),
        other if other.error.is_none() => Seen("held past the TTL"),
        _ => Seen("no answer"),
    });
    let [all, minority] = [ahead(&|_| true), ahead(&|number| number * 2 <= figures.servers)];
    let majority = ahead(&|number| number * 2 > figures.servers);
    match all.0.len() > 1 && !minority.0.is_empty() {
        true => format!("minority ahead: {minority}; majority: {majority}; back: {back}"),
        false => format!("ahead: {all}; back: {back}"),
    }
}
