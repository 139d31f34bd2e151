//! Symmetry merges exactly the states that can be renamed into one another, no more and no fewer.

use std::collections::{HashMap, HashSet};

use palisade_model::check::exhaust;
use palisade_model::membership::{Changes, Operators};
use palisade_model::raft::{Proposals, Tape};
use palisade_model::world::{Answers, Bounds, Delivery, Environment, World};
use stateright::Model;

fn consensus(symmetry: bool) -> World<Proposals> {
    let bounds = Bounds {
        terms: 1,
        log: 1,
        crashes: 1,
        delivery: Delivery::AnyTime { most: 2, answers: Answers::Messages },
        symmetry,
        ..Bounds::default()
    };
    World::new(bounds, Tape::default(), Proposals::new(1, 0))
}

/// Three founders, which are alike, and a server that joins, which is like none of them.
fn membership(symmetry: bool) -> World<Operators> {
    let bounds = Bounds {
        joiners: 1,
        terms: 1,
        log: 2,
        delivery: Delivery::AnyTime { most: 2, answers: Answers::AtOnce },
        symmetry,
        ..Bounds::default()
    };
    let changes = Changes { additions: 1, removals: 1, ..Changes::default() };
    World::new(bounds, Tape::default(), Operators::new(changes, 0, 2))
}

/// Every reachable state, by its digest under each renaming.
fn reachable<E: Environment>(world: &World<E>) -> Vec<Vec<u64>> {
    let digests = |state: &<World<E> as Model>::State| -> Vec<u64> {
        (0..state.ghost.renamings()).map(|renaming| state.digest(renaming)).collect()
    };
    let mut found = HashMap::new();
    let mut todo = world.init_states();
    while let Some(state) = todo.pop() {
        if found.insert(state.digest(0), digests(&state)).is_none() {
            todo.extend(world.next_states(&state));
        }
    }
    found.into_values().collect()
}

fn representatives_are_exact<E: Environment>(world: fn(bool) -> World<E>) {
    let all = reachable(&world(true));
    assert_eq!(all.len(), exhaust(world(false), None, 1).states.1, "every state is found");
    let known: HashSet<u64> = all.iter().map(|digests| digests[0]).collect();
    let mut orbits: HashMap<u64, usize> = HashMap::new();
    for digests in &all {
        // Whatever a state is renamed into can be reached, too: the servers are interchangeable.
        assert!(digests.iter().all(|digest| known.contains(digest)));
        *orbits.entry(*digests.iter().min().unwrap()).or_default() += 1;
        let different = digests.iter().collect::<HashSet<_>>().len();
        assert!([1, 2, 3, 6].contains(&different), "an orbit's size divides the number of renamings");
    }
    let merged = exhaust(world(true), Some(World::representative), 1);
    assert_eq!(merged.states.1, orbits.len(), "one representative for each orbit");
}

#[test]
fn representatives_of_servers_are_exact() {
    representatives_are_exact(consensus);
}

#[test]
fn representatives_of_founders_are_exact() {
    representatives_are_exact(membership);
}
