//! The whole system: nodes, the lock table, clients that pause past their TTL, real time, and a
//! resource.
//!
//! Real time passes in ticks, at the same rate for all. A leader reads its clock before it does
//! anything else, as the server does, and may pause for any time. A client requests the lock, may
//! repeat the request at another server, receives the grant, and writes to the resource at any
//! later time, unless it has sent its release. It counts its lease from the moment at which it sent
//! the request that was answered.
//!
//! A request is sent when it first arrives, and an answer is received at once or never: a client
//! that sends earlier or receives later relies on its lease for a shorter time, and a client may
//! still act at any later time. The server that first applies an entry answers for it, whether or
//! not it leads: it could have been the leader at the request, and have stepped down before the
//! answer.

mod client;
pub(crate) mod properties;
mod resource;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use palisade_spec::checker::{Checked, Execution, check_lock_entry, execute};
use palisade_spec::invariants::{self, Check};
use palisade_spec::lock::{Command, Holder, Key, LockTable, Opening, Owner, Principal, Proof, SessionId, Token, Ttl};
use palisade_spec::raft::{Index, Log, Node, NodeId, Payload, Position, Stamp, StateMachine, Term};
use palisade_spec::require;
use serde::Serialize;
use stateright::Property;

pub use self::client::{Client, KeepAlive, Request, RequestLocation};
pub use self::resource::Resource;
use crate::world::{Answer, Applied, Environment, History, Ref, Replica, ServerRequest, World};

/// Bounds on the clients, their sessions, and the time that passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClientBounds {
    /// The number of sessions.
    pub sessions: u64,
    /// The number of locks. The first session has a client for each lock, the others for the first
    /// lock only.
    pub keys: usize,
    /// The number of ticks that pass.
    pub ticks: u64,
    /// The first session's time-to-live, in ticks.
    pub ttl: u64,
    /// How much longer the TTL of each further session is than that of the one before, in ticks.
    pub longer: u64,
    /// The maximum number of arrivals of a request. More than one stands for retries and late
    /// duplicates.
    pub arrivals: u8,
    /// The maximum number of a client's keepalives.
    pub keepalives: u8,
    /// The maximum length of a log, in entries.
    pub log: u64,
    /// Whether the state records when each entry was stamped. If it does, a property checks that no
    /// server's clock advances from an entry's stamp by more than the entry's age, and states that
    /// differ only in these times are distinct. The state does not record an entry whose leader
    /// crashed while it sent the entry and before it wrote the entry.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub births: bool,
}

/// The clients, the time, and the resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Surroundings {
    bounds: ClientBounds,
    /// Real time, in ticks.
    pub now: u64,
    /// When each leader last read its clock, in ticks.
    pub looked: BTreeMap<NodeId, u64>,
    /// When each entry of each term was stamped, if that is recorded. If it is not, the empty map
    /// is left out of the digest: with symmetry, digests determine the order of messages, and that
    /// order affects the number of states.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    births: BTreeMap<Term, BTreeMap<Index, u64>>,
    /// The clients: those of the first session, in the order of their locks, then those of the
    /// second, and so on.
    pub clients: Vec<Client>,
    /// The resources that the locks protect.
    pub resources: Vec<Resource>,
}

/// A move of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// One tick passes.
    Tick,
    /// A leader reads its clock.
    Look(NodeId),
    /// A client's request arrives at a leader: for the first time, or again.
    Arrive(usize, Request, NodeId),
    /// A client writes to the resource with its token.
    Write(usize),
}

impl ClientBounds {
    /// The TTL of a session, in ticks. Sessions are numbered from 1.
    fn ttl_of(&self, session: u64) -> u64 {
        self.ttl + (session - 1) * self.longer
    }
}

impl Surroundings {
    /// Creates clients that have sent no request.
    pub fn new(bounds: ClientBounds) -> Surroundings {
        let sessions = 1..=bounds.sessions;
        let wanted = |number| keys(if number == 1 { bounds.keys } else { 1 });
        let own =
            |number| wanted(number).map(move |key| Client::new(SessionId { number, proof: Proof::default() }, key));
        let clients = sessions.flat_map(own).collect();
        let resources = keys(bounds.keys).map(Resource::new).collect();
        Surroundings { bounds, now: 0, looked: BTreeMap::new(), births: BTreeMap::new(), clients, resources }
    }

    /// The lock table with the clients' sessions.
    pub fn table(bounds: &ClientBounds) -> LockTable {
        let mut table = LockTable::default();
        for number in 1..=bounds.sessions {
            let opening = Opening {
                proof: Proof::default(),
                owner: Owner::from(""),
                principal: Principal::default(),
                ttl: Ttl(bounds.ttl_of(number)),
            };
            table.apply(Stamp(0), &Command::Open { opening });
        }
        table
    }

    /// Whether a client may still rely on its lease.
    pub fn relies(&self, client: &Client) -> bool {
        client.relies(self.now, self.bounds.ttl_of(client.session.number))
    }

    /// Whether a server's clock has advanced from the stamp of an entry in its log by more than the
    /// entry's age.
    pub(crate) fn runs_ahead(&self, servers: &[Ref<Replica<LockTable>>]) -> bool {
        servers.iter().any(|replica| self.is_ahead(replica.node.clock(), replica.node.log()))
    }

    /// Whether a clock has advanced from the stamp of an entry in this log, or of the log's base,
    /// by more than that entry's age.
    fn is_ahead(&self, clock: Stamp, log: &Log<Command>) -> bool {
        let entries = log.entries().iter().map(|entry| (entry.position(), entry.stamp));
        entries.chain([(log.base(), log.base_stamp())]).any(|(entry, stamp)| {
            let born = self.births.get(&entry.term).and_then(|term| term.get(&entry.index));
            born.is_some_and(|born| clock.0 > stamp.0 + (self.now - born))
        })
    }

    fn write(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.wrote = true;
        let token = client.token.expect("a client that writes has a token");
        let resource = self.resources.iter_mut().find(|resource| resource.key == client.key);
        resource.expect("every lock has a resource").write(client.session, token);
    }
}

/// The first `count` keys.
pub fn keys(count: usize) -> impl Iterator<Item = Key> {
    ["k", "l"].into_iter().take(count).map(Key::from)
}

impl Environment for Surroundings {
    type Machine = LockTable;
    type Move = Move;

    fn properties(world: &World<Surroundings>) -> Vec<Property<World<Surroundings>>> {
        properties::properties(&world.surroundings().bounds)
    }

    fn moves(&self, servers: &[Ref<Replica<LockTable>>], moves: &mut Vec<Move>) {
        if self.now < self.bounds.ticks {
            moves.push(Move::Tick);
        }
        let leaders = servers.iter().filter(|replica| replica.node.is_leader());
        moves.extend(leaders.clone().filter_map(|replica| self.before(&replica.node)));
        let room = leaders.filter(|replica| replica.node.log().last().index < Index(self.bounds.log));
        let open: Vec<NodeId> = room.map(|replica| replica.node.id()).collect();
        for (number, client) in self.clients.iter().enumerate() {
            let bounds = &self.bounds;
            let arrives = [
                (Request::Acquire, true, bounds.arrivals),
                (Request::Release, client.token.is_some(), bounds.arrivals),
                (Request::KeepAlive, client.arrivals[0] > 0, bounds.keepalives),
            ];
            for (request, possible, most) in arrives {
                if possible && client.arrivals[request as usize] < most {
                    moves.extend(open.iter().map(|&server| Move::Arrive(number, request, server)));
                }
            }
            let released = client.arrivals[Request::Release as usize] > 0;
            if client.token.is_some() && !client.wrote && !released {
                moves.push(Move::Write(number));
            }
        }
    }

    fn key(chosen: &Move) -> u64 {
        match *chosen {
            Move::Tick => 0,
            Move::Look(server) => 1 | u64::from(server.0) << 3,
            Move::Arrive(number, request, server) => {
                2 | u64::from(server.0) << 3 | (request as u64) << 19 | (number as u64) << 21
            }
            Move::Write(number) => 3 | (number as u64) << 3,
        }
    }

    fn play(&mut self, chosen: &Move) -> Option<ServerRequest<LockTable>> {
        match *chosen {
            Move::Tick => self.now += 1,
            Move::Look(server) => {
                let looked = self.looked.insert(server, self.now).expect("a leader has read its clock before");
                return Some(ServerRequest::Clock(server, self.now - looked));
            }
            Move::Arrive(number, request, server) => {
                let session = self.clients[number].session;
                let own = self.clients.iter().filter(|client| client.session == session);
                let last = own.filter_map(Client::last_number).max();
                let command = self.clients[number].ask(request, server, self.now, last);
                return Some(ServerRequest::Propose(server, vec![Payload::Command(command)]));
            }
            Move::Write(number) => self.write(number),
        }
        None
    }

    fn watches(old: &Node<LockTable>, new: &Node<LockTable>, answers: &[Answer<LockTable>]) -> bool {
        let grown = || new.log().last().index > old.log().last().index;
        !answers.is_empty() || old.is_leader() != new.is_leader() || (new.is_leader() && grown())
    }

    fn see(&mut self, node: &Node<LockTable>, applied: &Applied<LockTable>) -> Check {
        let entry = Position { term: applied.term, index: applied.index };
        let asked_for = match &node.log().get(applied.index).expect("an entry just applied is in the log").payload {
            Payload::Command(Command::Acquire { request, .. }) => request.keys.as_slice(),
            _ => &[],
        };
        self.clients.iter_mut().for_each(|client| client.observe_outcome(entry, asked_for, &applied.outcome));
        Ok(())
    }

    fn stepped(&mut self, node: &Node<LockTable>) {
        if node.is_leader() {
            self.looked.entry(node.id()).or_insert(self.now);
        } else {
            self.looked.remove(&node.id());
        }
        if self.bounds.births && node.is_leader() {
            let born = self.births.entry(node.term()).or_default();
            let own = node.log().entries().iter().filter(|entry| entry.term == node.term());
            own.for_each(|entry| _ = born.entry(entry.index).or_insert(self.now));
        }
        self.clients.iter_mut().for_each(|client| client.observe_keepalive(node));
    }

    fn outline(&self) -> u64 {
        let client = |client: &Client| {
            (client.arrivals[0] > 0, client.arrivals[1] > 0, client.token.is_some(), self.relies(client))
        };
        let clients: BTreeSet<_> = self.clients.iter().map(client).collect();
        let mut outline = DefaultHasher::new();
        clients.hash(&mut outline);
        outline.finish()
    }

    fn before(&self, node: &Node<LockTable>) -> Option<Move> {
        (node.is_leader() && self.looked[&node.id()] < self.now).then(|| Move::Look(node.id()))
    }

    fn committed(history: &History<LockTable>, index: Index) -> Check {
        let position = usize::try_from(index.0).expect("a log index fits in usize");
        let (before, after) = (&history.machines[position - 1], &history.machines[position]);
        let entry = &history.committed[&index];
        let earlier = history.machines[..position].iter().flat_map(|table| table.locks().values());
        let mut greatest =
            earlier.flat_map(|lock| lock.holders.iter().map(|holder| holder.token)).max().unwrap_or_default();
        let mut table = before.clone();
        let outcome = execute(&mut table, entry.stamp, &entry.payload);
        let execution = Execution::new(before, entry.stamp, &entry.payload, &outcome, after);
        check_lock_entry(&execution, &mut greatest, true, LockTable::check_state)
    }

    fn judge(&self, history: &History<LockTable>) -> Check {
        let table = history.machines.last().expect("the history has an initial state");
        for (number, client) in self.clients.iter().enumerate() {
            let holders: &[Holder] = table.lock(&client.key).map_or(&[], |lock| &lock.holders);
            if self.relies(client) {
                lease_is_honoured(number, client.token.map(|token| (client.session, token)), holders)?;
            }
        }
        self.resources.iter().try_for_each(|resource| resource.writes_in_order(history))
    }
}

/// Checks that the client with this number, which relies on its lease, is the holder. All clients
/// take the lock alone.
pub(crate) fn lease_is_honoured(client: usize, own: Option<(SessionId, Token)>, holders: &[Holder]) -> Check {
    require!(
        invariants::Property::LeasesAreHonoured,
        holders.iter().map(|holder| (holder.session, holder.token)).eq(own),
        "client {} relies on {own:?}, but {holders:?} hold the lock",
        client + 1
    )
}
