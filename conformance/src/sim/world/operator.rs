//! The operator: replaces servers that have lost their disks, adds and removes servers, and
//! transfers leadership.

use std::time::Duration;

use palisade::core::{ConnectionId, Event, Request, Responder};
use palisade_spec::lock::Principal;
use palisade_spec::raft::{Address, Change, Members, NodeId};
use rand::Rng;
use rand::seq::IndexedRandom;
use tokio::sync::oneshot;

use super::super::call::{CallId, ClientId};
use super::super::client::ADMINISTRATOR;
use super::servers::{Death, Fitness};
use super::{EventKind, World};

/// The operator. It also acts for servers that have lost their disks and ask to be replaced.
#[derive(Debug)]
pub(super) struct Operator {
    /// The node number of the next server.
    next: u32,
    /// The desired number of voters.
    wanted: usize,
}

impl Operator {
    pub(super) fn new(founders: u16) -> Operator {
        Operator { next: u32::from(founders) + 1, wanted: usize::from(founders) }
    }
}

impl World {
    /// The operator inspects the cluster and sends its leader a request. The outcome shows at the
    /// next turn.
    pub(super) fn operate(&mut self) {
        let pause = self.milliseconds(300..6000);
        self.after(pause, EventKind::Operate);
        let Some((leader, members)) = self.leader().map(|node| (node.id(), node.members().clone())) else { return };
        self.retire();
        if self.closing {
            return;
        }
        if let Some(ask) = self.next_change(leader, &members) {
            self.record(format!("the operator asks node {leader}: {ask:?}"));
            // The answer is not read, but the node must see an open receiver.
            let (answer, reply) = oneshot::channel();
            let connection = ConnectionId(u64::MAX);
            let responder = Responder::once(connection, self.shown(leader), answer);
            self.servers[&leader].host.open(CallId { client: ClientId(u16::MAX), number: 0, connection }, reply);
            self.enqueue(leader, |inbox| inbox.events.push(Event::Request(ask, responder)));
        }
    }

    /// Switches off servers whose removal is committed.
    fn retire(&mut self) {
        let Some(leader) = self.leader() else { return };
        let members = leader.log().members_at(leader.commit()).clone();
        let removed: Vec<NodeId> = self
            .servers
            .iter()
            .filter(|(id, server)| members.was_removed(**id) && server.fitness != Fitness::Retired)
            .map(|(id, _)| *id)
            .collect();
        for id in removed {
            self.record(format!("server {id} was removed, and is switched off"));
            self.end(id, Death::Killed);
            self.tally.kills -= 1;
            let by = id.next_generation().filter(|by| members.get(*by).is_some() || members.was_removed(*by));
            match by {
                Some(by) => self.return_with_empty_disk(id, by),
                None => {
                    self.tally.removed += 1;
                    self.servers.get_mut(&id).expect("it was just there").fitness = Fitness::Retired;
                }
            }
        }
    }

    fn next_change(&mut self, leader: NodeId, members: &Members) -> Option<Request> {
        let has_lost_log = |id: &NodeId| self.servers.get(id).is_some_and(|server| server.fitness == Fitness::Refused);
        if let Some(lost) = members.ids().find(has_lost_log) {
            let by = lost.next_generation().filter(|_| self.rng.random_bool(0.8));
            let address = Address::from(format!("node-{lost}:2").as_str());
            return Some(request(by.map_or(Change::Remove(lost), |by| Change::Replace { lost, by, address })));
        }
        // A returning server regains its vote without a request.
        if members.returning().next().is_some() {
            return None;
        }
        let voters: Vec<NodeId> = members.voters().collect();
        let learners: Vec<NodeId> = members.ids().filter(|id| !members.is_voter(*id)).collect();
        if voters.len() < self.operator.wanted {
            return match learners.first() {
                Some(&learner) => Some(request(Change::Promote(learner))),
                // Not in a calm: a new server may still lag at the calm's end.
                None => self.storms.then(|| self.add()),
            };
        }
        // In a calm, the cluster must recover without the operator.
        if !self.storms {
            return None;
        }
        match self.rng.random_range(0..12) {
            0 => self.operator.wanted = self.rng.random_range(3..=5),
            1..=3 => {
                self.tally.transfers += 1;
                let to = voters.choose(&mut self.rng).copied().filter(|_| self.rng.random());
                return Some(Request::Transfer(to, Principal::from(ADMINISTRATOR)));
            }
            4 if voters.len() > self.operator.wanted || (voters.len() > 3 && self.rng.random()) => {
                return voters.choose(&mut self.rng).map(|&voter| request(Change::Remove(voter)));
            }
            5 if learners.is_empty() && self.rng.random() => return Some(self.add()),
            6 => {
                let gone = learners.first().copied().filter(|_| self.rng.random());
                return gone.filter(|gone| *gone != leader).map(|gone| request(Change::Remove(gone)));
            }
            _ => {}
        }
        None
    }

    /// Creates a new server and returns the change that adds it as a learner.
    fn add(&mut self) -> Request {
        // If the newest server's change was lost, the operator asks for it again.
        let newest = NodeId(self.operator.next - 1);
        let is_waiting = self.servers[&newest].fitness == Fitness::Sound
            && self.servers[&newest].identity.founders.is_empty()
            && self.leader().is_some_and(|leader| leader.members().get(newest).is_none());
        let id = if is_waiting {
            newest
        } else {
            let id = NodeId(self.operator.next);
            self.operator.next += 1;
            self.add_server(id, &[]);
            self.tally.joined += 1;
            self.after(Duration::from_millis(1), EventKind::Start(id));
            id
        };
        request(Change::Add { id, address: Address::from(format!("node-{id}:1").as_str()) })
    }
}

/// A request for a change, by an administrator: no access rules deny it.
fn request(change: Change) -> Request {
    Request::Change(change, Principal::from(ADMINISTRATOR))
}
