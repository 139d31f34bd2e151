//! The nemesis: injects faults of every kind at random, overlapping, while storms last.

use std::time::Duration;

use palisade::core::Event;
use palisade_spec::raft::NodeId;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::super::call::ClientId;
use super::super::disk::DiskFaults;
use super::super::host::CrashPoint;
use super::super::network::LinkQuality;
use super::servers::{Death, Fitness};
use super::{EventKind, World};

/// A repair, due after a while.
#[derive(Debug)]
pub(super) enum Repair {
    /// Links are restored.
    Links(Vec<(NodeId, NodeId)>),
    /// A link flaps: it is cut and restored in turn, this many more times.
    Flap(NodeId, NodeId, u32),
    /// The network is fair again.
    Network,
    /// A disk has room again.
    Room(NodeId),
    /// A disk has its normal speed again.
    Speed(NodeId),
}

impl World {
    /// Injects a fault and schedules the next one.
    pub(super) fn inject_fault(&mut self) {
        let pace = self.plan.fault_interval.mul_f64(self.rng.random_range(0.1..2.0));
        self.after(pace, EventKind::Fault);
        if !self.storms {
            return;
        }
        let running: Vec<NodeId> =
            self.servers.iter().filter(|(_, server)| server.process.is_some()).map(|(id, _)| *id).collect();
        let Some(&victim) = running.choose(&mut self.rng) else { return };
        match self.rng.random_range(0..100) {
            0..16 => self.schedule_crash(victim),
            16..19 => running.iter().for_each(|&id| self.schedule_crash(id)),
            19..22 => self.enqueue(victim, |inbox| inbox.events.push(Event::Stop)),
            22..34 => self.isolate(victim, &running),
            34..40 => self.split(&running),
            40..50 => self.cut_one_way(&running),
            50..55 => self.flap(&running),
            55..67 => self.degrade_network(),
            67..71 => self.fill_disk(victim),
            71..76 => self.fail_sync(victim),
            76..82 => self.slow_disk(victim),
            82..84 => self.damage_disk(victim),
            84..89 => self.pause_node(victim),
            89..96 => self.pause_client(),
            _ => self.kill_client(),
        }
    }

    /// Crashes a node: now, or at one of its next effects.
    fn schedule_crash(&mut self, id: NodeId) {
        let at_once = self.rng.random_bool(0.3);
        let death = if self.rng.random_bool(0.4) { Death::Killed } else { Death::PowerFailure };
        let of_disk = self.rng.random_bool(0.6);
        let crash_point = CrashPoint { left: self.rng.random_range(1..if of_disk { 12 } else { 60 }), of_disk };
        let Some(server) = self.servers.get_mut(&id) else { return };
        server.death = death;
        if at_once {
            self.crashed(id);
        } else {
            server.host.set_crash_point(crash_point);
        }
    }

    fn cut(&mut self, links: Vec<(NodeId, NodeId)>, what: &str) {
        for &(from, to) in &links {
            self.links.cut(from, to);
        }
        self.tally.cuts += links.len() as u64;
        self.record(format!("{what}: {links:?} are cut"));
        let time = self.milliseconds(50..8000);
        self.after(time, EventKind::Repair(Repair::Links(links)));
    }

    fn isolate(&mut self, victim: NodeId, running: &[NodeId]) {
        let others = running.iter().filter(|&&other| other != victim);
        let links = others.flat_map(|&other| [(victim, other), (other, victim)]).collect();
        self.cut(links, "a node is isolated");
    }

    fn split(&mut self, running: &[NodeId]) {
        let sides: Vec<(NodeId, bool)> = running.iter().map(|&id| (id, self.rng.random())).collect();
        let links = sides.iter().flat_map(|&(from, side)| {
            sides.iter().filter(move |(_, other)| *other != side).map(move |&(to, _)| (from, to))
        });
        let links = links.collect();
        self.cut(links, "a partition");
    }

    fn cut_one_way(&mut self, running: &[NodeId]) {
        let links = running.iter().flat_map(|&from| running.iter().map(move |&to| (from, to)));
        let links: Vec<_> = links.filter(|(from, to)| from != to).filter(|_| self.rng.random_bool(0.25)).collect();
        self.cut(links, "some links");
    }

    fn flap(&mut self, running: &[NodeId]) {
        let (Some(&from), Some(&to)) = (running.choose(&mut self.rng), running.choose(&mut self.rng)) else { return };
        if from != to {
            let times = self.rng.random_range(2..30);
            self.record(format!("the link from {from} to {to} flaps"));
            self.repair(Repair::Flap(from, to, times));
        }
    }

    fn degrade_network(&mut self) {
        let rng = &mut self.rng;
        self.quality = LinkQuality {
            loss: rng.random_range(0..300),
            repeats: rng.random_range(0..200),
            base: Duration::from_micros(rng.random_range(100..5000)),
            spread: Duration::from_millis(rng.random_range(1..200)),
        };
        self.record(format!("{:?}", self.quality));
        let time = self.milliseconds(200..8000);
        self.after(time, EventKind::Repair(Repair::Network));
    }

    fn fill_disk(&mut self, id: NodeId) {
        self.servers[&id].disk.set_faults(|faults| faults.is_full = true);
        self.record(format!("the disk of node {id} is full"));
        let time = self.milliseconds(500..8000);
        self.after(time, EventKind::Repair(Repair::Room(id)));
    }

    fn fail_sync(&mut self, id: NodeId) {
        let of_snapshots = self.rng.random_bool(0.4);
        let count = self.rng.random_range(0..if of_snapshots { 2 } else { 20 });
        self.servers[&id].disk.set_faults(|faults| {
            (faults.sync_fails_in, faults.of_snapshots) = (Some(count), of_snapshots);
        });
        self.record(format!("a future sync of node {id} will fail"));
    }

    fn slow_disk(&mut self, id: NodeId) {
        let stall = self.milliseconds(5..400);
        self.servers[&id].disk.set_faults(|faults| faults.stall = stall);
        self.record(format!("the disk of node {id} takes up to {stall:?} longer"));
        let time = self.milliseconds(200..5000);
        self.after(time, EventKind::Repair(Repair::Speed(id)));
    }

    /// Flips a bit on a disk, or cuts off the end of the log; only while no other server has lost
    /// its disk and there are at least 3 voters.
    fn damage_disk(&mut self, id: NodeId) {
        let is_alone = self.servers.values().any(|server| !matches!(server.fitness, Fitness::Sound | Fitness::Retired));
        let voters = self.leader().map_or(0, |leader| leader.members().voters().count());
        if is_alone || voters < 3 {
            return;
        }
        self.end(id, Death::Killed);
        let loses_end = self.rng.random_bool(0.4);
        if let Some(server) = self.servers.get_mut(&id)
            && let Some(file) = if loses_end { server.disk.truncate_log() } else { server.disk.flip_bit() }
        {
            server.fitness = Fitness::Damaged(file.clone());
            let what = if loses_end { "loses its end" } else { "has a flipped bit" };
            self.record(format!("{file} of node {id} {what}"));
        }
        self.after(Duration::from_millis(500), EventKind::Start(id));
    }

    fn pause_node(&mut self, id: NodeId) {
        let time = self.milliseconds(20..3000);
        self.tally.pauses += 1;
        self.record(format!("node {id} is paused for {time:?}"));
        self.pause(id, time);
    }

    fn pause_client(&mut self) {
        let time = self.milliseconds(100..9000);
        let sleeper = self.rng.random_range(0..self.clients.len());
        self.clients[sleeper].paused_until = self.now + time;
        self.tally.naps += 1;
        self.record(format!("client {sleeper} is paused for {time:?}"));
    }

    fn kill_client(&mut self) {
        let victim = self.rng.random_range(0..self.plan.clients);
        self.tally.deaths += 1;
        self.record(format!("client {victim} dies"));
        let mut notice = None;
        self.with_client(ClientId(victim), |client, env| notice = client.die(env));
        self.send_actions(notice.into_iter().collect());
        self.turns[usize::from(victim)] = self.now;
        self.after(Duration::ZERO, EventKind::Client(ClientId(victim)));
    }

    /// Applies a repair.
    pub(super) fn repair(&mut self, repair: Repair) {
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
                    self.after(time, EventKind::Repair(Repair::Flap(from, to, times - 1)));
                }
            }
            Repair::Network => self.quality = LinkQuality::NORMAL,
            Repair::Room(id) => self.clear_fault(id, |faults| faults.is_full = false),
            Repair::Speed(id) => self.clear_fault(id, |faults| faults.stall = Duration::ZERO),
        }
    }

    fn clear_fault(&self, id: NodeId, change: impl FnOnce(&mut DiskFaults)) {
        if let Some(server) = self.servers.get(&id) {
            server.disk.set_faults(change);
        }
    }

    /// Ends all faults and starts every server that can start.
    pub(super) fn end_faults(&mut self) {
        self.storms = false;
        self.record("the faults end");
        self.links.mend_all();
        self.quality = LinkQuality::NORMAL;
        let ids: Vec<NodeId> = self.servers.keys().copied().collect();
        for id in ids {
            let server = &self.servers[&id];
            server.disk.set_faults(|faults| *faults = DiskFaults::default());
            server.host.remove_crash_point();
            self.after(Duration::from_millis(10), EventKind::Start(id));
        }
        for client in &mut self.clients {
            client.paused_until = client.paused_until.min(self.now);
        }
    }
}
