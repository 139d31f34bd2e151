//! Who harms the cluster: every kind of fault, at random, one on top of the other, until it is told to stop.

use std::time::Duration;

use palisade::core::Event;
use palisade_spec::raft::NodeId;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::super::call::ClientId;
use super::super::disk::Troubles;
use super::super::host::CrashPoint;
use super::super::network::Weather;
use super::servers::{Death, Fitness};
use super::{Happening, World};

/// What is over after a while.
#[derive(Debug)]
pub(super) enum Repair {
    /// Links are mended.
    Links(Vec<(NodeId, NodeId)>),
    /// A link flaps: it is cut or mended, and so on so many times.
    Flap(NodeId, NodeId, u32),
    /// The weather is fair again.
    Weather,
    /// A disk has room again.
    Room(NodeId),
    /// A disk is as fast as it was.
    Speed(NodeId),
}

impl World {
    /// Something goes wrong, and something else will soon.
    pub(super) fn trouble(&mut self) {
        let pace = self.plan.pace.mul_f64(self.rng.random_range(0.1..2.0));
        self.after(pace, Happening::Trouble);
        if !self.storms {
            return;
        }
        let running: Vec<NodeId> =
            self.servers.iter().filter(|(_, server)| server.process.is_some()).map(|(id, _)| *id).collect();
        let Some(&victim) = running.choose(&mut self.rng) else { return };
        match self.rng.random_range(0..100) {
            0..16 => self.doom(victim),
            16..19 => running.iter().for_each(|&id| self.doom(id)),
            19..22 => self.hand(victim, |inbox| inbox.events.push(Event::Stop)),
            22..34 => self.isolate(victim, &running),
            34..40 => self.split(&running),
            40..50 => self.cut_one_way(&running),
            50..55 => self.flap(&running),
            55..67 => self.bad_weather(),
            67..71 => self.fill_disk(victim),
            71..76 => self.fail_sync(victim),
            76..82 => self.slow_disk(victim),
            82..84 => self.rot(victim),
            84..89 => self.stand_still(victim),
            89..96 => self.nap(),
            _ => self.client_dies(),
        }
    }

    /// It dies: now, or in the middle of one of the next things that it does.
    fn doom(&mut self, id: NodeId) {
        let at_once = self.rng.random_bool(0.3);
        let death = if self.rng.random_bool(0.4) { Death::Killed } else { Death::PowerFailure };
        let of_disk = self.rng.random_bool(0.6);
        let crash_point = CrashPoint { left: self.rng.random_range(1..if of_disk { 12 } else { 60 }), of_disk };
        let Some(server) = self.servers.get_mut(&id) else { return };
        server.death = death;
        if at_once {
            self.crashed(id);
        } else {
            server.host.set_fuse(crash_point);
        }
    }

    fn cut(&mut self, links: Vec<(NodeId, NodeId)>, what: &str) {
        for &(from, to) in &links {
            self.links.cut(from, to);
        }
        self.tally.cuts += links.len() as u64;
        self.tell(format!("{what}: {links:?} are cut"));
        let time = self.milliseconds(50..8000);
        self.after(time, Happening::Repair(Repair::Links(links)));
    }

    fn isolate(&mut self, victim: NodeId, running: &[NodeId]) {
        let others = running.iter().filter(|&&other| other != victim);
        let links = others.flat_map(|&other| [(victim, other), (other, victim)]).collect();
        self.cut(links, "a node is alone");
    }

    fn split(&mut self, running: &[NodeId]) {
        let sides: Vec<(NodeId, bool)> = running.iter().map(|&id| (id, self.rng.random())).collect();
        let links = sides.iter().flat_map(|&(from, side)| {
            sides.iter().filter(move |(_, other)| *other != side).map(move |&(to, _)| (from, to))
        });
        let links = links.collect();
        self.cut(links, "two sides");
    }

    fn cut_one_way(&mut self, running: &[NodeId]) {
        let links = running.iter().flat_map(|&from| running.iter().map(move |&to| (from, to)));
        let links: Vec<_> = links.filter(|(from, to)| from != to).filter(|_| self.rng.random_bool(0.25)).collect();
        self.cut(links, "some ways");
    }

    fn flap(&mut self, running: &[NodeId]) {
        let (Some(&from), Some(&to)) = (running.choose(&mut self.rng), running.choose(&mut self.rng)) else { return };
        if from != to {
            let times = self.rng.random_range(2..30);
            self.tell(format!("the way from {from} to {to} flaps"));
            self.relieve(Repair::Flap(from, to, times));
        }
    }

    fn bad_weather(&mut self) {
        let rng = &mut self.rng;
        self.weather = Weather {
            loss: rng.random_range(0..300),
            repeats: rng.random_range(0..200),
            base: Duration::from_micros(rng.random_range(100..5000)),
            spread: Duration::from_millis(rng.random_range(1..200)),
        };
        self.tell(format!("{:?}", self.weather));
        let time = self.milliseconds(200..8000);
        self.after(time, Happening::Repair(Repair::Weather));
    }

    fn fill_disk(&mut self, id: NodeId) {
        self.servers[&id].disk.trouble(|troubles| troubles.is_full = true);
        self.tell(format!("the disk of node {id} is full"));
        let time = self.milliseconds(500..8000);
        self.after(time, Happening::Repair(Repair::Room(id)));
    }

    fn fail_sync(&mut self, id: NodeId) {
        let of_snapshots = self.rng.random_bool(0.4);
        let count = self.rng.random_range(0..if of_snapshots { 2 } else { 20 });
        self.servers[&id].disk.trouble(|troubles| {
            (troubles.sync_fails_in, troubles.of_snapshots) = (Some(count), of_snapshots);
        });
        self.tell(format!("a sync of node {id} is going to fail"));
    }

    fn slow_disk(&mut self, id: NodeId) {
        let stall = self.milliseconds(5..400);
        self.servers[&id].disk.trouble(|troubles| troubles.stall = stall);
        self.tell(format!("the disk of node {id} takes up to {stall:?} longer"));
        let time = self.milliseconds(200..5000);
        self.after(time, Happening::Repair(Repair::Speed(id)));
    }

    /// A bit of a disk turns over while nobody looks, or the log loses its end. Not while there is another node that has lost its disk.
    fn rot(&mut self, id: NodeId) {
        let is_alone = self.servers.values().any(|server| !matches!(server.fitness, Fitness::Sound | Fitness::Retired));
        let voters = self.leader().map_or(0, |leader| leader.members().voters().count());
        if is_alone || voters < 3 {
            return;
        }
        self.end(id, Death::Killed);
        let loses_end = self.rng.random_bool(0.4);
        if let Some(server) = self.servers.get_mut(&id)
            && let Some(file) = if loses_end { server.disk.lose_end() } else { server.disk.rot() }
        {
            server.fitness = Fitness::Rots(file.clone());
            let what = if loses_end { "loses its end" } else { "has a bit turned over" };
            self.tell(format!("{file} of node {id} {what}"));
        }
        self.after(Duration::from_millis(500), Happening::Start(id));
    }

    fn stand_still(&mut self, id: NodeId) {
        let time = self.milliseconds(20..3000);
        self.tally.pauses += 1;
        self.tell(format!("node {id} stands still for {time:?}"));
        self.pause(id, time);
    }

    fn nap(&mut self) {
        let time = self.milliseconds(100..9000);
        let sleeper = self.rng.random_range(0..self.clients.len());
        self.clients[sleeper].asleep_until = self.now + time;
        self.tally.naps += 1;
        self.tell(format!("client {sleeper} falls asleep for {time:?}"));
    }

    fn client_dies(&mut self) {
        let victim = self.rng.random_range(0..self.plan.clients);
        self.tally.deaths += 1;
        self.tell(format!("client {victim} dies"));
        let mut told = None;
        self.with_client(ClientId(victim), |client, around| told = client.die(around));
        self.carry_out(told.into_iter().collect());
        self.turns[usize::from(victim)] = self.now;
        self.after(Duration::ZERO, Happening::Client(ClientId(victim)));
    }

    /// Something is over.
    pub(super) fn relieve(&mut self, repair: Repair) {
        match repair {
            Repair::Links(links) => links.into_iter().for_each(|(from, to)| self.links.mend(from, to)),
            Repair::Flap(from, to, times) => {
                if times % 2 == 0 && self.storms {
                    self.links.cut(from, to);
                    self.tally.cuts += 1;
                } else {
                    self.links.mend(from, to);
                }
                if times > 0 && self.storms {
                    let time = self.milliseconds(10..300);
                    self.after(time, Happening::Repair(Repair::Flap(from, to, times - 1)));
                }
            }
            Repair::Weather => self.weather = Weather::FAIR,
            Repair::Room(id) => self.ease(id, |troubles| troubles.is_full = false),
            Repair::Speed(id) => self.ease(id, |troubles| troubles.stall = Duration::ZERO),
        }
    }

    fn ease(&self, id: NodeId, change: impl FnOnce(&mut Troubles)) {
        if let Some(server) = self.servers.get(&id) {
            server.disk.trouble(change);
        }
    }

    /// All that is wrong is mended, and whoever can be started is.
    pub(super) fn calm_down(&mut self) {
        self.storms = false;
        self.tell("the faults end");
        self.links.mend_all();
        self.weather = Weather::FAIR;
        let ids: Vec<NodeId> = self.servers.keys().copied().collect();
        for id in ids {
            let server = &self.servers[&id];
            server.disk.trouble(|troubles| *troubles = Troubles::default());
            server.host.remove_fuse();
            self.after(Duration::from_millis(10), Happening::Start(id));
        }
        for client in &mut self.clients {
            client.asleep_until = client.asleep_until.min(self.now);
        }
    }
}
