//! The layer for time: it reaches what the layer of single messages reaches, its symmetry is exact, and the path on which
//! a lease once ended early ends well.

use std::collections::{BTreeSet, HashMap, HashSet};

use palisade_model::check::exhaust;
use palisade_model::cluster::{Client, Surroundings};
use palisade_model::leases::{Bounds, Leases, LockNode, State};
use palisade_model::world::{self, Answers, Delivery, Repeats, World};
use palisade_spec::raft::{NodeId, Payload};
use stateright::Model;

/// A small configuration.
const SMALL: Bounds = Bounds {
    terms: 2,
    log: 3,
    ticks: 1,
    ttl: 1,
    clients: 1,
    acquires: 1,
    keepalives: 1,
    crashes: 0,
    delays: 0,
    losses: false,
    symmetry: true,
};

/// Takes the actions of these sentences, one after the other.
fn take(model: &Leases, state: &State, sentences: &[&str]) -> State {
    sentences.iter().fold(state.clone(), |state, sentence| {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        let action = actions.iter().find(|action| model.format_action(action) == *sentence);
        let action = *action.unwrap_or_else(|| panic!("{sentence:?} is not possible in\n{state:?}"));
        model.next_state(&state, action).unwrap_or_else(|| panic!("{sentence:?} changes nothing in\n{state:?}"))
    })
}

fn clocks(state: &State) -> Vec<u64> {
    state.servers.iter().map(|server| server.node.clock().0).collect()
}

/// A session once ended early on this path: server 2 took over the reading of server 1, and with it the time before its own
/// entry existed.
#[test]
fn clock_of_another_log_ends_no_lease_early() {
    let model = Leases::new(Bounds { terms: 4, log: 4, ticks: 2, ..SMALL });
    let blank = model.init_states().remove(0);
    let asked = take(
        &model,
        &blank,
        &[
            "server 1 wins an election with the vote of server 3",
            "real time passes",
            "server 1 looks at its clock",
            "server 2 wins an election with the vote of server 3",
            "the acquire of client 1 arrives at server 2",
            "server 1 wins an election with the vote of server 3",
        ],
    );
    assert_eq!(clocks(&asked), [1, 0, 0]);
    let heard = take(&model, &asked, &["an AppendEntries of server 1 up to entry 0 arrives at server 2, and its answer is lost"]);
    assert_eq!(heard.server(NodeId(2)).node.term(), heard.server(NodeId(1)).node.term());
    assert_eq!(clocks(&heard), [1, 0, 0], "server 2 has entries that server 1 lacks");
    let granted = take(
        &model,
        &heard,
        &[
            "server 2 wins an election with the vote of server 3",
            "an AppendEntries of server 2 up to entry 3 arrives at server 3, with its answer",
            "real time passes",
            "server 2 looks at its clock",
        ],
    );
    assert_eq!((granted.now, clocks(&granted)), (2, vec![1, 1, 0]));
    assert!(granted.clients[0].relies(granted.now, model.bounds.ttl), "its lease counts from 1");
    assert_eq!(granted.truth.table.sessions().len(), 1);
    assert_eq!(granted.violation, None);
}

/// What both layers have: each server's log and clock, real time, and what the client may rely on. Terms count by their
/// order: a lost election raises them in one layer only.
type Seen = (Vec<(Vec<(usize, u64, String)>, u64)>, u64, Vec<(Option<u64>, bool, u64, bool)>);

fn seen<'a>(nodes: impl Iterator<Item = &'a LockNode> + Clone, now: u64, clients: &[Client], ttl: u64) -> Seen {
    let terms: BTreeSet<_> = nodes.clone().flat_map(|node| node.log().entries()).map(|entry| entry.term).collect();
    let rank = |term| terms.iter().take_while(|known| **known < term).count();
    let payload = |payload: &Payload<_>| match payload {
        Payload::Command(command) => format!("{command:?}"),
        Payload::Noop | Payload::Members(_) => String::new(),
    };
    let mut servers: Vec<_> = nodes
        .map(|node| {
            let entries = node.log().entries().iter();
            let entries = entries.map(|entry| (rank(entry.term), entry.stamp.0, payload(&entry.payload))).collect();
            (entries, node.clock().0)
        })
        .collect();
    servers.sort();
    let client = |client: &Client| {
        let asked = (client.arrivals[0] > 0).then_some(client.asked);
        (asked, client.token.is_some(), client.lease, client.relies(now, ttl))
    };
    (servers, now, clients.iter().map(client).collect())
}

/// What `project` makes of every reachable state, one of each orbit.
fn reachable<M: Model, T: Eq + std::hash::Hash>(
    model: &M,
    representative: fn(&M::State) -> u64,
    project: impl Fn(&M::State) -> T,
) -> HashSet<T> {
    let mut known = HashSet::new();
    let mut found = HashSet::new();
    let mut todo = model.init_states();
    while let Some(state) = todo.pop() {
        if known.insert(representative(&state)) {
            found.insert(project(&state));
            todo.extend(model.next_states(&state));
        }
    }
    found
}

#[test]
fn clocks_logs_and_leases_of_single_messages_are_all_reached() {
    let ttl = SMALL.ttl;
    let bounds = world::Bounds {
        terms: SMALL.terms,
        log: SMALL.log,
        repeats: Repeats::AtMost(0),
        delivery: Delivery::AnyTime { most: 2, answers: Answers::Messages },
        symmetry: true,
        ..world::Bounds::default()
    };
    let around = SMALL.around();
    let cluster = World::new(bounds, Surroundings::table(&around), Surroundings::new(around));
    let of_messages = reachable(
        &cluster,
        |state| (0..state.ghost.renamings()).map(|renaming| state.digest(renaming)).min().expect("there are some"),
        |state| {
            let nodes = state.servers.iter().map(|seat| &seat.node);
            seen(nodes, state.environment.now, &state.environment.clients, ttl)
        },
    );
    let of_steps = reachable(&Leases::new(SMALL), least, |state| {
        seen(state.servers.iter().map(|server| &*server.node), state.now, &state.clients, ttl)
    });
    let missing: Vec<_> = of_messages.difference(&of_steps).take(3).collect();
    assert!(missing.is_empty(), "{} of {} are missing, such as {missing:#?}", of_messages.difference(&of_steps).count(), of_messages.len());
    assert!(of_messages.len() > 1_000, "only {} were compared", of_messages.len());
    println!("{} of {} are reached by single messages, too", of_messages.len(), of_steps.len());
}

fn least(state: &State) -> u64 {
    (0..renamings(state)).map(|renaming| state.digest(renaming)).min().expect("there is one")
}

fn renamings(state: &State) -> usize {
    state.servers[0].node.renamings()
}

#[test]
fn representatives_are_exact() {
    let bounds = Bounds { log: 2, crashes: 1, delays: 1, keepalives: 0, ..SMALL };
    let model = Leases::new(bounds.clone());
    let mut found: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut todo = model.init_states();
    while let Some(state) = todo.pop() {
        let digests = (0..renamings(&state)).map(|renaming| state.digest(renaming)).collect();
        if found.insert(state.digest(0), digests).is_none() {
            todo.extend(model.next_states(&state));
        }
    }
    let plain = exhaust(Leases::new(Bounds { symmetry: false, ..bounds.clone() }), None, 1);
    assert_eq!(found.len(), plain.states.1, "every state is found");
    let mut orbits = HashSet::new();
    for digests in found.values() {
        assert!(digests.iter().all(|digest| found.contains_key(digest)), "the servers are interchangeable");
        orbits.insert(digests.iter().min());
    }
    let merged = exhaust(Leases::new(bounds), Some(State::representative), 1);
    assert_eq!(merged.states.1, orbits.len(), "one representative for each orbit");
}
