use super::super::clients::{Grant, Job};
use super::super::clocks::{ClockCase, Leases};
use super::super::failover::FailoverCase;
use super::super::processes::Counts;
use super::super::redlock::{Fault, RedlockClient, Tokens, Writes};
use super::super::release::How;
use super::*;
use crate::contend::order::Order;
use crate::contend::summary::{Latency, Summary};
use crate::event::{Event, Line};
use crate::history::Judgement;
use crate::report::Run;
use crate::report::setup::Setup;
use crate::worker::pause;

fn job(at_us: u64, token: u64, release_us: u64) -> Job {
    Job { granted: Some(Grant { at_us, token }), release_us: Some(release_us), ..Job::default() }
}

fn paused(fence: Fence, stale_accepted: u64, refused: bool) -> super::pause::Round {
    let line = Line { at_us: 0, clock_us: 0, job: 1, event: Event::Refused { token: 1, seen: 2 } };
    super::pause::Round {
        how: pause::How::Stop,
        fence,
        round: 1,
        a: if refused { vec![line] } else { Vec::new() },
        b: Vec::new(),
        value: String::new(),
        counts: Counts { stale_accepted, ..Counts::default() },
        workers_judged: Judgement::default(),
        resource_judged: Judgement::default(),
    }
}

fn stale_write(fence: Fence, rounds: Vec<super::pause::Round>) -> String {
    cells::stale_write(Some(&super::pause::Figures { ttl_ms: 1, pause_ms: 2, rounds }), fence)
}

#[test]
fn stale_write_that_the_fence_accepts_is_a_violation() {
    let rounds = |fence| vec![paused(fence, 1, false), paused(fence, 0, true)];
    assert_eq!(stale_write(Fence::Off, rounds(Fence::Off)), "accepted, 1 of 2 and refused, 1 of 2");
    assert_eq!(stale_write(Fence::On, rounds(Fence::On)), "refused, 1 of 2 and **accepted, 1 of 2**");
    assert_eq!(stale_write(Fence::On, vec![paused(Fence::On, 0, true)]), "refused, 1 of 1");
    assert_eq!(stale_write(Fence::On, rounds(Fence::Off)), "not run", "the other rule's rounds");
    let (in_time, mut corrupted) = (paused(Fence::On, 0, false), paused(Fence::On, 0, false));
    corrupted.value = crate::worker::job::line("a", 1, 1);
    let cell = stale_write(Fence::On, vec![in_time, corrupted]);
    assert_eq!(cell, "not stale, 1 of 2 and **value corrupted, 1 of 2**");
}

#[test]
fn release_that_touches_anothers_lock_is_a_violation() {
    let round = |how, a_released: bool| release::Round {
        how,
        round: 1,
        tokens: (1, 2, a_released.then_some(3)),
        a_released,
        b_renewed: !a_released,
        judged: Judgement { service: vec![String::new(); usize::from(a_released)], ..Judgement::default() },
    };
    let cell = |rounds| cells::former_release(Some(&release::Figures { rounds }));
    assert_eq!(cell(vec![round(How::Safe, false)]), "changes nothing, 1 of 1");
    assert_eq!(cell(vec![round(How::Safe, true)]), "**touches another's lock, 1 of 1**");
    let forced = [false, true].map(|released| round(How::GetThenDel, released));
    let all = [round(How::Safe, false)].into_iter().chain(forced).collect();
    let expected = "changes nothing, 1 of 1; GET, then DEL frees another's lock, 1 of 2 and frees nothing, 1 of 2";
    assert_eq!(cell(all), expected);
}

#[test]
fn order_of_arrival_is_kept_without_overtakings() {
    let cell = |queue, granted, far, near| {
        let [all, far] = [far + near, far].map(|overtakings| Order { overtakings, ..Order::default() });
        cells::order_of_arrival(Some(&fairness::Figures {
            load_average: String::new(),
            queue,
            duration_us: 0,
            rate: 1,
            work_us: 0,
            summary: Summary { granted, order: all, ..Summary::default() },
            apart: far,
            grants: Vec::new(),
            operations: 0,
            violations: Vec::new(),
        }))
    };
    assert_eq!([cell(true, 9, 0, 0), cell(false, 9, 0, 0)], ["kept, 9 grants: 0 overtakings"; 2]);
    assert_eq!(cell(true, 9, 0, 3), "kept, 9 grants: 0 overtakings, 3 of nearer arrivals");
    assert_eq!(cell(true, 9, 2, 0), "not kept: 2 overtakings");
    assert_eq!(cell(false, 9, 2, 1), "not kept, waiters spin: 2 overtakings, 1 of nearer arrivals");
    assert_eq!(cell(true, 0, 0, 0), "no grants");
}

/// Each round's case, the gap, and the challenger's grant and token. The holder has token 2 from 30 to 900 µs.
fn failover(asynchronous: bool, rounds: &[(FailoverCase, u64, u64, u64)]) -> failover::Figures {
    let contest = |at_us, token| failover::Contest {
        fence: Fence::On,
        earlier: job(10, 1, 20),
        holder: job(30, 2, 900),
        challenger: if at_us == 0 { Job::default() } else { job(at_us, token, 990) },
        value: String::new(),
        queue: Vec::new(),
        queue_value: String::new(),
        counts: Counts::default(),
        judged: Default::default(),
    };
    let round = |&(case, gap_us, at_us, token)| failover::Round {
        case,
        round: 1,
        killed: "server-1".to_owned(),
        kill_us: 400,
        grants: 9,
        gap_from_us: 399,
        gap_us,
        contests: vec![contest(at_us, token)],
    };
    failover::Figures { queue: !asynchronous, asynchronous, rounds: rounds.iter().map(round).collect() }
}

#[test]
fn lock_and_tokens_that_a_failover_loses_are_violations() {
    use FailoverCase::{InSync, Lagging};
    let cells = |figures: failover::Figures| [cells::held_lock(Some(&figures)), cells::tokens(Some(&figures))];
    let rounds = [(InSync, 1, 910, 3), (Lagging, 1, 910, 3)];
    assert_eq!(cells(failover(false, &rounds)), ["kept, 2 of 2", "grow, 2 of 2"]);
    let rounds = [(InSync, 1, 910, 3), (Lagging, 1, 500, 1), (Lagging, 1, 0, 0)];
    let [held, tokens] = cells(failover(false, &rounds));
    assert_eq!(held, "kept, 1 of 3 and not handed over, 1 of 3 and **two holders, 1 of 3**");
    assert_eq!(tokens, "grow, 2 of 3 and **do not grow, 1 of 3**");
    let [held, tokens] = cells(failover(true, &rounds[..2]));
    assert_eq!(held, "replica in sync: kept, 1 of 1; it lags: **two holders, 1 of 1**");
    assert_eq!(tokens, "replica in sync: grow, 1 of 1; it lags: **do not grow, 1 of 1**");
}

#[test]
fn gap_has_the_range_of_all_rounds() {
    let cell = |asynchronous, gaps: &[(FailoverCase, u64)]| {
        let rounds: Vec<_> = gaps.iter().map(|&(case, gap_us)| (case, gap_us, 910, 3)).collect();
        cells::gap(Some(&failover(asynchronous, &rounds)))
    };
    let [in_sync, lagging] = FailoverCase::ALL.map(|case| move |gap_us| (case, gap_us));
    assert_eq!(cell(false, &[in_sync(400_000), in_sync(10_800_000), lagging(300_000)]), "0.4 (0.3 to 10.8)");
    assert_eq!(cell(true, &[lagging(1_020_000)]), "1.0 (1.0 to 1.0), which the experiment chose");
    assert_eq!(cell(false, &[]), "not run");
}

fn redlock(fault: Fault, tokens: Tokens, b_granted_us: u64, b_token: u64, accepted: &[&str]) -> redlock::Round {
    let a = RedlockClient { lease_until_us: Some(100), token: Some(4), ..RedlockClient::default() };
    let (granted_us, refused_us) = (Some(b_granted_us), Some(50));
    let b = RedlockClient { granted_us, refused_us, token: Some(b_token), ..RedlockClient::default() };
    redlock::Round {
        fault,
        writes: Some(Writes { fence: Fence::On, tokens }),
        round: 1,
        ttl_ms: 1,
        a,
        b,
        stopped_us: None,
        accepted: accepted.iter().map(|&name| name.to_owned()).collect(),
        counts: Some(Counts { stale_rejections: u64::from(accepted == ["B"]), ..Counts::default() }),
        judged: Judgement::default(),
    }
}

#[test]
fn own_tokens_and_a_crash_of_redlock_are_counted_apart() {
    let rounds = vec![
        redlock(Fault::Pause, Tokens::Own, 110, 4, &["B", "A"]),
        redlock(Fault::Crash, Tokens::Own, 99, 5, &["B"]),
        redlock(Fault::Crash, Tokens::Counter, 100, 1, &["B", "A"]),
        redlock(Fault::SyncedCrash, Tokens::Counter, 100, 1, &[]),
    ];
    let figures = redlock::Figures { rounds };
    let [writes, numbers] = cells::own_tokens(Some(&figures)).map(|tally| tally.to_string());
    assert_eq!(writes, "**accepted, 1 of 1**");
    assert_eq!(numbers, "**do not grow, 1 of 1**");
    let crash = cells::one_crashes(Some(&figures));
    assert_eq!(crash, "with sync: kept, 1 of 1; without: kept, 1 of 2 and **two holders, 1 of 2**");
}

/// In each round, the other client asks when the clocks were set, and has the lock at a moment, or never.
fn clocks(leases: Leases, servers: usize, rounds: &[(ClockCase, Option<u64>)]) -> clocks::Figures {
    let contest = |case, at_us: Option<u64>| clocks::Contest {
        fence: Fence::On,
        holder: Job { release_us: (case != ClockCase::Back).then_some(2_800_000), ..job(10, 1, 0) },
        other: at_us.map_or_else(Job::default, |at_us| job(at_us, 2, at_us)),
        value: String::new(),
        counts: Counts::default(),
        judged: Judgement::default(),
    };
    let round = |&(case, at_us)| clocks::Round {
        case,
        round: 1,
        set_us: 0,
        clocks: Vec::new(),
        contests: vec![contest(case, at_us)],
    };
    clocks::Figures { leases, servers, rounds: rounds.iter().map(round).collect() }
}

#[test]
fn jump_that_makes_two_holders_is_a_violation() {
    use ClockCase::{Ahead, Back, Skew};
    let cell = |servers, rounds: &[_]| cells::jumps(Some(&clocks(Leases::WallClock, servers, rounds)));
    let (early, late, end) = (Some(300_000), Some(2_900_000), Some(6_000_000));
    assert_eq!(
        cell(1, &[(Ahead(1), early), (Back, None)]),
        "ahead: **two holders, 1 of 1**; back: held past the TTL, 1 of 1"
    );
    let cases = [(Skew, early), (Ahead(2), late), (Ahead(3), early), (Ahead(5), late), (Back, end)];
    let expected = "minority ahead: kept, 1 of 1; majority: kept, 1 of 2 and **two holders, 1 of 2**; \
                    back: free at the TTL, 1 of 1";
    assert_eq!(cell(5, &cases), expected);
    let cases = [(Ahead(1), late), (Ahead(2), late), (Ahead(3), late), (Back, early)];
    assert_eq!(cell(3, &cases), "ahead: kept, 3 of 3; back: **two holders, 1 of 1**");
    let untestable = clocks(Leases::Untestable, 3, &cases);
    assert_eq!(cells::jumps(Some(&untestable)), "not testable");
}

fn kept() -> Kept {
    Kept {
        pause: Results { runs: Vec::new() },
        release: Results { runs: Vec::new() },
        fairness: Results { runs: Vec::new() },
        failover: Results { runs: Vec::new() },
        redlock: Results { runs: Vec::new() },
        clocks: Results { runs: Vec::new() },
        contention: Results { runs: Vec::new() },
        work: Results { runs: Vec::new() },
        renew: Results { runs: Vec::new() },
        ttl: Results { runs: Vec::new() },
        fenced_stores: Results { runs: Vec::new() },
        prediction: Results { runs: Vec::new() },
        ten_million: Results { runs: Vec::new() },
    }
}

#[test]
fn row_has_the_figures_of_its_backend_alone() {
    let mut kept = kept();
    assert_eq!(kept.row(Backend::Redis)[1..], ["not run"; 8]);
    let setup = Setup::of("", String::new(), Path::new("/"));
    let figures = super::pause::Figures { ttl_ms: 1, pause_ms: 2, rounds: vec![paused(Fence::Off, 1, false)] };
    kept.pause.put(Run { backend: "etcd-lock".to_owned(), setup, figures, predictions: Vec::new() });
    assert_eq!(kept.row(Backend::EtcdLock)[..3], ["etcd-lock", "accepted, 1 of 1", "not run"]);
    for other in Backend::ALL.into_iter().filter(|&backend| backend != Backend::EtcdLock) {
        assert_eq!(kept.row(other)[1], "not run", "{other}");
    }
}

#[test]
fn table_takes_the_place_between_its_lines() {
    let text = format!("a\n{START}\n\n| old |\n\n{END}\nb\n");
    let written = with_tables(&text, "| new |\n").unwrap();
    assert_eq!(written, format!("a\n{START}\n\n| new |\n\n{END}\nb\n"));
    assert_eq!(with_tables(&text.replace(END, ""), "| new |\n"), None);
    assert_eq!(with_tables(&text.replace(START, ""), "| new |\n"), None);
}

#[test]
fn violation_with_the_fence_on_names_its_page() {
    let of = |page, checkers, counted| numbers::Violations { page, checkers, counted, keys: 1 };
    assert_eq!(numbers::text(&[]), "not run");
    assert_eq!(numbers::text(&[of("pause", 0, 0), of("work", 0, 0)]), "0 by the checkers, 0 by the resource, 2 keys");
    let found = numbers::text(&[of("pause", 0, 0), of("work", 1, 0), of("work", 2, 1)]);
    assert_eq!(found, "**3 by the checkers, 1 by the resource**, 3 keys: [work](work.md)");
}

#[test]
fn numbers_have_the_figures_of_their_backend_alone() {
    let mut kept = kept();
    assert_eq!(kept.numbers(Backend::Redis)[1..], ["not run"; 7]);
    let setup = Setup::of("", String::new(), Path::new("/"));
    let mut rounds = vec![paused(Fence::On, 0, true), paused(Fence::On, 1, false), paused(Fence::Off, 1, false)];
    rounds[1].resource_judged.resource.push(String::new());
    let figures = super::pause::Figures { ttl_ms: 1, pause_ms: 2, rounds };
    kept.pause.put(Run { backend: "redis".to_owned(), setup, figures, predictions: Vec::new() });
    let found = "**1 by the checkers, 1 by the resource**, 2 keys: [pause](pause.md)";
    assert_eq!(kept.numbers(Backend::Redis)[4], found);
    assert_eq!(kept.numbers(Backend::Palisade)[4], "not run");
}

#[test]
fn races_and_repaired_runs_with_the_fence_on_are_counted() {
    let put = |stale_accepted: u64, late_refused: bool| {
        let setup = || Setup::of("", String::new(), Path::new("/"));
        let judged = || Judgement { resource: vec![String::new(); usize::from(!late_refused)], ..Judgement::default() };
        let race = |fence| fenced_stores::Race {
            store: crate::stores::Kind::Postgres,
            fence,
            accepted: 1,
            refused: 15,
            lost_swaps: 0,
            stored: fenced_stores::WRITERS,
            value_fits: true,
            late_refused: late_refused && fence == Fence::On,
            judged: judged(),
        };
        let races = [Fence::On, Fence::Off].map(race).into();
        let figures = fenced_stores::Figures { ttl_ms: 1, pause_ms: 2, stores: Vec::new(), rounds: Vec::new(), races };
        let mut kept = kept();
        kept.fenced_stores.put(Run { backend: "redlock".to_owned(), setup: setup(), figures, predictions: Vec::new() });
        let run = |property: &str, repaired: bool, counts: serde_json::Value| {
            serde_json::json!({
                "model": "", "property": property, "repaired": repaired, "ttl_ms": 1, "gap_ms": 0, "length": 0,
                "began": true, "steps": [], "holders": 0,
                "ending": { "counts": counts, "judged": { "operations": 1, "resource": [], "service": [] } },
            })
        };
        let counts = |stale: u64| serde_json::json!({ "writes": 1, "stale_rejections": 0, "stale_accepted": stale });
        let runs = serde_json::json!({ "runs": [
            run("no stale write", false, counts(1)),
            run("no stale write", true, counts(stale_accepted)),
            run("the holder may write", false, counts(0)),
            run("mutual exclusion", true, serde_json::Value::Null),
        ] });
        let figures = serde_json::from_value(runs).unwrap();
        kept.prediction.put(Run { backend: "redlock".to_owned(), setup: setup(), figures, predictions: Vec::new() });
        kept.numbers(Backend::Redlock)[4].clone()
    };
    assert_eq!(put(0, true), "0 by the checkers, 0 by the resource, 3 keys");
    assert_eq!(put(1, true), "**0 by the checkers, 1 by the resource**, 3 keys: [prediction](prediction.md)");
    assert_eq!(put(0, false), "**1 by the checkers, 1 by the resource**, 3 keys: [fenced-stores](fenced-stores.md)");
}

#[test]
fn largest_fill_says_what_ended_it() {
    let case = |asked, taken, ended: Option<&str>| ten_million::Case {
        asked,
        taken,
        ended: ended.map(str::to_owned),
        ..ten_million::Case::default()
    };
    let figures = |cases| ten_million::Figures { keys: 9, cases, notes: Vec::new() };
    let figures = [figures(vec![case(1, 1, None), case(9, 4, Some("no memory"))]), figures(vec![case(9, 9, None)])];
    assert_eq!(figures.each_ref().map(|figures| numbers::many(Some(figures))), ["**4 of 9**: no memory", "9 of 9"]);
    assert_eq!(numbers::many(None), "not run");
}

#[test]
fn acquire_above_the_target_stands_out() {
    let figures = |p99_us, rate| contention::Figures {
        load_average: String::new(),
        duration_us: 0,
        rate: 1,
        asked_work_us: 0,
        uncontended: 9,
        acquire: Latency { count: 9, p50_us: 1_000, p99_us, ..Latency::default() },
        work: Latency { p50_us: 3_000, ..Latency::default() },
        release: Latency { p50_us: 1_000, ..Latency::default() },
        cold: 0,
        cold_error: None,
        cases: vec![contention::ContentionCase {
            contenders: 200,
            summary: Summary {
                handovers_per_second: rate,
                latency: Latency { count: 7, p99_us: 4_000, ..Latency::default() },
                ..Summary::default()
            },
            operations: 0,
            violations: Vec::new(),
        }],
        open: Vec::new(),
    };
    assert_eq!(numbers::acquire(Some(&figures(2_900, 1.0))), "2.9 (9)");
    assert_eq!(numbers::acquire(Some(&figures(3_000, 1.0))), "**3.0 (9)**");
    let [p99, bound] = numbers::hot_key(Some(&figures(1, 250.0)));
    assert_eq!(p99, "4.0 (7)");
    assert_eq!(bound, "200 / 250 hand-overs a second = 800 ms; ceiling 200 a second");
}
