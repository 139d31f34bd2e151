//! Symmetry merges exactly the states that can be renamed into one another, no more and no fewer.

use std::collections::{BTreeSet, HashMap, HashSet};

use palisade_model::check::exhaust;
use palisade_model::membership::{Changes, Operators};
use palisade_model::raft::{Proposals, Tape};
use palisade_model::world::{Answers, Bounds, Delivery, Environment, Repeats, World};
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

/// Messages arrive within the step in which they are sent, in an order that does not depend on
/// names.
fn prompt_with_leader(symmetry: bool) -> World<Proposals> {
    let bounds = Bounds { starts_with_leader: true, terms: 3, ..prompt(symmetry).bounds };
    World::new(bounds, Tape::default(), Proposals::new(2, 0))
}

/// The same without a leader at the beginning.
fn prompt(symmetry: bool) -> World<Proposals> {
    let bounds = Bounds {
        terms: 2,
        log: 2,
        crashes: 1,
        repeats: Repeats::AtMost(1),
        delivery: Delivery::Prompt { losses: 1, cuts: 0 },
        symmetry,
        ..Bounds::default()
    };
    World::new(bounds, Tape::default(), Proposals::new(2, 0))
}

/// The same with a server that joins.
fn prompt_membership(symmetry: bool) -> World<Operators> {
    let bounds = Bounds {
        joiners: 1,
        terms: 1,
        log: 3,
        crashes: 1,
        delivery: Delivery::Prompt { losses: 0, cuts: 1 },
        symmetry,
        ..Bounds::default()
    };
    let changes = Changes { additions: 1, promotions: 1, ..Changes::default() };
    World::new(bounds, Tape::default(), Operators::new(changes, 0, 3))
}

type StateOf<E> = <World<E> as Model>::State;

fn digests<E: Environment>(state: &StateOf<E>) -> Vec<u64> {
    (0..state.history.renamings()).map(|renaming| state.digest(renaming)).collect()
}

fn least<E: Environment>(state: &StateOf<E>) -> u64 {
    digests::<E>(state).into_iter().min().expect("there is a renaming")
}

/// Every reachable state.
fn reachable<E: Environment>(world: &World<E>) -> HashMap<u64, StateOf<E>> {
    let mut found = HashMap::new();
    let mut todo = world.init_states();
    while let Some(state) = todo.pop() {
        if found.insert(state.digest(0), state.clone()).is_none() {
            todo.extend(world.next_states(&state));
        }
    }
    found
}

/// States that can be renamed into one another lead to states that can, and there is one
/// representative for all of them.
fn representatives_are_exact<E: Environment>(world: fn(bool) -> World<E>) {
    let symmetric = world(true);
    let all = reachable(&symmetric);
    let mut futures: HashMap<u64, BTreeSet<u64>> = HashMap::new();
    for state in all.values() {
        let future = symmetric.next_states(state).iter().map(least::<E>).collect();
        let known = futures.entry(least::<E>(state)).or_insert_with(|| BTreeSet::clone(&future));
        assert_eq!(*known, future, "what a state is called decides where it leads:\n{state:?}");
    }
    let merged = exhaust(symmetric, Some(World::representative), 1);
    assert_eq!(merged.states.1, futures.len(), "one representative for each orbit");
    assert!(merged.states.1 < all.len(), "something is merged");
}

/// All that a state can be renamed into is reached, and nothing else is merged with it.
fn orbits_are_whole<E: Environment>(world: fn(bool) -> World<E>) {
    let all = reachable(&world(true));
    assert_eq!(all.len(), exhaust(world(false), None, 1).states.1, "every state is found");
    for state in all.values() {
        let digests = digests::<E>(state);
        assert!(digests.iter().all(|digest| all.contains_key(digest)));
        let different = digests.iter().collect::<HashSet<_>>().len();
        assert!([1, 2, 3, 6].contains(&different), "an orbit's size divides the number of renamings");
    }
}

#[test]
fn representatives_of_servers_are_exact() {
    representatives_are_exact(consensus);
    orbits_are_whole(consensus);
}

#[test]
fn representatives_of_founders_are_exact() {
    representatives_are_exact(membership);
    orbits_are_whole(membership);
}

#[test]
fn representatives_are_exact_where_messages_are_prompt() {
    representatives_are_exact(prompt);
    representatives_are_exact(prompt_with_leader);
}

#[test]
fn representatives_of_founders_are_exact_where_messages_are_prompt() {
    representatives_are_exact(prompt_membership);
}
