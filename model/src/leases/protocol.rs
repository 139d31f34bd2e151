//! The macro steps, composed of steps of real nodes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade_spec::invariants::{Committed, Violation, state_machine_safety};
use palisade_spec::lock::{LockTable, Proof, SessionId};
use palisade_spec::raft::{
    Body, Config, Durable, Index, Input, Members, Message, Node, NodeId, Output, Payload, Position, ReadRound,
    RequestId,
};
use smallvec::SmallVec;

use super::state::{Birth, Server, State, Truth, entries, server_index};
use super::{Action, Bounds, LockNode, SERVERS, ids, judge, key, table};
use crate::cluster::Client;
use crate::world::digest::{Renaming, renamings};
use crate::world::intern::Interner;
use crate::world::memo::Memo;
use crate::world::{Applied, Ref, leak, panicked, timeout_is_redundant};

/// The number of memoised macro steps.
const MEMO: usize = 1 << 20;

/// The servers' steps, and the interned parts of states.
pub(super) struct Protocol {
    /// The initial contents of every disk.
    blank: Durable<LockTable>,
    /// The identity renaming only: servers keep their numbers.
    names: Vec<Renaming>,
    nodes: Interner<LockNode>,
    messages: Interner<Message<LockTable>>,
    clients: Interner<Vec<Client>>,
    truths: Interner<Truth>,
    steps: Memo<Option<Stepped>>,
    histories: Memo<Result<Ref<Truth>, &'static Violation>>,
}

/// The servers that took part in a macro step, and the entries that they applied.
struct Stepped {
    nodes: SmallVec<[Ref<LockNode>; 2]>,
    applied: Vec<Applied<LockTable>>,
    violation: Option<&'static Violation>,
}

/// The servers that take part in a macro step.
struct Participants {
    nodes: SmallVec<[LockNode; 2]>,
    applied: Vec<Applied<LockTable>>,
}

impl Protocol {
    pub(super) fn new(bounds: &Bounds) -> Protocol {
        Protocol {
            blank: Durable::blank(table(bounds), Members::of(ids())),
            names: renamings(SERVERS, 0)[..1].to_vec(),
            nodes: Interner::default(),
            messages: Interner::default(),
            clients: Interner::default(),
            truths: Interner::default(),
            steps: Memo::new(MEMO),
            histories: Memo::new(MEMO),
        }
    }

    /// Servers with blank disks, and clients that have sent no request.
    pub(super) fn initial_state(&self, bounds: &Bounds) -> State {
        let clients = (1..=bounds.clients)
            .map(|number| Client::new(SessionId { number, proof: Proof::default() }, key()))
            .collect();
        let mut state = State {
            servers: ids().map(|id| Server { node: self.blank(id), looked: 0 }).collect(),
            delayed: SmallVec::new(),
            clients: self.clients.intern(clients, &self.names),
            truth: self.truths.intern(Truth { committed: Committed::new(), table: table(bounds) }, &self.names),
            births: SmallVec::new(),
            ttl: bounds.ttl,
            now: 0,
            elections: bounds.elections,
            crashes: bounds.crashes,
            delays: bounds.delays,
            violation: None,
            digest: 0,
        };
        state.settle();
        state
    }

    /// Creates a server with a blank disk.
    fn blank(&self, id: NodeId) -> Ref<LockNode> {
        let mut participants = Participants::of([Node::recover(Config::new(id), self.blank.clone())]);
        participants.expire_redundant_timeout(0);
        self.nodes.intern(participants.nodes.remove(0), &self.names)
    }

    /// A leader's AppendEntries that confirms its log up to the entry `through`.
    pub(super) fn message(&self, leader: Ref<LockNode>, follower: NodeId, through: Index) -> Ref<Message<LockTable>> {
        self.messages.intern(append(&leader, follower, through), &self.names)
    }

    /// Takes a step in which servers take part.
    pub(super) fn take(&self, state: &mut State, action: &Action) {
        let (first, second, rest) = match *action {
            Action::Look { leader, lost } => (leader, None, (state.now - state.server(leader).looked - lost) << 3),
            Action::Elect { candidate, voter } => (candidate, Some(voter), 1),
            Action::Send { leader, follower, full } => (leader, Some(follower), u64::from(full) << 3 | 2),
            Action::Arrive(message) => (message.to, None, message.key()),
            Action::Ask { client, request, leader } => (leader, None, (client as u64) << 5 | (request as u64) << 3 | 3),
            Action::Crash { server, lost, heard } => (server, heard, lost << 3 | 4),
            Action::Tick | Action::Delay { .. } => unreachable!("no server takes part"),
        };
        let before: SmallVec<[Ref<LockNode>; 2]> =
            [Some(first), second].into_iter().flatten().map(|id| state.server(id).node).collect();
        let key = [before[0].key(), before.get(1).map_or(0, |node| node.key()), rest, 0];
        let stepped = self.steps.get(key, || self.step(state, &before, action));
        if let Some(stepped) = &*stepped {
            self.update_state(state, action, &before, stepped);
        }
    }

    /// The servers after a step; `None` if the step is impossible.
    fn step(&self, state: &State, before: &[Ref<LockNode>], action: &Action) -> Option<Stepped> {
        let mut participants = Participants::of(before.iter().map(|node| (**node).clone()));
        let done = catch_unwind(AssertUnwindSafe(|| match *action {
            Action::Look { leader, lost } => {
                let elapsed = state.now - state.server(leader).looked;
                participants.give(0, Input::ClockAdvanced(elapsed - lost));
                true
            }
            Action::Elect { .. } => participants.elect(),
            Action::Send { leader, follower, full } => {
                participants.send(append(&before[0], follower, state.through(leader, follower, full)), full);
                true
            }
            Action::Arrive(message) => {
                participants.give(0, Input::Receive((*message).clone()));
                true
            }
            Action::Ask { client, request, leader } => {
                let mut client = state.clients[client].clone();
                let last = client.last_number();
                let command = client.ask(request, leader, state.now, last);
                let payloads = vec![Payload::Command(command)];
                participants.give(0, Input::Propose { id: RequestId(1), payloads });
                true
            }
            Action::Crash { server, lost, heard } => {
                if let Some(follower) = heard {
                    participants.send(append(&before[0], follower, state.through(server, follower, true)), false);
                }
                participants.nodes[0] = self.recover(&before[0], lost);
                true
            }
            Action::Tick | Action::Delay { .. } => unreachable!("no server takes part"),
        }));
        let settled = done.and_then(|done| {
            let all = 0..before.len();
            catch_unwind(AssertUnwindSafe(|| all.for_each(|index| participants.expire_redundant_timeout(index))))
                .map(|()| done)
        });
        let Participants { nodes, applied } = participants;
        let violation = match settled {
            Ok(false) => return None,
            Ok(true) => {
                let pairs = before.iter().zip(&nodes).enumerate();
                let crashed = matches!(action, Action::Crash { .. });
                pairs.map(|(at, (old, new))| judge::stepped(old, new, crashed && at == 0)).find_map(Result::err)
            }
            Err(panic) => Some(panicked(panic)),
        };
        let nodes = nodes.into_iter().map(|node| self.nodes.intern(node, &self.names)).collect();
        Some(Stepped { nodes, applied, violation: violation.map(leak) })
    }

    /// Restarts a server without the last `lost` entries of its log.
    fn recover(&self, node: &LockNode, lost: u64) -> LockNode {
        let mut log = node.log().clone();
        log.truncate(Index(log.last().index.0 - lost).next());
        let disk = Durable { hard: node.hard_state(), log, snapshot: self.blank.snapshot.clone() };
        Node::recover(node.config().clone(), disk)
    }

    /// Updates the state after a step: servers, births, committed entries and clients.
    fn update_state(&self, state: &mut State, action: &Action, before: &[Ref<LockNode>], stepped: &Stepped) {
        stepped.nodes.iter().for_each(|&node| state.set(node));
        state.violation = stepped.violation;
        let (old, new) = (before[0], stepped.nodes[0]);
        for node in &stepped.nodes {
            let server = &mut state.servers[server_index(node.id())];
            let measures = matches!(action, Action::Look { .. } | Action::Elect { .. }) && *node == new;
            server.looked = match node.is_leader() {
                true if measures => state.now,
                true => server.looked,
                false => 0,
            };
        }
        if matches!(action, Action::Look { .. } | Action::Elect { .. } | Action::Ask { .. }) {
            Protocol::record_births(state, &old, &new);
        }
        if !stepped.applied.is_empty() {
            self.record_committed(state, &stepped.nodes);
        }
        let asks = matches!(action, Action::Ask { .. });
        if asks || !stepped.applied.is_empty() {
            let mut clients = (*state.clients).clone();
            if let Action::Ask { client, request, leader } = *action {
                let client = &mut clients[client];
                client.ask(request, leader, state.now, client.last_number());
                client.observe_keepalive(&new);
            }
            for Applied { index, term, outcome } in &stepped.applied {
                let entry = Position { term: *term, index: *index };
                clients.iter_mut().for_each(|client| client.observe_outcome(entry, &[key()], outcome));
            }
            state.clients = self.clients.intern(clients, &self.names);
        }
    }

    /// Records when a leader's new entries were born.
    fn record_births(state: &mut State, old: &LockNode, new: &LockNode) {
        let last = old.log().last().index;
        let own = new.log().entries().iter().filter(|entry| entry.index > last);
        let at = state.now;
        state.births.extend(own.map(|entry| Birth { entry: entry.position(), at }));
    }

    /// Records newly applied entries.
    fn record_committed(&self, state: &mut State, nodes: &[Ref<LockNode>]) {
        let keys = [nodes[0].key(), nodes.get(1).map_or(0, |node| node.key())];
        let histories = self.histories.get([state.truth.key(), keys[0], keys[1], 0], || {
            let mut truth = (*state.truth).clone();
            for node in nodes {
                let known = Index(truth.committed.len() as u64);
                if let Err(violation) = state_machine_safety(&mut truth.committed, node) {
                    return Err(leak(violation));
                }
                if node.commit() > known {
                    truth.table = node.machine().clone();
                }
            }
            Ok(self.truths.intern(truth, &self.names))
        });
        match *histories {
            Ok(truth) => state.truth = truth,
            Err(violation) => state.violation = Some(violation),
        }
    }
}

impl Participants {
    fn of(nodes: impl IntoIterator<Item = LockNode>) -> Participants {
        Participants { nodes: nodes.into_iter().collect(), applied: Vec::new() }
    }

    /// Hands an input to a node. Returns the messages that it sends.
    fn give(&mut self, index: usize, input: Input<LockTable>) -> Vec<Message<LockTable>> {
        let mut outputs = Vec::new();
        self.nodes[index].step(input, &mut outputs);
        let mut sent = Vec::new();
        for output in outputs {
            match output {
                Output::Send(message) => sent.push(message),
                Output::Applied { index, term, outcome, .. } => self.applied.push(Applied { index, term, outcome }),
                _ => {}
            }
        }
        sent
    }

    /// Lets the first node campaign until it has the vote of the second. Returns whether it wins.
    fn elect(&mut self) -> bool {
        let (candidate, voter) = (self.nodes[0].id(), self.nodes[1].id());
        let latest = self.nodes[0].term().max(self.nodes[1].term());
        self.lose_contact(0);
        loop {
            let term = self.nodes[0].term();
            self.give(0, Input::ElectionTimeout);
            let body = Body::PreVoteReply { granted: true };
            let requests = self.give(0, Input::Receive(Message { from: voter, to: candidate, term, body }));
            self.lose_contact(1);
            let to_voter = requests.into_iter().find(|message| message.to == voter);
            let Some(request) = to_voter else { return false };
            let campaign = request.term;
            for reply in self.give(1, Input::Receive(request)) {
                self.give(0, Input::Receive(reply));
            }
            if self.nodes[0].is_leader() {
                return true;
            }
            // In a term that one of the two nodes knows, the vote may have been cast already. In a
            // later term, the voter rejects only if its own log is more up-to-date.
            if campaign > latest {
                return false;
            }
        }
    }

    /// Delivers an AppendEntries of the first node to the second. If the answer arrives, the second
    /// node learns the resulting commit index.
    fn send(&mut self, message: Message<LockTable>, answered: bool) {
        let (follower, through) = (message.to, entries(&message).len());
        let answers = self.give(1, Input::Receive(message));
        if answered {
            for answer in answers {
                self.give(0, Input::Receive(answer));
            }
            let again = append(&self.nodes[0], follower, Index(through as u64));
            self.give(1, Input::Receive(again));
        }
    }

    /// Lets election timers run out until the node knows no leader.
    fn lose_contact(&mut self, index: usize) {
        while self.nodes[index].leader().is_some() {
            self.give(index, Input::ElectionTimeout);
        }
    }

    /// Lets an election timer run out where its only effect is to reduce the number of states.
    fn expire_redundant_timeout(&mut self, index: usize) {
        if timeout_is_redundant(&self.nodes[index]) {
            self.give(index, Input::ElectionTimeout);
        }
    }
}

/// A leader's AppendEntries that confirms its log up to an entry: its heartbeat, with all these
/// entries.
pub(super) fn append(leader: &LockNode, follower: NodeId, through: Index) -> Message<LockTable> {
    let mut participants = Participants::of([leader.clone()]);
    let heartbeats = participants.give(0, Input::HeartbeatTimeout);
    let heartbeat = heartbeats.into_iter().find(|message| message.to == follower);
    let Message { from, to, term, body } = heartbeat.expect("a leader sends heartbeats to every other server");
    let Body::AppendEntries { commit, stamp, .. } = body else { unreachable!("a heartbeat is an AppendEntries") };
    let entries = leader.log().slice(Index(1), usize::try_from(through.0).expect("a log index fits in usize")).to_vec();
    let body = Body::AppendEntries { prev: Position::default(), entries, commit, stamp, round: ReadRound::default() };
    Message { from, to, term, body }
}

/// The number of entries that a leader may lose in a crash: its own uncommitted entries at the end
/// of its log.
pub(super) fn uncommitted(node: &LockNode) -> u64 {
    let entries = node.log().entries().iter().rev();
    let own = entries.take_while(|entry| entry.term == node.term() && entry.index > node.commit());
    if node.is_leader() { own.count() as u64 } else { 0 }
}
