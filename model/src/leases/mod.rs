//! Time across many terms: elections, logs, stamps, clocks and leases, without single messages.
//!
//! A fault that ends a lease early can take four terms, real time and a client at once. With such
//! bounds, a model of single messages has too many states to explore completely. This layer
//! therefore explores *macro steps* of the real nodes: an election with all its messages, an
//! AppendEntries with its answer, a request with its entry. Every step hands real inputs to
//! [`Node::step`](palisade_spec::raft::Node::step) and uses its outputs; the model decides only
//! which messages exist, which of them arrive, and when.
//!
//! # Why macro steps lose no behaviour of clocks and leases
//!
//! Real time matters in three places: a leader measures it, a client counts its lease in it, and an
//! entry is born at a point of it. Otherwise only the order of events matters. For each kind of
//! message, the following orders suffice:
//!
//! - **Elections.** The vote requests and votes of an election arrive at once, at as many voters as
//!   the candidate needs. A further voter would only learn the term, and so ignore earlier leaders:
//!   the loss of their messages has the same effect. A lost election only raises terms, which has
//!   that effect too. A candidate whose votes arrive late, after the election of a later leader,
//!   can reach no server in a cluster of three: it stamps entries with the clock that it had
//!   before. A leader that was elected in time, and has *lost* the time since ([`Action::Look`]),
//!   does the same.
//! - **AppendEntries.** Of an accepted AppendEntries only the last entry that it confirms matters.
//!   A leader sends all its entries, or a heartbeat, here at the last entry that both logs have. A
//!   rejected AppendEntries only conveys the term.
//! - **Late AppendEntries.** A leader reads its clock before it sends, as the server does. As long
//!   as the follower does nothing else in between, a late arrival is equivalent to an immediate
//!   one. A message that arrives after its leader or its follower has taken another step stays in
//!   flight ([`Action::Delay`]), within a budget.
//! - **Answers.** In a cluster of three, the leader and one follower are a majority, so the
//!   leader's entries that a follower has are stored by a majority, and the last of them is of the
//!   leader's own term: no later leader lacks them, whether or not the answer arrives. The answer
//!   therefore arrives at once. An earlier commit informs clients earlier, and ends no session
//!   later: it violates every property that a later commit violates. (A leader that does not know
//!   yet that a keepalive is committed may append a no-op in vain: that ends no session.)
//! - **Requests.** A request is sent when it first arrives, and its answer is received at once, as
//!   in the layer [`cluster`](crate::cluster), which provides the clients. A leader reads its clock
//!   before it accepts a request.
//! - **Crashes.** A server restarts at once from its memory, because memory and disk are equal
//!   between inputs (layer `raft`). A leader may lose its own entries that no follower has
//!   acknowledged: followers can have them before the leader's own disk does.
//!
//! # What is not covered
//!
//! Snapshots, membership changes, leadership transfers and reads; more than three servers; repeated
//! AppendEntries that arrive late twice; a crash inside a follower's write that removes entries and
//! adds none; a crash of a leader after both followers received an entry that its own disk lacks;
//! releases and the resource.

mod action;
mod canonical;
mod judge;
mod properties;
mod protocol;
mod sequence_diagram;
mod show;
mod state;

use palisade_spec::lock::{Command, Key, LockTable, Opening, Owner, Principal, Proof, Ttl};
use palisade_spec::raft::{Index, Node, NodeId, Stamp, StateMachine};
use stateright::{Model, Path, Property};

pub use self::action::Action;
use self::protocol::Protocol;
pub use self::state::{Birth, Server, State, Truth};
use crate::cluster::{ClientBounds, Request};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::world::leak;

/// A node of this layer.
pub type LockNode = Node<LockTable>;

/// The limits of one configuration.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The number of elections that are won. Each begins a term.
    pub elections: u8,
    /// Maximum length of a log, the no-ops of new leaders included.
    pub log: u64,
    /// The number of ticks of real time.
    pub ticks: u64,
    /// The TTL of the first client's session, in ticks. The TTL of each further client is a tick
    /// longer, so that its session does not end together with the holder's.
    pub ttl: u64,
    /// The number of clients.
    pub clients: u64,
    /// The maximum number of arrivals of a client's acquire.
    pub acquires: u8,
    /// The number of keepalives that a client sends.
    pub keepalives: u8,
    /// The maximum number of crashes.
    pub crashes: u8,
    /// The maximum number of delayed AppendEntries.
    pub delays: u8,
    /// Whether a leader may lose time that it should have measured.
    pub losses: bool,
}

impl Bounds {
    /// The limits of the same environment in the layer `cluster`. They match if there is only one
    /// client.
    pub fn client_bounds(&self) -> ClientBounds {
        let Bounds { clients, ticks, ttl, acquires: arrivals, keepalives, log, .. } = *self;
        ClientBounds { sessions: clients, keys: 1, ticks, ttl, longer: 0, arrivals, keepalives, log, births: false }
    }
}

/// The number of servers.
pub(crate) const SERVERS: u32 = 3;

/// The model of leases.
pub struct Leases {
    /// The limits of the exploration.
    pub bounds: Bounds,
    /// The servers' steps.
    protocol: Protocol,
    initial: State,
}

impl Leases {
    /// Creates the model, with a blank cluster.
    pub fn new(bounds: Bounds) -> Leases {
        let protocol = Protocol::new(&bounds);
        let initial = protocol.initial_state(&bounds);
        Leases { bounds, protocol, initial }
    }

    /// Whether a client's request may arrive at a leader.
    fn may_ask(&self, state: &State, client: usize, request: Request) -> bool {
        let asked = &state.clients[client].arrivals;
        let room = match request {
            Request::Acquire => self.bounds.acquires,
            Request::KeepAlive => self.bounds.keepalives,
            Request::Release => 0,
        };
        asked[request as usize] < room && (request == Request::Acquire || asked[0] > 0)
    }

    fn crashes(&self, state: &State, node: &LockNode, actions: &mut Vec<Action>) {
        let server = node.id();
        actions.push(Action::Crash { server, lost: 0, heard: None });
        for lost in 1..=protocol::uncommitted(node) {
            actions.push(Action::Crash { server, lost, heard: None });
            let others = state.servers.iter().map(|other| &other.node).filter(|other| other.id() != server);
            let heard = others.filter(|other| other.term() <= node.term()).map(|other| Some(other.id()));
            actions.extend(heard.map(|heard| Action::Crash { server, lost, heard }));
        }
    }

    fn leader_actions(&self, state: &State, server: &Server, actions: &mut Vec<Action>) {
        let (leader, last) = (server.node.id(), server.node.log().last().index);
        let elapsed = state.now - server.looked;
        if elapsed > 0 {
            let most = if self.bounds.losses { elapsed } else { 0 };
            actions.extend((0..=most).map(|lost| Action::Look { leader, lost }));
            return;
        }
        if last < Index(self.bounds.log) {
            for client in 0..state.clients.len() {
                let possible = [Request::Acquire, Request::KeepAlive];
                let possible = possible.into_iter().filter(|request| self.may_ask(state, client, *request));
                actions.extend(possible.map(|request| Action::Ask { client, request, leader }));
            }
        }
        let others = state.servers.iter().map(|other| &other.node).filter(|other| other.id() != leader);
        for follower in others.filter(|other| other.term() <= server.node.term()).map(|other| other.id()) {
            let kinds: &[bool] = if state.common(leader, follower) < last { &[true, false] } else { &[true] };
            actions.extend(kinds.iter().map(|&full| Action::Send { leader, follower, full }));
            if state.delays > 0 {
                actions.extend(kinds.iter().map(|&full| Action::Delay { leader, follower, full }));
            }
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn properties(&self) -> Vec<Property<Leases>> {
        properties::properties()
    }

    fn init_states(&self) -> Vec<State> {
        vec![self.initial.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        if state.now < self.bounds.ticks {
            actions.push(Action::Tick);
        }
        actions.extend(state.delayed.iter().copied().map(Action::Arrive));
        for server in &state.servers {
            let node = &*server.node;
            if node.is_leader() {
                self.leader_actions(state, server, actions);
            }
            if state.elections > 0 {
                let others = state.servers.iter().map(|other| other.node.id()).filter(|&id| id != node.id());
                actions.extend(others.map(|voter| Action::Elect { candidate: node.id(), voter }));
            }
            if state.crashes > 0 {
                self.crashes(state, node, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Tick => next.now += 1,
            Action::Delay { leader, follower, full } => {
                let through = last.through(leader, follower, full);
                next.delay(self.protocol.message(last.server(leader).node, follower, through));
            }
            Action::Arrive(message) => {
                next.forget(message);
                self.protocol.take(&mut next, &action);
            }
            _ => self.protocol.take(&mut next, &action),
        }
        let fits = next.servers.iter().all(|server| server.node.log().last().index.0 <= self.bounds.log);
        if next.violation.is_none() {
            next.violation = judge::leases_are_honoured(&next).err().map(leak);
        }
        next.settle();
        if next.is_like(last) || !(fits || next.violation.is_some()) {
            return None;
        }
        next.spend(&action);
        Some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        action.sentence()
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        let next = self.next_state(last, action)?;
        Some(show::table(&next).since(&show::table(last)).join("\n"))
    }

    fn as_svg(&self, path: Path<State, Action>) -> Option<String> {
        Some(sequence_diagram::draw(&path.into_vec())?.svg())
    }
}

impl Presentation for Leases {
    fn sentence(&self, last: &State, action: &Action) -> String {
        show::sentence(self, last, action)
    }

    fn event(&self, last: &State, action: &Action) -> serde_json::Value {
        show::event(self, last, action)
    }

    fn diagram(&self, way: &Way<Leases>) -> Option<Diagram> {
        sequence_diagram::draw(way)
    }
}

/// The servers' numbers.
fn ids() -> impl Iterator<Item = NodeId> {
    (1..=SERVERS).map(NodeId)
}

/// The only lock.
fn key() -> Key {
    Key::from("k")
}

/// The lock table with the clients' sessions.
fn table(bounds: &Bounds) -> LockTable {
    let mut table = LockTable::default();
    for client in 0..bounds.clients {
        let opening = Opening {
            proof: Proof::default(),
            owner: Owner::from(""),
            principal: Principal::default(),
            ttl: Ttl(bounds.ttl + client),
        };
        table.apply(Stamp(0), &Command::Open { opening });
    }
    table
}
