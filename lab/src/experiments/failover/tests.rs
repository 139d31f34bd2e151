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

fn party() -> Party {
    Party {
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
fn lost() -> Party {
    let mut party = party();
    party.challenger = job("challenger", 500, 1, 550);
    party.value = [1, 2].map(line).concat();
    party.judged[0].service.push("a key has one holder at a time".to_owned());
    party
}

fn failed(asynchronous: bool, case: Case, party: Party) -> Vec<String> {
    let round = |case, party| Round {
        case,
        round: 1,
        killed: "server-1".to_owned(),
        kill_us: 400,
        grants: 9,
        gap_from_us: 399,
        gap_us: 100,
        parties: vec![party],
    };
    let other = if case == Case::InSync { Case::Lagging } else { Case::InSync };
    let other_party = if asynchronous && other == Case::Lagging { lost() } else { self::party() };
    let rounds = vec![round(case, party), round(other, other_party)];
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
    for case in Case::ALL {
        assert_eq!(failed(false, case, party()), Vec::<String>::new());
    }
}

#[test]
fn overtaken_waiter_is_found() {
    let mut overtaken = party();
    overtaken.queue.swap(1, 2);
    assert_eq!(overtaken.overtakings(), 1);
    let mut left_out = party();
    left_out.queue[2].granted = None;
    for party in [overtaken, left_out] {
        let failed = failed(false, Case::InSync, party);
        assert!(failed.iter().any(|what| what.contains("in the order of their arrival")), "{failed:?}");
    }
}

#[test]
fn lost_lock_fails_where_it_must_survive() {
    let failed = failed(false, Case::Lagging, lost());
    for what in ["survives", "tokens grow", "values are whole"] {
        assert!(failed.iter().any(|failed| failed.contains(what)), "{what} holds: {failed:?}");
    }
}

#[test]
fn asynchronous_replica_that_loses_nothing_has_failed() {
    assert_eq!(failed(true, Case::Lagging, lost()), Vec::<String>::new());
    let failed = failed(true, Case::Lagging, party());
    assert_eq!(failed.len(), 4, "{failed:?}");
}

#[test]
fn service_without_a_gap_after_the_kill_has_failed() {
    let round = Round {
        case: Case::InSync,
        round: 1,
        killed: "server-1".to_owned(),
        kill_us: 400,
        grants: 9,
        gap_from_us: 100,
        gap_us: 200,
        parties: vec![party()],
    };
    let figures = Figures { queue: true, asynchronous: false, rounds: vec![round] };
    assert!(!predictions(&figures)[0].holds, "grants have ended with the kill");
}
