//! Every order in which nodes publish, dispatchers wake, and a client watches, loses its connection and goes
//! on elsewhere, within bounds: what the client is shown has no gap that it is not told of, and no repetition.
//!
//! The exploration executes the server's own hub, dispatcher and watcher, one step of one of them after the
//! other. Threads that run beside one another are the subject of the loom tests (tests/loom). A state cannot be
//! copied, so it is reached anew by the steps that led to it, and states with the same contents count once.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use palisade_client::WatchPosition;
use palisade_client::wire::{EventId, Listing, Watched};
use palisade_spec::lock::{
    Access, Claim, Command, Event, Keys, LockRequest, LockTable, Opening, Owner, Principal, Proof, SessionId, Ttl,
};
use palisade_spec::raft::{Index, Stamp, StateMachine};

use super::directory::Slot;
use super::dispatch::wake_group;
use super::{Feed, Filter, Hub, Told, Watcher};
use crate::metrics::Metrics;

/// The limits of an exploration.
struct Bounds {
    /// The keys that the client follows.
    filter: fn() -> Filter,
    /// The IDs of the events that the client must be shown, written by hand.
    events: &'static [&'static str],
    nodes: usize,
    /// The bytes of events that a node keeps.
    history_bytes: usize,
    /// How often a node receives a leader's snapshot, a node starts again, and the client begins a watch.
    snapshots: usize,
    starts: usize,
    watches: usize,
}

/// The committed entries, with their events: a claim on two keys, an entry without events, a waiter at one of the
/// keys, and the release of both.
fn log() -> &'static [Vec<Event>] {
    static LOG: OnceLock<Vec<Vec<Event>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let session = |number| SessionId { number, proof: Proof::default() };
        let keys = |keys: &[&str]| Keys::new(keys.iter().map(|key| (*key).into()).collect()).unwrap();
        let acquire = |number, of: &[&str]| {
            let request = LockRequest::exclusive(keys(of), true);
            Command::Acquire { session: session(number), sequence: None, request }
        };
        let release = |number, of: &[&str]| {
            let claim = Claim::Either;
            Command::Release { session: session(number), sequence: None, keys: keys(of), claim }
        };
        let mut table = LockTable::default();
        for _ in 0..3 {
            let owner = Owner::from("o");
            let opening = Opening { proof: Proof::default(), owner, principal: Principal::default(), ttl: Ttl(1_000) };
            table.apply(Stamp(0), &Command::Open { opening });
        }
        let commands = [
            acquire(1, &["a", "b"]),
            Command::KeepAlive { sessions: vec![session(3)] },
            acquire(2, &["b"]),
            release(1, &["a", "b"]),
        ];
        commands.iter().map(|command| table.apply(Stamp(0), command).events).collect()
    })
}

fn last() -> u64 {
    log().len() as u64
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An iteration of a node's core applies so many entries, and publishes their events.
    Apply { node: usize, entries: u64 },
    /// An iteration receives a leader's snapshot up to this entry, and applies so many entries behind it.
    Receive { node: usize, snapshot: u64, entries: u64 },
    /// A node starts again, with its own snapshot up to this entry.
    Start { node: usize, snapshot: u64 },
    /// A node's dispatcher looks through what was published.
    Dispatch { node: usize },
    /// It wakes those that it has put into its queue.
    Wake { node: usize },
    /// The client begins a watch at a node, or resumes it.
    Watch { node: usize },
    /// The watch takes the state that the node has applied, which it lacks.
    Read,
    /// The watch tells what comes next.
    Tell,
    /// The client receives the first thing that is under way.
    Arrive,
    /// The connection breaks.
    Break,
}

struct Node {
    feed: Feed,
    hub: Arc<Hub>,
    /// The access rules that the dispatcher knows, and its queue.
    access: u64,
    queue: VecDeque<Arc<Slot>>,
    applied: u64,
    /// Whether the dispatcher was called, and has not looked yet.
    has_news: bool,
}

impl Node {
    /// A node that starts with this snapshot.
    fn new(bounds: &Bounds, snapshot: u64) -> Node {
        static METRICS: OnceLock<Arc<Metrics>> = OnceLock::new();
        let hub = Hub::new(bounds.history_bytes, METRICS.get_or_init(Metrics::new));
        let mut feed = Feed::new(&hub);
        feed.publish_up_to(snapshot, &Access::default());
        let (access, queue, has_news) = (0, VecDeque::new(), false);
        Node { feed, hub, access, queue, applied: snapshot, has_news }
    }

    fn has_dropped(&self) -> bool {
        self.hub.shared.lock().history.has_dropped()
    }

    fn apply(&mut self, entries: u64) {
        for index in self.applied + 1..=self.applied + entries {
            let events = log()[usize::try_from(index - 1).unwrap()].clone();
            self.feed.applied(Index(index), events);
        }
        self.applied += entries;
        self.feed.publish_up_to(self.applied, &Access::default());
        self.has_news |= self.hub.news.notified().now_or_never().is_some();
    }
}

/// What the client has seen.
struct Client {
    position: WatchPosition,
    /// It knows of everything up to here, by events or by a listing.
    knows: Option<EventId>,
    has_been_told_of_a_gap: bool,
    has_resumed_within_an_entry: bool,
}

/// A state, as the steps to it leave it.
struct World<'a> {
    bounds: &'a Bounds,
    nodes: Vec<Node>,
    client: Client,
    /// The watch, its node, and what it has told and the client has not received; nothing as the last of it says
    /// that the watch has ended.
    watch: Option<(usize, Watcher, VecDeque<Option<Watched>>)>,
    snapshots: usize,
    starts: usize,
    watches: usize,
    was_cut_off: bool,
    violation: Option<String>,
}

impl<'a> World<'a> {
    fn after(bounds: &'a Bounds, steps: &[Step]) -> World<'a> {
        let client = Client {
            position: WatchPosition::new(None),
            knows: None,
            has_been_told_of_a_gap: false,
            has_resumed_within_an_entry: false,
        };
        let mut world = World {
            bounds,
            nodes: (0..bounds.nodes).map(|_| Node::new(bounds, 0)).collect(),
            client,
            watch: None,
            snapshots: 0,
            starts: 0,
            watches: 0,
            was_cut_off: false,
            violation: None,
        };
        steps.iter().for_each(|step| world.take(*step));
        world
    }

    /// The steps that may come next.
    fn possible(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let rest = last() - node.applied;
            steps.extend((1..=rest.min(2)).map(|entries| Step::Apply { node: number, entries }));
            if self.snapshots < self.bounds.snapshots {
                for snapshot in node.applied + 1..=last() {
                    let receive = |entries| Step::Receive { node: number, snapshot, entries };
                    steps.extend((0..=(last() - snapshot).min(1)).map(receive));
                }
            }
            if self.starts < self.bounds.starts {
                steps.extend((0..=node.applied).map(|snapshot| Step::Start { node: number, snapshot }));
            }
            if node.has_news {
                steps.push(Step::Dispatch { node: number });
            }
            if !node.queue.is_empty() {
                steps.push(Step::Wake { node: number });
            }
            if self.watch.is_none() && self.watches < self.bounds.watches {
                steps.push(Step::Watch { node: number });
            }
        }
        if let Some((_, watcher, under_way)) = &self.watch {
            steps.push(Step::Break);
            match () {
                () if !under_way.is_empty() => steps.push(Step::Arrive),
                () if watcher.lacks().is_some() => steps.push(Step::Read),
                () => steps.push(Step::Tell),
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Apply { node, entries } => self.nodes[node].apply(entries),
            Step::Receive { node, snapshot, entries } => {
                self.snapshots += 1;
                self.nodes[node].applied = snapshot;
                self.nodes[node].apply(entries);
            }
            Step::Start { node, snapshot } => {
                self.starts += 1;
                let reached = self.nodes[node].applied;
                self.watch.take_if(|(of, ..)| *of == node);
                self.nodes[node] = Node::new(self.bounds, snapshot);
                self.nodes[node].apply(reached - snapshot);
            }
            Step::Dispatch { node } => {
                let Node { hub, access, queue, has_news, .. } = &mut self.nodes[node];
                while hub.look_through(access, queue) {}
                *has_news = false;
            }
            Step::Wake { node } => drop(wake_group(&mut self.nodes[node].queue)),
            Step::Watch { node } => {
                self.watches += 1;
                let Client { position, knows, has_resumed_within_an_entry, .. } = &mut self.client;
                *has_resumed_within_an_entry |= position.after().is_some_and(|after| after.event.is_some());
                position.resume();
                // Without an event after which to go on, it may be shown an earlier state than before.
                *knows = knows.filter(|_| position.after().is_some());
                let (hub, filter) = (&self.nodes[node].hub, (self.bounds.filter)());
                let watcher = Watcher::new(hub, filter, Principal::default(), position.after());
                self.watch = Some((node, watcher, VecDeque::new()));
            }
            Step::Read => {
                let Some((node, watcher, _)) = &mut self.watch else { return };
                let revision = self.nodes[*node].applied;
                watcher.take_listing(Listing { revision, begins: true, complete: true, ..Listing::default() });
            }
            Step::Tell => {
                let Some((_, watcher, under_way)) = &mut self.watch else { return };
                match watcher.told().now_or_never() {
                    Some(Told::Events(events)) => {
                        under_way.extend(events.iter().map(|shown| Some(Watched::Event(shown.event()))));
                    }
                    Some(Told::Listing(listing)) => under_way.push_back(Some(Watched::Listing(listing))),
                    Some(Told::Compacted(floor)) => under_way.push_back(Some(Watched::Compacted { floor })),
                    Some(Told::TooSlow) => {
                        self.was_cut_off = true;
                        under_way.push_back(None);
                    }
                    Some(told @ (Told::Denied | Told::Closed)) => self.violation = Some(format!("{told:?}")),
                    None => {}
                }
            }
            Step::Arrive => match self.watch.as_mut().and_then(|(.., under_way)| under_way.pop_front()) {
                Some(Some(watched)) => {
                    self.client.position.note(&watched);
                    self.violation = self.client.note(self.bounds, &watched).err();
                }
                Some(None) | None => self.watch = None,
            },
            Step::Break => self.watch = None,
        }
    }

    /// Whether nothing happens before a node applies another entry, a connection breaks or a node starts again.
    fn is_settled(&self) -> bool {
        let Some((node, watcher, under_way)) = &self.watch else { return false };
        let Node { queue, has_news, .. } = &self.nodes[*node];
        under_way.is_empty() && queue.is_empty() && !has_news && watcher.is_asleep()
    }

    fn check(&self) -> Result<(), String> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        let Some((node, ..)) = self.watch.as_ref().filter(|_| self.is_settled()) else { return Ok(()) };
        let Some(knows) = self.client.knows else { return Err("nothing was listed".into()) };
        let reached = EventId::end_of(self.nodes[*node].applied);
        match self.bounds.events().find(|event| knows < *event && *event <= reached) {
            Some(missed) => Err(format!("nothing more comes, and the client was not told of {missed}")),
            None => Ok(()),
        }
    }

    /// What decides all that can happen from here on.
    fn contents(&self) -> String {
        let nodes = self.nodes.iter().map(|node| {
            let Node { hub, access, queue, applied, has_news, feed: _ } = node;
            let history = hub.shared.lock().history.contents();
            let dispatched = self.watch.as_ref().map(|_| hub.directory.lock().dispatched);
            let watcher = self.watch.as_ref().map(|(_, watcher, _)| watcher);
            let queue: Vec<bool> =
                queue.iter().map(|slot| watcher.is_some_and(|watcher| watcher.is_at(slot))).collect();
            format!("{history} {dispatched:?} {access} {queue:?} {applied} {has_news}")
        });
        let nodes: Vec<String> = nodes.collect();
        let watch = self.watch.as_ref().map(|(node, watcher, under_way)| {
            let told = |told: &Option<Watched>| match told {
                Some(Watched::Event(event)) => event.id.to_string(),
                Some(Watched::Listing(listing)) => format!("listing {}", listing.revision),
                Some(Watched::Compacted { floor }) => format!("compacted {floor}"),
                None => "end".into(),
            };
            format!("{node} {} {:?}", watcher.contents(), under_way.iter().map(told).collect::<Vec<_>>())
        });
        let (Client { position, knows, .. }, counts) = (&self.client, (self.snapshots, self.starts, self.watches));
        format!("{nodes:?} {watch:?} {position:?} {knows:?} {counts:?} {:?}", self.violation)
    }
}

impl Bounds {
    /// The IDs of the events.
    fn events(&self) -> impl Iterator<Item = EventId> {
        self.events.iter().map(|event| event.parse().unwrap())
    }
}

impl Client {
    fn note(&mut self, bounds: &Bounds, watched: &Watched) -> Result<(), String> {
        match watched {
            Watched::Event(event) => {
                let Some(knows) = self.knows else { return Err(format!("{} comes before any state", event.id)) };
                let next = bounds.events().find(|next| knows < *next);
                if next != Some(event.id) {
                    return Err(format!("{} comes after {knows}, and the next event is {next:?}", event.id));
                }
                self.knows = Some(event.id);
            }
            Watched::Listing(listing) => {
                let revision = EventId::end_of(listing.revision);
                if self.knows.is_some_and(|knows| knows > revision) {
                    return Err(format!("{:?} was known, and the state of {revision} is listed", self.knows));
                }
                self.knows = Some(revision);
            }
            Watched::Compacted { floor } => {
                self.has_been_told_of_a_gap = true;
                if self.knows.is_some_and(|knows| knows >= EventId::end_of(*floor)) {
                    return Err(format!("{:?} was known, and events up to {floor} are said to be missing", self.knows));
                }
            }
        }
        Ok(())
    }
}

/// How many states there are: in all, and of some kinds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    states: usize,
    /// The client was told that it lacks events.
    gaps: usize,
    /// A watch was cut off because its client was too slow.
    cut_off: usize,
    /// The client has resumed its watch within an entry.
    within: usize,
    /// Nothing more comes by itself.
    settled: usize,
    /// Events have made room for newer ones.
    dropped: usize,
}

/// Explores all states. A violation ends it, with the fewest steps that lead to one.
fn explore(bounds: &Bounds) -> Found {
    let (mut known, mut queue, mut found) = (HashSet::new(), VecDeque::from([Vec::new()]), Found::default());
    known.insert(World::after(bounds, &[]).contents());
    while let Some(steps) = queue.pop_front() {
        for step in World::after(bounds, &steps).possible() {
            let next = [&steps[..], &[step]].concat();
            let world = World::after(bounds, &next);
            if let Err(violation) = world.check() {
                panic!("{violation}, after {next:#?}");
            }
            if known.insert(world.contents()) {
                found.gaps += usize::from(world.client.has_been_told_of_a_gap);
                found.cut_off += usize::from(world.was_cut_off);
                found.within += usize::from(world.client.has_resumed_within_an_entry);
                found.settled += usize::from(world.is_settled());
                found.dropped += usize::from(world.nodes.iter().any(Node::has_dropped));
                queue.push_back(next);
            }
        }
    }
    Found { states: known.len(), ..found }
}

fn all_keys() -> Filter {
    Filter::Prefix("".into())
}

fn key_a() -> Filter {
    Filter::Key("a".into())
}

const ALL: [&str; 6] = ["1.1", "1", "3", "4.1", "4.2", "4"];
const OF_A: [&str; 2] = ["1.1", "4.1"];

const BOUNDS: Bounds =
    Bounds { filter: all_keys, events: &ALL, nodes: 1, history_bytes: 1 << 20, snapshots: 0, starts: 0, watches: 2 };

/// Goal: a client that follows all keys at one node, and goes on at another one, is shown every event once.
#[test]
fn a_client_that_goes_from_node_to_node_misses_nothing() {
    let found = explore(&Bounds { nodes: 2, ..BOUNDS });
    assert!(found.within > 0 && found.settled > 0, "{found:?}");
    assert_eq!((found.states, found.gaps), (41_877, 0), "{found:?}");
}

/// Goal: the same of a node whose history is short: the client is told of each gap, and ends where it was too slow.
#[test]
fn a_client_of_a_short_history_is_told_what_it_lacks() {
    let bounds = Bounds { filter: key_a, events: &OF_A, history_bytes: 900, snapshots: 1, ..BOUNDS };
    let found = explore(&bounds);
    // How many states there are depends on the size of an event in memory.
    let Found { states, gaps, cut_off, within, settled, dropped } = found;
    assert!([gaps, cut_off, within, settled, dropped].iter().all(|states| *states > 0), "{found:?}");
    assert!(states > 5_000, "{found:?}");
}

/// Goal: the same of a node that starts again, with any of its entries in its snapshot, and receives one.
#[test]
fn a_client_of_a_node_that_starts_again_is_told_what_it_lacks() {
    let found = explore(&Bounds { snapshots: 1, starts: 1, ..BOUNDS });
    assert!(found.gaps > 0 && found.within > 0 && found.settled > 0, "{found:?}");
    assert_eq!(found.states, 25_883, "{found:?}");
}
