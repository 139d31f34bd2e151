//! The gallery, explored to its end: every flaw is found, in no more steps than it takes, and every
//! repair holds. The numbers are pinned: a change of a story that changes them has to say why.

use palisade_model::check::Expected;
use palisade_model::gallery;
use palisade_model::named::Named;

/// Flawed designs: the property that each violates and nothing else, and the length of a shortest
/// way to it.
const FLAWS: [(&str, &str, usize); 12] = [
    ("gallery-redis-failover", "mutual exclusion", 3),
    ("gallery-redis-wait", "mutual exclusion", 7),
    ("gallery-redis-release", "mutual exclusion", 6),
    ("gallery-redlock-clock", "mutual exclusion", 7),
    ("gallery-redlock-crash", "mutual exclusion", 8),
    ("gallery-redlock-pause", "no stale write", 12),
    ("gallery-fencing", "no stale write", 5),
    ("gallery-raft-apply", "mutual exclusion", 7),
    ("gallery-raft-token", "token monotonicity", 6),
    ("gallery-raft-queue", "FIFO order", 5),
    ("gallery-raft-clock", "replicas agree", 7),
    ("gallery-made-up-token", "the holder may write", 3),
];

/// Repaired designs: the property that holds again, and the number of states that show it.
const REPAIRS: [(&str, &str, usize); 11] = [
    ("gallery-redis-failover-repaired", "mutual exclusion", 559),
    ("gallery-redis-release-repaired", "mutual exclusion", 8),
    ("gallery-redlock-clock-repaired", "mutual exclusion", 64_662),
    ("gallery-redlock-crash-repaired", "mutual exclusion", 226_317),
    ("gallery-redlock-pause-repaired", "no stale write", 23_660),
    ("gallery-fencing-repaired", "no stale write", 74),
    ("gallery-raft-apply-repaired", "mutual exclusion", 159_927),
    ("gallery-raft-token-repaired", "token monotonicity", 119),
    ("gallery-raft-queue-repaired", "FIFO order", 48),
    ("gallery-raft-clock-repaired", "replicas agree", 20_244),
    ("gallery-made-up-token-repaired", "the holder may write", 148),
];

fn named(flawed: bool) -> Vec<Named> {
    gallery::models().into_iter().filter(|named| (named.expected != Expected::Holds) == flawed).collect()
}

#[test]
fn every_flaw_is_found() {
    let flawed = named(true);
    assert_eq!(flawed.iter().map(|named| named.name).collect::<Vec<_>>(), FLAWS.map(|(name, ..)| name));
    for (named, (name, property, steps)) in flawed.iter().zip(FLAWS) {
        assert_eq!(named.expected, Expected::Violates(property), "{name}");
        let verdict = named.model.check(1);
        assert_eq!(verdict.violated, [property], "{name}: {verdict}");
        assert!(verdict.unmet.is_empty(), "{name}: {verdict}");
        let trace = named.model.trace(property).expect("what is violated has a shortest trace");
        assert_eq!(trace.steps.len(), steps, "{name}: {trace:#?}");
        let silent = trace.steps.iter().find(|step| step.outcome.is_empty());
        assert!(silent.is_none(), "{name}: on a shortest way every step changes something: {silent:?}");
    }
}

#[test]
fn every_repair_holds() {
    let repaired = named(false);
    assert_eq!(repaired.iter().map(|named| named.name).collect::<Vec<_>>(), REPAIRS.map(|(name, ..)| name));
    for (named, (name, property, unique)) in repaired.iter().zip(REPAIRS) {
        assert!(named.model.properties().contains(&(property, false)), "{name} must say that there is {property}");
        let verdict = named.model.check(1);
        assert!(verdict.passes(), "{name}: {verdict}");
        assert_eq!(verdict.states.1, unique, "{name}: {verdict}");
    }
}

/// What must be possible is the same on both sides, but for what only a repair makes possible: so
/// the repair does not hold because nothing happens in it.
#[test]
fn repair_keeps_the_possible_properties_of_the_flawed_design() {
    let properties = |named: &Named| named.model.properties();
    for flawed in named(true) {
        let repair = format!("{}-repaired", flawed.name.replace("-wait", "-failover"));
        let repaired = named(false).into_iter().find(|named| named.name == repair).expect("every flaw has its repair");
        let possible: Vec<_> = properties(&flawed).into_iter().filter(|(_, possible)| *possible).collect();
        assert!(possible.len() >= 2, "{} shows too little of what happens", flawed.name);
        for property in properties(&flawed) {
            assert!(properties(&repaired).contains(&property), "{repair} leaves out {property:?}");
        }
    }
}
