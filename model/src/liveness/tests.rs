//! Tests: flaws are found with the expected lassos, and merged states have the same future.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::graph::{fingerprint, steps};
use super::healing::{self, Healing, Until};
use super::queue::{self, Flaw, Queue};
use super::registry::{BLANK, HOLDS, MIXED, PERMITS, QUEUE, RETURNING, healing, returning};
use super::{Graph, Lasso, Live, NEVER, Unfinished, check};
use crate::layers::{LOCKS_SEVERAL, LOCKS_SHARED, REPLACED, prompt};
use crate::membership::Operators;
use crate::raft::Proposals;
use crate::world::Bounds;

const MOST: usize = 1_000_000;

/// The violation of a property, and the number of violations of other properties.
fn violation<M: Live>(model: &M, property: &str) -> (Lasso, usize) {
    let mut report = check(model, MOST).unwrap();
    report.answers.retain(|answer| answer.lasso.is_some());
    let others = report.answers.iter().filter(|answer| answer.response.property != property).count();
    let own = report.answers.into_iter().filter(|answer| answer.response.property == property);
    let shortest = own.filter_map(|answer| answer.lasso).min_by_key(Lasso::steps);
    (shortest.unwrap_or_else(|| panic!("no violation of {property:?}")), others)
}

fn sentences(lasso: &Lasso) -> (Vec<&str>, Vec<&str>) {
    let all: Vec<&str> = lasso.trace.steps.iter().map(|step| step.action.as_str()).collect();
    (all[..lasso.stem].to_vec(), all[lasso.stem..].to_vec())
}

/// Walks at random through unmerged states, and compares their successors with those in the graph.
fn merging_is_exact<M: Live>(model: &M, walks: u64, length: usize) {
    let graph = Graph::explore(model, MOST).unwrap();
    let numbers = graph.numbers();
    for seed in 0..walks {
        let mut random = StdRng::seed_from_u64(seed);
        let mut state = model.init_states().remove(0);
        for _ in 0..length {
            let number = numbers[&fingerprint(&state)];
            assert_eq!(model.labels(&state), graph.labels[number as usize], "{state:?}");
            let mut steps = steps(model, &state);
            let own: BTreeSet<_> = steps.iter().map(|(_, classes, next)| (*classes, fingerprint(next))).collect();
            let merged = graph.edges(number).iter().map(|edge| (edge.classes, graph.fingerprint(edge.to)));
            assert_eq!(own, merged.collect(), "what follows differs from what follows in the graph:\n{state:?}");
            if steps.is_empty() {
                break;
            }
            state = steps.swap_remove(random.random_range(0..steps.len())).2;
        }
    }
}

/// A test for each of these queues.
macro_rules! merging_is_exact {
    ($($name:ident: $bounds:expr,)*) => {$(
        #[test]
        fn $name() {
            merging_is_exact(&Queue::new($bounds), 20, 2_000);
        }
    )*};
}

merging_is_exact! {
    merging_of_queues_with_sessions_of_one_claim_is_exact: queue::Bounds { ttl: 2, once: true, ..QUEUE },
    merging_of_queues_with_small_sweeps_is_exact: queue::Bounds { sweep: 1, sweeps_catch_up: true, ..QUEUE },
    merging_of_two_queues_is_exact: queue::Bounds { clients: 2, keys: 2, ..QUEUE },
    merging_of_queues_of_shared_claims_is_exact: queue::Bounds { wanted: LOCKS_SHARED.wanted, ..QUEUE },
    merging_of_queues_for_permits_is_exact: queue::Bounds { wanted: PERMITS, ..QUEUE },
    merging_of_queues_with_holds_is_exact: queue::Bounds { wanted: HOLDS, ..QUEUE },
    merging_of_queues_of_readers_and_a_writer_of_both_is_exact:
        queue::Bounds { clients: 2, keys: 2, wanted: MIXED, ..QUEUE },
    merging_of_queues_of_claims_on_several_keys_is_exact:
        queue::Bounds { clients: 2, keys: 2, wanted: LOCKS_SEVERAL.wanted, ..QUEUE },
}

#[test]
#[ignore = "takes long; `just models` runs it"]
fn merging_of_healed_clusters_is_exact() {
    merging_is_exact(&small(), 20_000, 40);
    merging_is_exact(&small_returning(), 5_000, 40);
}

#[test]
fn queue_that_skips_its_first_waiter_starves_it() {
    let model = Queue::new(queue::Bounds { flaw: Some(Flaw::SkipsFirstWaiter), ..QUEUE });
    let (lasso, others) = violation(&model, queue::GRANTED);
    assert_eq!(others, 0, "every session ends all the same");
    let (stem, cycle) = sentences(&lasso);
    assert_eq!((stem.len(), lasso.due_after), (4, 4), "two sessions are opened, and both acquire\n{lasso}");
    assert_eq!(stem.iter().filter(|step| step.contains("acquires a, and waits")).count(), 2, "{lasso}");
    // The other two take turns.
    assert_eq!(cycle.iter().filter(|step| step.contains("releases a")).count(), 2, "{lasso}");
    assert_eq!(cycle.iter().filter(|step| step.contains("acquires a")).count(), 2, "{lasso}");
    let waits: usize = lasso.of[7..8].parse().unwrap();
    assert!(!cycle.contains(&format!("client {waits} releases a").as_str()), "{lasso}");
    assert!(lasso.to_string().contains("\nfrom here the following repeats for ever:\n"), "{lasso}");
    assert!(lasso.fairness[0].starts_with("time passes: happens in step "), "{lasso}");
}

#[test]
fn idle_session_without_a_sweep_never_ends() {
    let model = Queue::new(queue::Bounds { flaw: Some(Flaw::IgnoresIdleSessions), ..QUEUE });
    let (lasso, _) = violation(&model, queue::DUE_ENDS);
    let (stem, cycle) = sentences(&lasso);
    let client = &lasso.of;
    let expected = ["opens a session", "stops for good"].map(|transition| format!("{client} {transition}"));
    assert_eq!(stem[..2], expected, "{lasso}");
    assert_eq!((&stem[2..], cycle.len()), (&["time passes", "time passes"][..], 0), "{lasso}");
    assert!(lasso.to_string().contains(&format!("\nfrom here {NEVER}\n")), "{lasso}");
    assert_eq!(lasso.due_after, 4);
}

/// If a sweep ends a single session, sessions that others wait for come first, again and again.
#[test]
fn uncontended_sessions_need_strongly_fair_sweeps() {
    let bounds = queue::Bounds { sweep: 1, ..QUEUE };
    let (lasso, others) = violation(&Queue::new(bounds), queue::DUE_ENDS);
    assert!(others > 0, "it is the session of a client that has stopped");
    let (_, cycle) = sentences(&lasso);
    assert!(cycle.contains(&"the leader's no-op sweeps") && cycle.contains(&"time passes"), "{lasso}");
    assert!(!cycle.iter().any(|step| step.starts_with(&lasso.of)), "{lasso}");
    let report = check(&Queue::new(queue::Bounds { sweeps_catch_up: true, ..bounds }), MOST).unwrap();
    assert!(report.holds(), "{report}");
}

/// A blank cluster that may lose a message.
fn small() -> Healing<Proposals> {
    healing(Until { terms: 1, log: 2 }, Bounds { delivery: prompt(1, 1), ..BLANK })
}

fn small_returning() -> Healing<Operators> {
    returning(REPLACED, Until { terms: 1, log: 3 }, Bounds { delivery: prompt(0, 1), ..RETURNING })
}

#[test]
fn small_clusters_heal() {
    for report in [check(&small(), MOST).unwrap(), check(&small_returning(), MOST).unwrap()] {
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn without_heartbeats_lost_entries_are_not_repeated() {
    let (lasso, _) = violation(&small().with(healing::Flaw::NoHeartbeats), healing::CATCHES_UP);
    let (stem, cycle) = sentences(&lasso);
    assert!(
        stem.last().unwrap().contains("election timer runs out") || stem.last().unwrap().contains("heals"),
        "{lasso}"
    );
    assert!(cycle.is_empty(), "{lasso}");
}

#[test]
fn disconnected_server_does_not_catch_up() {
    let (lasso, others) = violation(&small().with(healing::Flaw::OneStaysAway), healing::CATCHES_UP);
    assert_eq!(others, 0, "the others elect a leader\n{lasso}");
    let (stem, cycle) = sentences(&lasso);
    assert!(stem.contains(&"server 3 is cut off from the others"), "{lasso}");
    assert!(cycle.iter().any(|step| step.contains("sends heartbeats")), "{lasso}");
}

/// R40 promotes with a heartbeat that finds the member active: one heartbeat between two
/// CheckQuorum checks is not enough.
#[test]
fn promotion_needs_a_second_heartbeat() {
    let (lasso, others) = violation(&small_returning().without_second_heartbeats(), healing::REGAINS);
    assert_eq!(others, 0, "{lasso}");
    let (_, cycle) = sentences(&lasso);
    assert!(cycle.iter().any(|step| step.contains("sends heartbeats")), "{lasso}");
    assert!(cycle.iter().any(|step| step.contains("election timer runs out")), "{lasso}");
}

#[test]
fn graph_that_is_too_large_is_an_error() {
    assert_eq!(check(&Queue::new(QUEUE), 100).unwrap_err(), Unfinished::TooMany(100));
}

/// A counter up to 3, whose bound cuts runs off.
struct Bounded;

impl stateright::Model for Bounded {
    type State = u8;
    type Action = ();

    fn init_states(&self) -> Vec<u8> {
        vec![0]
    }

    fn actions(&self, _: &u8, actions: &mut Vec<()>) {
        actions.push(());
    }

    fn next_state(&self, last: &u8, (): ()) -> Option<u8> {
        (*last < 3).then_some(last + 1)
    }
}

impl crate::presentation::Presentation for Bounded {}

impl Live for Bounded {
    fn classes(&self) -> Vec<super::Class> {
        Vec::new()
    }

    fn classes_of(&self, _: &u8, (): &()) -> u64 {
        0
    }

    fn labels(&self, _: &u8) -> u64 {
        0
    }

    fn responses(&self) -> Vec<super::Response> {
        let never = |property| super::Response { property, of: "it".to_string(), pending: 0, served: 1 };
        vec![never("what is never due")]
    }

    fn out_of_room(&self, state: &u8) -> Option<String> {
        (*state == 3).then(|| "it stops at 3".to_string())
    }
}

#[test]
fn bound_that_cuts_a_run_off_is_an_error() {
    assert_eq!(check(&Bounded, MOST).unwrap_err().to_string(), "runs are cut off: it stops at 3");
}
