//! The cluster under torture: its running nodes, the active faults, and their repair.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use palisade_client::wire::{MemberChange, StatusView};
use rand::Rng;
use rand::rngs::SmallRng;

use super::Broken;
use super::damage;
use super::disk::{self, Disk};
use super::fault::{Fault, Possible};
use super::network::{Lost, Network};
use super::node::{Excuse, Node, Setup};
use super::operator::{self, Done, block_on};
use super::tracer::{self, SyncFault, Tracer};

/// Maximum number of members.
const MAX_MEMBERS: usize = 5;
/// Maximum number of servers over the cluster's life: node IDs are never reused.
const MAX_SERVERS: u16 = 12;
/// Maximum number of concurrent faults.
const MAX_FAULTS: usize = 2;
/// How long a flapping link stays open, and how long it stays closed.
const FLAP: Duration = Duration::from_millis(60);
/// Time within which the cluster must agree after the faults.
const AGREEMENT_BOUND: Duration = Duration::from_secs(60);
/// Time within which a node must stop after a failed sync.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// A running cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    setup: Setup,
    network: Network,
    nodes: BTreeMap<u16, Node>,
    disks: BTreeMap<u16, Disk>,
    may_trace: bool,
    /// Number of traces of syncs so far.
    traces: u32,
    /// The voting members.
    voters: BTreeSet<u16>,
    next: u16,
    faults: Vec<Active>,
    /// The node of the pending membership change, or that returns after damage to its log, if any.
    changing: Option<u16>,
    /// How often each node has returned after damage.
    generations: BTreeMap<u16, u16>,
    done: (Sender<Done>, Receiver<Done>),
    /// Number of faults of each kind.
    pub(super) counts: BTreeMap<&'static str, u64>,
}

#[derive(Debug)]
struct Active {
    fault: Fault,
    ends: Instant,
    /// A flapping link: time of its last change, and whether it is closed.
    flap: (Instant, bool),
    /// The tracer of a node's syncs.
    tracer: Option<Tracer>,
}

impl Cluster {
    /// Starts three nodes.
    pub(super) fn start(setup: Setup) -> Result<Cluster, Broken> {
        let network = Network::new()?;
        let mut disks = BTreeMap::new();
        let (mut nodes, mut counts) = (setup.founders(3, &network)?, BTreeMap::new());
        for node in &mut nodes {
            // The third keeps a real disk, with real syncs.
            if node.id < 3
                && let Some(disk) = disk::mount(node.data())?
            {
                disks.insert(node.id, disk);
            }
            start(node, &setup, &mut counts)?;
        }
        let (voters, next) = (nodes.iter().map(|node| node.id).collect(), 4);
        let nodes = nodes.into_iter().map(|node| (node.id, node)).collect();
        let (faults, changing, done) = (Vec::new(), None, channel());
        let (may_trace, traces, generations) = (tracer::may_trace(), 0, BTreeMap::new());
        let mut cluster = Cluster {
            setup,
            network,
            nodes,
            disks,
            may_trace,
            traces,
            voters,
            next,
            faults,
            changing,
            generations,
            done,
            counts,
        };
        cluster.await_agreement("at its start")?;
        Ok(cluster)
    }

    /// The members' client addresses.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.voters.iter().map(|id| self.nodes[id].address.client_addr.clone()).collect()
    }

    /// The faults that could not be injected here, with the reason.
    pub(super) fn left_out(&self) -> Vec<&'static str> {
        let conditions = [
            (self.disks.is_empty(), "full disks (need root)"),
            (!self.may_trace, "slow disks and failing syncs (need root and strace)"),
            (!self.setup.skewed, "fast clocks (need libfaketime)"),
        ];
        conditions.into_iter().filter(|(is_out, _)| *is_out).map(|(_, fault)| fault).collect()
    }

    /// The network's losses, as text.
    pub(super) fn lost(&self) -> io::Result<String> {
        self.network.tally()
    }

    /// One tick: ends faults, begins new ones, restarts nodes, and fails if a node stopped without
    /// an excuse.
    pub(super) fn tick(&mut self, random: &mut SmallRng) -> Result<(), Broken> {
        let now = Instant::now();
        let is_over = |active: &Active| active.ends <= now || active.tracer.as_ref().is_some_and(Tracer::has_failed);
        let (over, go_on): (Vec<Active>, Vec<Active>) = self.faults.drain(..).partition(is_over);
        self.faults = go_on;
        for active in over {
            self.end(active, random.random_bool(0.5))?;
        }
        self.flap(now)?;
        self.receive_operator_outcomes()?;
        self.restart_nodes()?;
        if self.faults.len() < MAX_FAULTS
            && random.random_bool(0.1)
            && let Some((fault, lasts)) = Fault::draw(random, &self.possible())
        {
            self.begin(fault, now + lasts)?;
        }
        Ok(())
    }

    fn possible(&self) -> Possible {
        let busy: BTreeSet<u16> =
            self.faults.iter().filter_map(|active| active.fault.victim()).chain(self.changing).collect();
        let has_no_fault = |id: &u16| !busy.contains(id) && self.nodes[id].runs();
        let healthy: Vec<u16> = self.voters.iter().copied().filter(has_no_fault).collect();
        let all = self.nodes.values().filter(|node| node.runs()).map(|node| node.id).collect();
        let may_change = self.changing.is_none();
        Possible {
            all,
            disks: healthy.iter().copied().filter(|id| self.disks.contains_key(id)).collect(),
            may_add: may_change && self.voters.len() < MAX_MEMBERS && self.next <= MAX_SERVERS,
            may_remove: may_change && self.voters.len() > 3,
            may_damage: may_change,
            may_trace: self.may_trace,
            reaches_outside: self.network.reaches_outside(),
            healthy,
        }
    }

    fn begin(&mut self, fault: Fault, ends: Instant) -> Result<(), Broken> {
        *self.counts.entry(fault.name()).or_default() += 1;
        let (security, endpoints, answer) = (self.setup.security(), self.endpoints(), self.done.0.clone());
        let mut tracer = None;
        match &fault {
            Fault::Kill(id) => self.node(*id).kill()?,
            Fault::Damage(id, damage) => {
                self.changing = Some(*id);
                let node = self.node(*id);
                node.kill()?;
                damage.inflict(node.data())?;
            }
            Fault::Freeze(id) => self.node(*id).freeze(true)?,
            Fault::Partition(cut, directions) => self.network.close(directions, cut.lost())?,
            Fault::Flap(directions) => self.network.close(directions, Lost::Everything)?,
            Fault::Fill(id) => {
                self.node(*id).excuse(Excuse::FullDisk);
                self.disks[id].fill()?;
            }
            Fault::Slow(id, delay) => tracer = self.trace(*id, SyncFault::Slow(*delay))?,
            Fault::FailSync(id) => {
                self.node(*id).excuse(Excuse::FailedSync);
                tracer = self.trace(*id, SyncFault::FailOnce)?;
            }
            Fault::Transfer => operator::transfer(security, endpoints, answer),
            Fault::Snapshot(id) => operator::snapshot(security, self.nodes[id].address.client_addr.clone(), answer),
            Fault::Add => {
                let id = self.next;
                (self.next, self.changing) = (id + 1, Some(id));
                // If the asked node is down, the new node cannot join before that node is back.
                let contact = self
                    .possible()
                    .all
                    .first()
                    .map_or_else(String::new, |id| self.nodes[id].address.client_addr.clone());
                let mut node = self.setup.joiner(id, &contact, &self.network)?;
                start(&mut node, &self.setup, &mut self.counts)?;
                self.nodes.insert(id, node);
                operator::change(security, endpoints, MemberChange::Promote { id }, Done::Promoted(id), answer);
            }
            Fault::Remove(id) => {
                self.changing = Some(*id);
                operator::change(security, endpoints, MemberChange::Remove { id: *id }, Done::Removed(*id), answer);
            }
        }
        self.faults.push(Active { fault, ends, flap: (Instant::now(), true), tracer });
        Ok(())
    }

    /// Attaches a tracer to a node's core thread.
    fn trace(&mut self, id: u16, fault: SyncFault) -> io::Result<Option<Tracer>> {
        self.traces += 1;
        let trace = self.setup.directory.join(format!("node-{id}.{}.trace", self.traces));
        self.nodes[&id].pid().map_or(Ok(None), |process| Tracer::attach(process, fault, trace))
    }

    /// Ends a fault. [`restart_nodes`](Cluster::restart_nodes) starts a node that the fault has
    /// stopped.
    fn end(&mut self, mut active: Active, breaks: bool) -> Result<(), Broken> {
        match &active.fault {
            Fault::Damage(id, _) => {
                let generation = self.generations.get(id).copied().unwrap_or(0);
                operator::await_vote(self.setup.security(), self.endpoints(), *id, generation, self.done.0.clone());
            }
            Fault::Freeze(id) => self.node(*id).freeze(false)?,
            Fault::Partition(cut, directions) => self.network.open(directions, cut.lost(), breaks)?,
            Fault::Flap(directions) if active.flap.1 => self.network.open(directions, Lost::Everything, breaks)?,
            Fault::Fill(id) => self.disks[id].clear()?,
            Fault::Slow(id, _) | Fault::FailSync(id) => self.detach(*id, active.tracer.take())?,
            Fault::Kill(_) | Fault::Flap(_) | Fault::Transfer | Fault::Snapshot(_) | Fault::Add | Fault::Remove(_) => {}
        }
        Ok(())
    }

    /// Detaches a tracer. If a sync has failed, the node must stop without another sync.
    fn detach(&mut self, id: u16, tracer: Option<Tracer>) -> Result<(), Broken> {
        let Some(tracer) = tracer else { return Ok(()) };
        if tracer.has_failed() {
            self.await_stop(id)?;
        }
        let syncs = tracer.detach()?;
        // A sync may have failed just before the tracer detached.
        let goes_on = syncs.failed && !self.await_stop(id)?;
        *self.counts.entry("syncs delayed").or_default() += syncs.delayed;
        *self.counts.entry("syncs failed").or_default() += u64::from(syncs.failed);
        if goes_on || syncs.again { Err(Broken::Swallowed { node: id }) } else { Ok(()) }
    }

    /// Waits for a node to stop by itself. Returns whether it has.
    fn await_stop(&mut self, id: u16) -> io::Result<bool> {
        let deadline = Instant::now() + STOP_BOUND;
        while self.node(id).is_alive()? && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(!self.node(id).is_alive()?)
    }

    fn node(&mut self, id: u16) -> &mut Node {
        self.nodes.get_mut(&id).expect("faults happen to nodes that are there")
    }

    fn flap(&mut self, now: Instant) -> io::Result<()> {
        for active in &mut self.faults {
            if let Fault::Flap(directions) = &active.fault
                && now - active.flap.0 >= FLAP
            {
                active.flap = (now, !active.flap.1);
                if active.flap.1 {
                    self.network.close(directions, Lost::Everything)?;
                } else {
                    self.network.open(directions, Lost::Everything, false)?;
                }
            }
        }
        Ok(())
    }

    fn receive_operator_outcomes(&mut self) -> Result<(), Broken> {
        while let Ok(done) = self.done.1.try_recv() {
            match done {
                Done::Promoted(id) => {
                    self.voters.insert(id);
                    self.changing = None;
                }
                Done::Removed(id) => {
                    self.voters.remove(&id);
                    self.changing = None;
                    self.node(id).kill()?;
                    self.nodes.remove(&id);
                }
                Done::Votes(id, generation) => {
                    self.changing = None;
                    let earlier = self.generations.insert(id, generation).unwrap_or(0);
                    *self.counts.entry("nodes taken back").or_default() += u64::from(generation > earlier);
                    damage::remove_kept(self.nodes[&id].data())?;
                }
                Done::NotTakenBack(id) => {
                    let damaged = format!("node {id}, whose log was damaged, has not got its vote back");
                    return Err(Broken::NoAgreement(damaged));
                }
                Done::Completed => {}
                // The change may still be made later: it stays pending, and no other change is
                // begun.
                Done::GaveUp => *self.counts.entry("operators that gave up").or_default() += 1,
            }
        }
        Ok(())
    }

    /// Starts nodes that do not run, except the victims of active faults. A node that stopped by
    /// itself needs an excuse; without one it has found an internal error.
    fn restart_nodes(&mut self) -> Result<(), Broken> {
        let victims: BTreeSet<u16> = self.faults.iter().filter_map(|active| active.fault.victim()).collect();
        for node in self.nodes.values_mut() {
            if let Some(end) = node.ended()? {
                let reason = match end.excuse {
                    Some(Excuse::FullDisk) => "stops on a full disk",
                    Some(Excuse::FailedSync) => "stops on a failed sync",
                    None => {
                        let (node, status, log_end) = (node.id, end.status.to_string(), end.log_end);
                        return Err(Broken::Stopped { node, status, log_end });
                    }
                };
                *self.counts.entry(reason).or_default() += 1;
            }
            if !node.runs() && !victims.contains(&node.id) {
                start(node, &self.setup, &mut self.counts)?;
            }
        }
        Ok(())
    }

    /// Ends all faults and waits for agreement.
    pub(super) fn heal(&mut self) -> Result<(), Broken> {
        for active in std::mem::take(&mut self.faults) {
            self.end(active, true)?;
        }
        let deadline = Instant::now() + AGREEMENT_BOUND;
        while self.changing.is_some() && Instant::now() < deadline {
            self.receive_operator_outcomes()?;
            self.restart_nodes()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        self.await_agreement("after the faults")
    }

    /// Waits until all members know the same leader.
    fn await_agreement(&mut self, when: &str) -> Result<(), Broken> {
        let deadline = Instant::now() + AGREEMENT_BOUND;
        loop {
            self.restart_nodes()?;
            let statuses = self.statuses();
            let leaders: BTreeSet<Option<u16>> =
                statuses.iter().map(|status| status.as_ref()?.leader.as_ref().map(|leader| leader.id)).collect();
            if leaders.len() == 1 && leaders.first().is_some_and(Option::is_some) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Broken::NoAgreement(format!(
                    "{when}, the members do not agree on a leader within {AGREEMENT_BOUND:?}; they know {leaders:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn statuses(&self) -> Vec<Option<StatusView>> {
        let security = self.setup.security();
        let ask = |endpoint: &String| block_on(security.status(endpoint, Duration::from_secs(1))).ok();
        self.endpoints().iter().map(ask).collect()
    }

    /// Waits until there are no sessions and the members are idle; then their states must be
    /// identical. Returns the state's hash.
    pub(super) fn same_state(&mut self) -> Result<String, Broken> {
        let deadline = Instant::now() + AGREEMENT_BOUND;
        loop {
            self.restart_nodes()?;
            let statuses: Vec<StatusView> = self.statuses().into_iter().flatten().collect();
            let quiet = statuses.len() == self.voters.len()
                && statuses.iter().all(|status| (status.sessions, status.applied) == (0, statuses[0].applied));
            if quiet {
                let security = self.setup.security();
                let take = |endpoint: &String| block_on(operator::take_snapshot(&security, endpoint));
                let taken: Vec<_> = self.endpoints().iter().map(take).collect();
                let same = taken.iter().all(|other| other == &taken[0]);
                if let (true, Some((_, hash))) = (same, &taken[0]) {
                    return Ok(hash.clone());
                }
                let at_once = taken.iter().flatten().all(|(index, _)| *index == statuses[0].applied);
                if at_once && taken.iter().all(Option::is_some) {
                    return Err(Broken::NoAgreement(format!("the members have different states: {taken:?}")));
                }
            }
            if Instant::now() > deadline {
                return Err(Broken::NoAgreement(format!(
                    "the members are not idle within {AGREEMENT_BOUND:?}: {statuses:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops all nodes.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.nodes.values_mut().try_for_each(Node::kill)
    }
}

/// Starts a node on its existing data, and counts it if it runs the version before.
fn start(node: &mut Node, setup: &Setup, counts: &mut BTreeMap<&'static str, u64>) -> io::Result<()> {
    if node.start(setup)? {
        *counts.entry("starts of the version before").or_default() += 1;
    }
    Ok(())
}
