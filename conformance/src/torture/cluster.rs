//! The cluster under torture: who runs, what is wrong with whom, and how it is made good again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use palisade_client::wire::{MemberChange, StatusView};
use rand::Rng;
use rand::rngs::SmallRng;

use super::Broken;
use super::disk::{self, Disk};
use super::fault::{Fault, Possible};
use super::network::{Lost, Network};
use super::node::{Excuse, Node, Setup};
use super::operator::{self, Done, block_on};
use super::tracer::{self, Harm, Tracer};

/// A cluster never has more members than this.
const MOST: usize = 5;
/// Nor are there more servers over its whole life: a number never comes back.
const NUMBERS: u16 = 12;
/// At most so many faults at a time.
const AT_ONCE: usize = 2;
/// A flapping link is open for so long, and closed for so long.
const FLAP: Duration = Duration::from_millis(60);
/// How long a cluster may take to agree, once nothing is wrong.
const AGREES: Duration = Duration::from_secs(60);
/// How long a node may take to stop when a sync has failed.
const STOPS: Duration = Duration::from_secs(10);

/// A running cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    setup: Setup,
    network: Network,
    nodes: BTreeMap<u16, Node>,
    disks: BTreeMap<u16, Disk>,
    may_trace: bool,
    /// How many traces of syncs there are.
    traces: u32,
    /// Members that count.
    voters: BTreeSet<u16>,
    next: u16,
    faults: Vec<Active>,
    /// Whether a change of the members is under way, and with whom.
    changing: Option<u16>,
    done: (Sender<Done>, Receiver<Done>),
    /// How often each kind of fault has happened.
    pub(super) counts: BTreeMap<&'static str, u64>,
}

#[derive(Debug)]
struct Active {
    fault: Fault,
    ends: Instant,
    /// A flapping link: since when it is as it is, and whether it is closed.
    flap: (Instant, bool),
    /// What stands between a node and its disk.
    tracer: Option<Tracer>,
}

impl Cluster {
    /// Starts three nodes.
    pub(super) fn start(setup: Setup) -> Result<Cluster, Broken> {
        let network = Network::new()?;
        let mut disks = BTreeMap::new();
        let mut nodes = setup.founders(3, &network)?;
        for node in &mut nodes {
            // The third keeps a real disk, with real syncs.
            if node.id < 3
                && let Some(disk) = disk::mount(node.data())?
            {
                disks.insert(node.id, disk);
            }
            node.start(&setup)?;
        }
        let (voters, next) = (nodes.iter().map(|node| node.id).collect(), 4);
        let nodes = nodes.into_iter().map(|node| (node.id, node)).collect();
        let (faults, changing, done, counts) = (Vec::new(), None, channel(), BTreeMap::new());
        let (may_trace, traces) = (tracer::may_trace(), 0);
        let mut cluster =
            Cluster { setup, network, nodes, disks, may_trace, traces, voters, next, faults, changing, done, counts };
        cluster.agrees("at its start")?;
        Ok(cluster)
    }

    /// Where the members serve clients.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.voters.iter().map(|id| self.nodes[id].seat.client_addr.clone()).collect()
    }

    /// What could not happen here, and why.
    pub(super) fn left_out(&self) -> Vec<&'static str> {
        let conditions = [
            (self.disks.is_empty(), "no disk was filled: that needs root"),
            (!self.may_trace, "no disk was slow and no sync failed: that needs root and strace"),
            (!self.setup.skewed, "all clocks ran alike: others need libfaketime"),
        ];
        conditions.into_iter().filter(|(is_out, _)| *is_out).map(|(_, words)| words).collect()
    }

    /// How much the network has lost, in words.
    pub(super) fn lost(&self) -> io::Result<String> {
        self.network.tally()
    }

    /// A moment passes: faults end, others begin, and nobody stops without a reason.
    pub(super) fn tick(&mut self, random: &mut SmallRng) -> Result<(), Broken> {
        let now = Instant::now();
        let is_over = |active: &Active| active.ends <= now || active.tracer.as_ref().is_some_and(Tracer::has_failed);
        let (over, go_on): (Vec<Active>, Vec<Active>) = self.faults.drain(..).partition(is_over);
        self.faults = go_on;
        for active in over {
            self.end(active, random.random_bool(0.5))?;
        }
        self.flap(now)?;
        self.hear_operators()?;
        self.look_after_nodes()?;
        if self.faults.len() < AT_ONCE
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
        let is_well = |id: &u16| !busy.contains(id) && self.nodes[id].runs();
        let well: Vec<u16> = self.voters.iter().copied().filter(is_well).collect();
        let all = self.nodes.values().filter(|node| node.runs()).map(|node| node.id).collect();
        let may_change = self.changing.is_none();
        Possible {
            all,
            disks: well.iter().copied().filter(|id| self.disks.contains_key(id)).collect(),
            may_add: may_change && self.voters.len() < MOST && self.next <= NUMBERS,
            may_remove: may_change && self.voters.len() > 3,
            may_trace: self.may_trace,
            reaches_outside: self.network.reaches_outside(),
            well,
        }
    }

    fn begin(&mut self, fault: Fault, ends: Instant) -> Result<(), Broken> {
        *self.counts.entry(fault.name()).or_default() += 1;
        let (endpoints, answer) = (self.endpoints(), self.done.0.clone());
        let mut tracer = None;
        match &fault {
            Fault::Kill(id) => self.node(*id).kill()?,
            Fault::Freeze(id) => self.node(*id).freeze(true)?,
            Fault::Partition(cut, directions) => self.network.close(directions, cut.lost())?,
            Fault::Flap(directions) => self.network.close(directions, Lost::Everything)?,
            Fault::Fill(id) => {
                self.node(*id).excuse(Excuse::FullDisk);
                self.disks[id].fill()?;
            }
            Fault::Slow(id, delay) => tracer = self.trace(*id, Harm::Slow(*delay))?,
            Fault::FailSync(id) => {
                self.node(*id).excuse(Excuse::FailedSync);
                tracer = self.trace(*id, Harm::FailOnce)?;
            }
            Fault::Transfer => operator::transfer(endpoints, answer),
            Fault::Snapshot(id) => operator::snapshot(self.nodes[id].seat.client_addr.clone(), answer),
            Fault::Add => {
                let id = self.next;
                (self.next, self.changing) = (id + 1, Some(id));
                // Whom it asks may be gone; then it cannot join before that one is back.
                let whom =
                    self.possible().all.first().map_or_else(String::new, |id| self.nodes[id].seat.client_addr.clone());
                let mut node = self.setup.joiner(id, &whom, &self.network)?;
                node.start(&self.setup)?;
                self.nodes.insert(id, node);
                operator::change(endpoints, MemberChange::Promote { id }, Done::Promoted(id), answer);
            }
            Fault::Remove(id) => {
                self.changing = Some(*id);
                operator::change(endpoints, MemberChange::Remove { id: *id }, Done::Removed(*id), answer);
            }
        }
        self.faults.push(Active { fault, ends, flap: (Instant::now(), true), tracer });
        Ok(())
    }

    /// Stands between a node and its disk.
    fn trace(&mut self, id: u16, harm: Harm) -> io::Result<Option<Tracer>> {
        self.traces += 1;
        let trace = self.setup.directory.join(format!("node-{id}.{}.trace", self.traces));
        self.nodes[&id].pid().map_or(Ok(None), |process| Tracer::attach(process, harm, trace))
    }

    /// Ends a fault. Whoever was stopped by it, or has stopped itself, is started again by
    /// [`look_after_nodes`](Cluster::look_after_nodes).
    fn end(&mut self, mut active: Active, breaks: bool) -> Result<(), Broken> {
        match &active.fault {
            Fault::Freeze(id) => self.node(*id).freeze(false)?,
            Fault::Partition(cut, directions) => self.network.open(directions, cut.lost(), breaks)?,
            Fault::Flap(directions) if active.flap.1 => self.network.open(directions, Lost::Everything, breaks)?,
            Fault::Fill(id) => self.disks[id].clear()?,
            Fault::Slow(id, _) | Fault::FailSync(id) => self.detach(*id, active.tracer.take())?,
            Fault::Kill(_) | Fault::Flap(_) | Fault::Transfer | Fault::Snapshot(_) | Fault::Add | Fault::Remove(_) => {}
        }
        Ok(())
    }

    /// Lets go of a node's disk. If a sync has failed, that node stops, and asks for no other sync before.
    fn detach(&mut self, id: u16, tracer: Option<Tracer>) -> Result<(), Broken> {
        let Some(tracer) = tracer else { return Ok(()) };
        if tracer.has_failed() {
            self.await_stop(id)?;
        }
        let syncs = tracer.detach()?;
        // One may have failed at the very last.
        let goes_on = syncs.failed && !self.await_stop(id)?;
        *self.counts.entry("syncs delayed").or_default() += syncs.delayed;
        *self.counts.entry("syncs failed").or_default() += u64::from(syncs.failed);
        if goes_on || syncs.again { Err(Broken::Swallowed { node: id }) } else { Ok(()) }
    }

    /// Waits for a node to stop by itself, and says whether it has.
    fn await_stop(&mut self, id: u16) -> io::Result<bool> {
        let patience = Instant::now() + STOPS;
        while self.node(id).is_alive()? && Instant::now() < patience {
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

    fn hear_operators(&mut self) -> Result<(), Broken> {
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
                Done::Told => {}
                // Perhaps the change is made later. Nobody may rely on it, and no other one is begun.
                Done::GaveUp => *self.counts.entry("operators that gave up").or_default() += 1,
            }
        }
        Ok(())
    }

    /// Starts whoever does not run, unless that is somebody's fault at the moment. Whoever stopped by itself must have an
    /// excuse: otherwise it has found something wrong with itself.
    fn look_after_nodes(&mut self) -> Result<(), Broken> {
        let victims: BTreeSet<u16> = self.faults.iter().filter_map(|active| active.fault.victim()).collect();
        for node in self.nodes.values_mut() {
            if let Some(end) = node.ended()? {
                let reason = match end.excuse {
                    Some(Excuse::FullDisk) => "stops on a full disk",
                    Some(Excuse::FailedSync) => "stops on a failed sync",
                    None => {
                        let (node, status, words) = (node.id, end.status.to_string(), end.words);
                        return Err(Broken::Stopped { node, status, words });
                    }
                };
                *self.counts.entry(reason).or_default() += 1;
            }
            if !node.runs() && !victims.contains(&node.id) {
                node.start(&self.setup)?;
            }
        }
        Ok(())
    }

    /// Nothing is wrong any more.
    pub(super) fn heal(&mut self) -> Result<(), Broken> {
        for active in std::mem::take(&mut self.faults) {
            self.end(active, true)?;
        }
        let patience = Instant::now() + AGREES;
        while self.changing.is_some() && Instant::now() < patience {
            self.hear_operators()?;
            self.look_after_nodes()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        self.agrees("after the faults")
    }

    /// Waits until all members know the same leader.
    fn agrees(&mut self, when: &str) -> Result<(), Broken> {
        let patience = Instant::now() + AGREES;
        loop {
            self.look_after_nodes()?;
            let statuses = self.statuses();
            let leaders: BTreeSet<Option<u16>> =
                statuses.iter().map(|status| status.as_ref()?.leader.as_ref().map(|leader| leader.id)).collect();
            if leaders.len() == 1 && leaders.first().is_some_and(Option::is_some) {
                return Ok(());
            }
            if Instant::now() > patience {
                return Err(Broken::NoAgreement(format!("{when}, the members know of these leaders: {leaders:?}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn statuses(&self) -> Vec<Option<StatusView>> {
        let ask =
            |endpoint: String| async move { palisade_client::status(&endpoint, Duration::from_secs(1)).await.ok() };
        self.endpoints().into_iter().map(|endpoint| block_on(ask(endpoint))).collect()
    }

    /// Waits until nobody has a session any more, and nothing happens; then all members must have the same state, to the bit.
    /// Its hash.
    pub(super) fn same_state(&mut self) -> Result<String, Broken> {
        let patience = Instant::now() + AGREES;
        loop {
            self.look_after_nodes()?;
            let statuses: Vec<StatusView> = self.statuses().into_iter().flatten().collect();
            let quiet = statuses.len() == self.voters.len()
                && statuses.iter().all(|status| (status.sessions, status.applied) == (0, statuses[0].applied));
            if quiet {
                let taken: Vec<_> = self.endpoints().iter().map(|endpoint| operator::take_snapshot(endpoint)).collect();
                let same = taken.iter().all(|other| other == &taken[0]);
                if let (true, Some((_, hash))) = (same, &taken[0]) {
                    return Ok(hash.clone());
                }
                let at_once = taken.iter().flatten().all(|(index, _)| *index == statuses[0].applied);
                if at_once && taken.iter().all(Option::is_some) {
                    return Err(Broken::NoAgreement(format!("the members have different states: {taken:?}")));
                }
            }
            if Instant::now() > patience {
                return Err(Broken::NoAgreement(format!("the members do not come to rest: {statuses:?}")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops all nodes.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.nodes.values_mut().try_for_each(Node::kill)
    }
}
