//! Who runs the cluster: replaces servers that have lost their disks, adds some and removes some, hands the leadership
//! over.

use std::time::Duration;

use palisade::core::{ConnectionId, Event, Request, Responder};
use palisade_spec::raft::{Address, Change, Members, NodeId};
use rand::Rng;
use rand::seq::IndexedRandom;
use tokio::sync::oneshot;

use super::super::call::{CallId, ClientId};
use super::servers::{Death, Fitness};
use super::{Happening, World};

/// The operator. Servers that have lost their disks and ask to be replaced count as its hands, too.
#[derive(Debug)]
pub(super) struct Operator {
    /// The number of the next server.
    next: u32,
    /// How many voters there should be.
    wanted: usize,
}

impl Operator {
    pub(super) fn new(founders: u16) -> Operator {
        Operator { next: u32::from(founders) + 1, wanted: usize::from(founders) }
    }
}

impl World {
    /// The operator looks at the cluster, and asks its leader for something. What comes of it shows the next time.
    pub(super) fn operate(&mut self) {
        let pause = self.milliseconds(300..6000);
        self.after(pause, Happening::Operate);
        let Some((leader, members)) = self.leader().map(|node| (node.id(), node.members().clone())) else { return };
        self.retire();
        if self.closing {
            return;
        }
        if let Some(ask) = self.next_change(leader, &members) {
            self.tell(format!("the operator asks node {leader}: {ask:?}"));
            // Nobody reads the answer; but somebody waits for it.
            let (answer, reply) = oneshot::channel();
            let connection = ConnectionId(u64::MAX);
            let mut responder = Responder::once(connection, answer);
            responder.asked = self.shown(leader);
            self.servers[&leader].host.open(CallId { client: ClientId(u16::MAX), number: 0, connection }, reply);
            self.hand(leader, |inbox| inbox.events.push(Event::Request(ask, responder)));
        }
    }

    /// Servers whose removal is committed are switched off.
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
            self.tell(format!("server {id} was removed, and is switched off"));
            self.end(id, Death::Killed);
            self.tally.kills -= 1;
            let by = id.next_generation().filter(|by| members.get(*by).is_some() || members.was_removed(*by));
            match by {
                Some(by) => self.come_back(id, by),
                None => {
                    self.tally.removed += 1;
                    self.servers.get_mut(&id).expect("it was just there").fitness = Fitness::Retired;
                }
            }
        }
    }

    fn next_change(&mut self, leader: NodeId, members: &Members) -> Option<Request> {
        let is_rotten = |id: &NodeId| self.servers.get(id).is_some_and(|server| server.fitness == Fitness::Rotten);
        if let Some(lost) = members.ids().find(is_rotten) {
            let by = lost.next_generation().filter(|_| self.rng.random_bool(0.8));
            let address = Address::from(format!("node-{lost}:2").as_str());
            return Some(Request::Change(by.map_or(Change::Remove(lost), |by| Change::Replace { lost, by, address })));
        }
        // It gets its vote back without anybody's help.
        if members.returning().next().is_some() {
            return None;
        }
        let voters: Vec<NodeId> = members.voters().collect();
        let learners: Vec<NodeId> = members.ids().filter(|id| !members.is_voter(*id)).collect();
        if voters.len() < self.operator.wanted {
            return match learners.first() {
                Some(&learner) => Some(Request::Change(Change::Promote(learner))),
                // One that comes in a calm may be behind at its end.
                None => self.storms.then(|| self.add()),
            };
        }
        // A calm is for what must come of itself.
        if !self.storms {
            return None;
        }
        match self.rng.random_range(0..12) {
            0 => self.operator.wanted = self.rng.random_range(3..=5),
            1..=3 => {
                self.tally.transfers += 1;
                let to = voters.choose(&mut self.rng).copied().filter(|_| self.rng.random());
                return Some(Request::Transfer(to));
            }
            4 if voters.len() > self.operator.wanted || (voters.len() > 3 && self.rng.random()) => {
                return voters.choose(&mut self.rng).map(|&voter| Request::Change(Change::Remove(voter)));
            }
            5 if learners.is_empty() && self.rng.random() => return Some(self.add()),
            6 => {
                let gone = learners.first().copied().filter(|_| self.rng.random());
                return gone.filter(|gone| *gone != leader).map(|gone| Request::Change(Change::Remove(gone)));
            }
            _ => {}
        }
        None
    }

    /// A new server, and the change that makes it a learner.
    fn add(&mut self) -> Request {
        // One that was asked for before, and whose change was lost, is asked for again.
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
            self.after(Duration::from_millis(1), Happening::Start(id));
            id
        };
        Request::Change(Change::Add { id, address: Address::from(format!("node-{id}:1").as_str()) })
    }
}
