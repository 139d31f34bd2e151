use super::super::clients::{Grant, Wrote};
use super::*;

fn job(asked_us: u64, at_us: u64, token: u64, wrote: Option<Wrote>, release_us: Option<u64>) -> Job {
    Job { asked_us, granted: Some(Grant { at_us, token }), wrote, release_us, ..Job::default() }
}

fn accepted(at_us: u64) -> Option<Wrote> {
    Some(Wrote::Accepted { at_us })
}

fn line(token: u64) -> String {
    crate::worker::job::line("client", 1, token)
}

/// The other client has the lock after its release.
fn safe(fence: Fence) -> Contest {
    Contest {
        fence,
        holder: job(0, 10, 1, accepted(2_800_000), Some(2_800_000)),
        other: job(300_000, 2_900_000, 2, accepted(2_900_000), Some(2_900_000)),
        value: [1, 2].map(line).concat(),
        counts: Counts::default(),
        judged: Judgement::default(),
    }
}

/// The other client has the lock at once.
fn broken(fence: Fence) -> Contest {
    let mut contest = safe(fence);
    contest.other = job(300_000, 310_000, 2, accepted(320_000), Some(320_000));
    contest.judged.service.push("two holders".to_owned());
    if fence == Fence::Off {
        contest.counts.stale_accepted = 1;
        contest.judged.resource.push("stale".to_owned());
        contest.value = line(1);
    } else {
        contest.counts.stale_rejections = 1;
        contest.holder.wrote = Some(Wrote::Refused { at_us: 2_800_000, seen: 2 });
        contest.value = line(2);
    }
    contest
}

/// The holder is silent; the other client has the lock after so many microseconds, or never.
fn silent(fence: Fence, waited_us: Option<u64>) -> Contest {
    let mut contest = safe(fence);
    (contest.holder.wrote, contest.holder.release_us) = (None, None);
    contest.other = waited_us.map_or_else(Job::default, |at_us| job(300_000, at_us, 2, accepted(at_us), Some(at_us)));
    contest.value = waited_us.map(|_| line(2)).unwrap_or_default();
    contest
}

fn figures(leases: Leases, servers: usize, contest: impl Fn(ClockCase, Fence) -> Contest) -> Figures {
    let clock = |case: ClockCase, index| {
        let set_ms = case.offset_ms(index, Duration::from_secs(3));
        let seen_ms = if leases == Leases::Untestable { 3 } else { set_ms + 3 };
        Clock { server: "server-1".to_owned(), set_ms, seen_ms }
    };
    let round = |case| Round {
        case,
        round: 1,
        set_us: 300_000,
        clocks: (0..servers).map(|index| clock(case, index)).collect(),
        contests: vec![contest(case, Fence::Off), contest(case, Fence::On)],
    };
    Figures { leases, servers, rounds: ClockCase::all(servers).into_iter().map(round).collect() }
}

fn failed(figures: &Figures) -> Vec<String> {
    let failed = predictions(figures).into_iter().filter(|prediction| !prediction.holds);
    failed.map(|prediction| prediction.predicted).collect()
}

fn like_redlock(case: ClockCase, fence: Fence) -> Contest {
    match case {
        ClockCase::Ahead(3..) | ClockCase::Fast => broken(fence),
        ClockCase::Back => silent(fence, None),
        ClockCase::Skew | ClockCase::Ahead(_) => safe(fence),
    }
}

fn like_palisade(case: ClockCase, fence: Fence) -> Contest {
    match case {
        ClockCase::Back => silent(fence, Some(TTL_MS * 1000 + 20_000)),
        ClockCase::Skew | ClockCase::Ahead(_) | ClockCase::Fast => safe(fence),
    }
}

#[test]
fn cases_follow_the_number_of_servers() {
    use ClockCase::{Ahead, Back, Fast, Skew};
    assert_eq!(ClockCase::all(1), [Ahead(1), Back, Fast]);
    assert_eq!(ClockCase::all(3), [Skew, Ahead(1), Ahead(2), Ahead(3), Back, Fast]);
    assert_eq!(ClockCase::all(5), [Skew, Ahead(2), Ahead(3), Ahead(5), Back, Fast]);
}

#[test]
fn offsets_follow_the_case_and_the_time() {
    let jumps = [0, 1, 2].map(|index| ClockCase::Ahead(2).offset_ms(index, Duration::from_secs(9)));
    assert_eq!(jumps, [1000 * JUMP_S, 1000 * JUMP_S, 0]);
    // After two seconds, a clock that runs four times as fast shows eight.
    assert_eq!(ClockCase::Fast.offset_ms(1, Duration::from_secs(2)), 6_000);
}

#[test]
fn predicted_outcomes_hold() {
    assert_eq!(failed(&figures(Leases::WallClock, 5, like_redlock)), Vec::<String>::new());
    assert_eq!(failed(&figures(Leases::Monotonic, 3, like_palisade)), Vec::<String>::new());
    assert_eq!(failed(&figures(Leases::Untestable, 3, like_palisade)), Vec::<String>::new());
}

#[test]
fn wall_clock_that_breaks_nothing_has_failed() {
    let failed = failed(&figures(Leases::WallClock, 5, like_palisade));
    // Three predictions for each of two numbers of servers and for clocks that run fast, and the silent holder's.
    assert_eq!(failed.len(), 10, "{failed:?}");
}

#[test]
fn second_holder_under_a_monotonic_clock_has_failed() {
    let figures = figures(Leases::Monotonic, 5, |case, fence| match case {
        ClockCase::Back => silent(fence, Some(TTL_MS * 1000 - 1_000)),
        _ => like_redlock(case, fence),
    });
    let failed = failed(&figures);
    // Twice ahead, fast, and back; there the checkers were silent about the second holder.
    assert_eq!(failed.len(), 5, "{failed:?}");
}

#[test]
fn clock_that_was_not_set_proves_nothing() {
    let mut unmoved = figures(Leases::Monotonic, 3, like_palisade);
    unmoved.rounds[1].clocks[0].seen_ms = 0;
    assert_eq!(failed(&unmoved), ["each server shows the offset to which its clock was set"]);
    let mut moved = figures(Leases::Untestable, 3, like_palisade);
    moved.rounds[1].clocks[0].seen_ms = JUMP_S * 1000;
    assert_eq!(failed(&moved), ["no server notices that its clock was set"]);
}

#[test]
fn silent_server_has_failed() {
    let mut unreachable = figures(Leases::WallClock, 5, like_redlock);
    let back = unreachable.rounds.iter_mut().find(|round| round.case == ClockCase::Back).unwrap();
    back.contests[0].other.error = Some("no server answers".to_owned());
    let failed = failed(&unreachable);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].contains("still held"), "{failed:?}");
}

#[test]
fn sources_that_disagree_are_found() {
    assert!(broken(Fence::Off).agrees() && broken(Fence::On).agrees() && safe(Fence::On).agrees());
    let mut silent_checkers = broken(Fence::On);
    silent_checkers.judged.service.clear();
    let mut blind_resource = broken(Fence::Off);
    blind_resource.counts.stale_accepted = 0;
    let mut false_alarm = safe(Fence::On);
    false_alarm.judged.service.push("two holders".to_owned());
    assert!(!silent_checkers.agrees() && !blind_resource.agrees() && !false_alarm.agrees());
}
