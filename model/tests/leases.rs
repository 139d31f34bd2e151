//! The layer of leases: its merging of states is exact, it reaches what the layer of single
//! messages reaches, and the path on which a lease once ended early ends well.

use std::collections::{BTreeSet, HashMap, HashSet};

use palisade_model::cluster::{Client, Surroundings};
use palisade_model::leases::{Bounds, Leases, LockNode, State};
use palisade_model::world::{self, Answers, Delivery, World};
use palisade_spec::lock::Command;
use palisade_spec::raft::{NodeId, Payload};
use stateright::Model;

/// A small configuration.
const SMALL: Bounds = Bounds {
    elections: 2,
    log: 3,
    ticks: 1,
    ttl: 1,
    clients: 1,
    acquires: 1,
    keepalives: 0,
    crashes: 0,
    delays: 0,
    losses: false,
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

/// A session once ended early on this path: server 2 took over the reading of server 1, and with it
/// time from before its own entry existed.
#[test]
fn clock_of_another_log_ends_no_lease_early() {
    let model = Leases::new(Bounds { elections: 5, log: 4, ticks: 2, ..SMALL });
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
    let heard = take(&model, &asked, &["a heartbeat of server 1 arrives at server 2"]);
    assert!(!heard.server(NodeId(2)).node.is_leader(), "server 2 has heard of the later term");
    assert_eq!(clocks(&heard), [1, 0, 0], "server 2 has entries that server 1 lacks");
    let granted = take(
        &model,
        &heard,
        &[
            "server 2 wins an election with the vote of server 3",
            "an AppendEntries with all entries of server 2 arrives at server 3",
            "real time passes",
            "server 2 looks at its clock",
        ],
    );
    assert_eq!((granted.now, clocks(&granted)), (2, vec![1, 1, 0]));
    assert!(granted.relies(0), "its lease counts from 1");
    assert_eq!(granted.truth.table.sessions().len(), 1);
    assert_eq!(granted.violation, None);
}

/// All of a state, nothing left out: its parts are the same exactly if their addresses are.
fn identity(state: &State) -> Vec<u64> {
    fn address<T>(part: &T) -> u64 {
        std::ptr::from_ref(part) as u64
    }
    let servers = state.servers.iter().flat_map(|server| [address(&*server.node), server.looked]);
    let delayed = state.delayed.iter().map(|message| address(&**message));
    let births = state.births.iter().flat_map(|birth| [birth.entry.term.0, birth.entry.index.0, birth.at]);
    let rest = [
        address(&*state.clients),
        address(&*state.truth),
        state.now,
        state.elections.into(),
        state.crashes.into(),
        state.delays.into(),
        state.violation.map_or(0, address),
    ];
    rest.into_iter().chain(servers).chain([u64::MAX]).chain(delayed).chain([u64::MAX]).chain(births).collect()
}

/// The digests of a state's successors, and what each property says of it.
type Future = (BTreeSet<u64>, Vec<bool>);

/// What follows from a state: the digests of its successors, and what each property says of it.
fn future(model: &Leases, state: &State) -> Future {
    let successors = model.next_states(state).iter().map(State::digest).collect();
    let verdicts = model.properties().iter().map(|property| (property.condition)(model, state)).collect();
    (successors, verdicts)
}

/// Explores every state without merging any, and compares those of one digest.
fn states_of_one_digest_have_one_future(bounds: Bounds) {
    let model = Leases::new(bounds);
    let mut known = HashSet::new();
    let mut futures: HashMap<u64, (Future, State)> = HashMap::new();
    let mut todo = model.init_states();
    while let Some(state) = todo.pop() {
        if !known.insert(identity(&state)) {
            continue;
        }
        let own = future(&model, &state);
        let (first, example) = futures.entry(state.digest()).or_insert_with(|| (own.clone(), state.clone()));
        let described =
            || [example, &state].map(|state| format!("{state:?}successors:\n{}", successors(&model, state)));
        assert!(*first == own, "these count as one:\n{}", described().join("-- and --\n"));
        todo.extend(model.next_states(&state));
    }
    println!("{} states, {} of them different", known.len(), futures.len());
    assert!(futures.len() > 500 && known.len() > 6 * futures.len(), "{} are {}", known.len(), futures.len());
}

fn successors(model: &Leases, state: &State) -> String {
    let mut described: Vec<_> = model
        .next_steps(state)
        .into_iter()
        .map(|(action, next)| format!("{:016x} {}\n", next.digest(), model.format_action(&action)))
        .collect();
    described.sort();
    described.concat()
}

#[test]
fn merging_is_exact_with_time_and_clients() {
    states_of_one_digest_have_one_future(Bounds { ticks: 2, elections: 3, log: 2, ..SMALL });
}

#[test]
#[ignore = "takes long; `just models` runs it"]
fn merging_is_exact_with_crashes() {
    states_of_one_digest_have_one_future(Bounds { crashes: 1, clients: 2, ..SMALL });
}

#[test]
#[ignore = "takes long; `just models` runs it"]
fn merging_is_exact_with_late_messages_and_keepalives() {
    states_of_one_digest_have_one_future(Bounds { delays: 1, keepalives: 1, ..SMALL });
}

/// What both layers have: each server's log and clock, real time, and what the clients asked for.
/// Terms count by their order: a lost election raises them in one layer only.
type Seen = (Vec<(Vec<(usize, u64, String)>, u64)>, u64, Vec<([u8; 3], u64)>);

/// What the clients know: the lease of each that was granted the lock.
type Known = Vec<Option<(u64, bool)>>;

fn seen<'a>(
    nodes: impl Iterator<Item = &'a LockNode> + Clone,
    now: u64,
    clients: &[Client],
    ttl: u64,
) -> (Seen, Known) {
    let terms: BTreeSet<_> = nodes.clone().flat_map(|node| node.log().entries()).map(|entry| entry.term).collect();
    let rank = |term| terms.iter().take_while(|known| **known < term).count();
    let payload = |payload: &Payload<Command>| match payload {
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
    let asked = clients.iter().map(|client| (client.arrivals, client.asked)).collect();
    let known = clients.iter().map(|client| client.token.map(|_| (client.lease, client.relies(now, ttl)))).collect();
    ((servers, now, asked), known)
}

/// What `project` makes of every reachable state, one of each digest, as far as `explore` goes.
fn reachable<M: Model>(
    model: &M,
    digest: impl Fn(&M::State) -> u64,
    explore: impl Fn(&M::State) -> bool,
    project: impl Fn(&M::State) -> (Seen, Known),
) -> HashMap<Seen, HashSet<Known>> {
    let mut known = HashSet::new();
    let mut found: HashMap<Seen, HashSet<Known>> = HashMap::new();
    let mut todo = model.init_states();
    while let Some(state) = todo.pop() {
        if explore(&state) && known.insert(digest(&state)) {
            let (seen, clients) = project(&state);
            found.entry(seen).or_default().insert(clients);
            todo.extend(model.next_states(&state));
        }
    }
    found
}

/// Whether clients with this knowledge rely on nothing that the others do not rely on.
fn is_less(known: &Known, than: &Known) -> bool {
    known.iter().zip(than).all(|(less, more)| less.is_none() || less == more)
}

/// Every log, clock and moment that single messages lead to is reached, with clients that know as
/// much or more.
fn reaches_what_messages_reach(bounds: Bounds, of_messages: world::Bounds) {
    let (ttl, clients) = (bounds.ttl, bounds.client_bounds());
    let cluster = World::new(of_messages, Surroundings::table(&clients), Surroundings::new(clients));
    let of_messages = reachable(
        &cluster,
        |state| (0..state.history.renamings()).map(|renaming| state.digest(renaming)).min().expect("there are some"),
        // The layer of leases has no releases, and no writes to a resource, which change nothing
        // that is compared.
        |state| state.environment.clients.iter().all(|client| client.arrivals[1] == 0 && !client.wrote),
        |state| {
            let nodes = state.servers.iter().map(|replica| &replica.node);
            seen(nodes, state.environment.now, &state.environment.clients, ttl)
        },
    );
    let of_steps = reachable(
        &Leases::new(bounds),
        State::digest,
        |_| true,
        |state| seen(state.servers.iter().map(|server| &*server.node), state.now, &state.clients, ttl),
    );
    let is_reached = |seen: &Seen, known: &Known| {
        of_steps.get(seen).is_some_and(|reached| reached.iter().any(|more| is_less(known, more)))
    };
    let missing: Vec<_> = of_messages
        .iter()
        .flat_map(|(seen, all)| all.iter().map(move |known| (seen, known)))
        .filter(|(seen, known)| !is_reached(seen, known))
        .collect();
    let both = of_messages.keys().filter(|seen| of_steps.contains_key(*seen)).count();
    println!("{} seen by messages, {} by macro steps, {both} by both", of_messages.len(), of_steps.len());
    let mut described: Vec<_> = missing.iter().map(|missing| format!("{missing:?}")).collect();
    described.sort_by_key(String::len);
    described.truncate(5);
    assert!(missing.is_empty(), "{} are missing, such as\n{}", missing.len(), described.join("\n"));
    assert!(of_messages.len() > 100, "only {} were compared", of_messages.len());
}

#[test]
fn late_messages_reach_no_state_that_leases_misses() {
    let bounds = Bounds { log: 2, delays: 1, ..SMALL };
    let (delivery, heartbeats) = (Delivery::AnyTime { most: 2, answers: Answers::AtOnce }, Some(1));
    reaches_what_messages_reach(
        bounds,
        world::Bounds { terms: 2, log: 2, heartbeats, delivery, symmetry: true, ..world::Bounds::default() },
    );
}

#[test]
#[ignore = "takes long; `just models` runs it"]
fn crashes_reach_no_state_that_leases_misses() {
    let bounds = Bounds { crashes: 1, ..SMALL };
    let delivery = Delivery::Prompt { losses: 0, cuts: 1 };
    reaches_what_messages_reach(
        bounds,
        world::Bounds { terms: 2, log: 3, crashes: 1, delivery, ..world::Bounds::default() },
    );
}
