use super::super::clients::{Grant, Wrote};
use super::*;
use crate::contend::attempt::Release;

fn job(owner: &str, at_us: u64, token: u64, release_us: u64) -> Job {
    Job {
        owner: owner.to_owned(),
        granted: Some(Grant { at_us, token }),
        wrote: Some(Wrote::Accepted { at_us: release_us }),
        release_us: Some(release_us),
        release: Some(Release::Done),
        ..Job::default()
    }
}

fn line(token: u64) -> String {
    crate::worker::job::line("client", 1, token)
}

fn contest() -> Contest {
    Contest {
        fence: Fence::On,
        earlier: job("earlier", 10, 1, 20),
        holder: job("holder", 30, 2, 900),
        challenger: job("challenger", 910, 3, 950),
        value: [1, 2, 3].map(line).concat(),
        queue: vec![job("first", 5, 4, 600), job("waiter-1", 610, 5, 650), job("waiter-2", 660, 6, 700)],
        queue_value: [4, 5, 6].map(line).concat(),
        counts: Counts { writes: 6, ..Counts::default() },
        judged: Default::default(),
    }
}

/// As after the promotion of a replica that lacks the grants of tokens 1 and 2.
fn lost() -> Contest {
    let mut contest = contest();
    contest.challenger = job("challenger", 500, 1, 550);
    contest.value = [1, 2].map(line).concat();
    contest.judged[0].service.push("a key has one holder at a time".to_owned());
    contest
}

fn failed(asynchronous: bool, case: FailoverCase, contest: Contest) -> Vec<String> {
    let round = |case, contest| Round {
        case,
        round: 1,
        killed: "server-1".to_owned(),
        kill_us: 400,
        grants: 9,
        gap_from_us: 399,
        gap_us: 100,
        contests: vec![contest],
    };
    let other = if case == FailoverCase::InSync { FailoverCase::Lagging } else { FailoverCase::InSync };
    let other_contest = if asynchronous && other == FailoverCase::Lagging { lost() } else { self::contest() };
    let rounds = vec![round(case, contest), round(other, other_contest)];
    let predictions = predictions(&Figures { queue: !asynchronous, asynchronous, rounds });
    predictions.into_iter().filter(|prediction| !prediction.holds).map(|prediction| prediction.predicted).collect()
}

#[test]
fn longest_gap_is_found_with_its_beginning() {
    assert_eq!(longest_gap(&mut [50, 10, 20, 90]), (50, 40));
    assert_eq!(longest_gap(&mut [7]), (0, 0));
}

#[test]
fn sound_failover_is_as_predicted() {
    for case in FailoverCase::ALL {
        assert_eq!(failed(false, case, contest()), Vec::<String>::new());
    }
}

#[test]
fn overtaken_waiter_is_found() {
    let mut overtaken = contest();
    overtaken.queue.swap(1, 2);
    assert_eq!(overtaken.overtakings(), 1);
    let mut left_out = contest();
    left_out.queue[2].granted = None;
    for contest in [overtaken, left_out] {
        let failed = failed(false, FailoverCase::InSync, contest);
        assert!(failed.iter().any(|what| what.contains("in the order of their arrival")), "{failed:?}");
    }
}

#[test]
fn lost_lock_fails_where_it_must_survive() {
    let failed = failed(false, FailoverCase::Lagging, lost());
    for what in ["survives", "tokens grow", "values are whole"] {
        assert!(failed.iter().any(|failed| failed.contains(what)), "{what} holds: {failed:?}");
    }
}

#[test]
fn asynchronous_replica_that_loses_nothing_has_failed() {
    assert_eq!(failed(true, FailoverCase::Lagging, lost()), Vec::<String>::new());
    let failed = failed(true, FailoverCase::Lagging, contest());
    assert_eq!(failed.len(), 4, "{failed:?}");
}

#[test]
fn service_without_a_gap_after_the_kill_has_failed() {
    let round = Round {
        case: FailoverCase::InSync,
        round: 1,
        killed: "server-1".to_owned(),
        kill_us: 400,
        grants: 9,
        gap_from_us: 100,
        gap_us: 200,
        contests: vec![contest()],
    };
    let figures = Figures { queue: true, asynchronous: false, rounds: vec![round] };
    assert!(!predictions(&figures)[0].holds, "grants have ended with the kill");
    let mut late = figures;
    (late.rounds[0].gap_from_us, late.rounds[0].gap_us) = (400 + KILL_MS * 1000, 200);
    assert!(predictions(&late)[0].holds);
    late.rounds[0].gap_from_us += 1;
    assert!(!predictions(&late)[0].holds, "the gap is not that after the kill");
}
