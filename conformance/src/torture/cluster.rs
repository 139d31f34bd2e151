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
use super::network::Network;
use super::node::{Node, Setup};
use super::operator::{self, Done, block_on};

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

/// A running cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    setup: Setup,
    network: Network,
    nodes: BTreeMap<u16, Node>,
    disks: BTreeMap<u16, Disk>,
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
        let cluster = Cluster { setup, network, nodes, disks, voters, next, faults, changing, done, counts };
        cluster.agrees("at its start")?;
        Ok(cluster)
    }

    /// Where the members serve clients.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.voters.iter().map(|id| self.nodes[id].client_addr.clone()).collect()
    }

    /// Whether disks can be filled here.
    pub(super) fn has_disks(&self) -> bool {
        !self.disks.is_empty()
    }

    /// How often the network held something.
    pub(super) fn held(&self) -> u64 {
        self.network.held()
    }

    /// A moment passes: faults end, others begin, and nobody stops without a reason.
    pub(super) fn tick(&mut self, random: &mut SmallRng) -> Result<(), Broken> {
        let now = Instant::now();
        let (over, go_on): (Vec<Active>, Vec<Active>) = self.faults.drain(..).partition(|active| active.ends <= now);
        self.faults = go_on;
        for active in over {
            self.end(&active, random.random_bool(0.5))?;
        }
        self.flap(now);
        self.hear_operators()?;
        self.nobody_stops()?;
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
        let well: Vec<u16> = self.voters.iter().copied().filter(|id| !busy.contains(id)).collect();
        let all = self.nodes.values().filter(|node| node.runs()).map(|node| node.id).collect();
        let may_change = self.changing.is_none();
        Possible {
            all,
            disks: well.iter().copied().filter(|id| self.disks.contains_key(id)).collect(),
            may_add: may_change && self.voters.len() < MOST && self.next <= NUMBERS,
            may_remove: may_change && self.voters.len() > 3,
            well,
        }
    }

    fn begin(&mut self, fault: Fault, ends: Instant) -> Result<(), Broken> {
        *self.counts.entry(fault.name()).or_default() += 1;
        let (endpoints, answer) = (self.endpoints(), self.done.0.clone());
        match &fault {
            Fault::Kill(id) => self.node(*id).kill()?,
            Fault::Freeze(id) => self.node(*id).freeze(true)?,
            Fault::Partition(_, directions) | Fault::Flap(directions) => self.network.close(directions),
            Fault::Fill(id) => self.disks[id].fill()?,
            Fault::Transfer => operator::transfer(endpoints, answer),
            Fault::Snapshot(id) => operator::snapshot(self.nodes[id].client_addr.clone(), answer),
            Fault::Add => {
                let id = self.next;
                (self.next, self.changing) = (id + 1, Some(id));
                // Whom it asks may be gone; then it cannot join before that one is back.
                let whom =
                    self.possible().all.first().map_or_else(String::new, |id| self.nodes[id].client_addr.clone());
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
        self.faults.push(Active { fault, ends, flap: (Instant::now(), true) });
        Ok(())
    }

    fn end(&mut self, active: &Active, breaks: bool) -> Result<(), Broken> {
        match &active.fault {
            Fault::Kill(id) => self.start_again(*id)?,
            Fault::Freeze(id) => self.node(*id).freeze(false)?,
            Fault::Partition(_, directions) => self.network.open(directions, breaks),
            Fault::Flap(directions) if active.flap.1 => self.network.open(directions, breaks),
            Fault::Fill(id) => {
                self.disks[id].clear()?;
                let node = self.node(*id);
                let stopped = node.ended()?.is_some() || !node.runs();
                if stopped {
                    *self.counts.entry("stops on a full disk").or_default() += 1;
                    self.start_again(*id)?;
                }
            }
            Fault::Flap(_) | Fault::Transfer | Fault::Snapshot(_) | Fault::Add | Fault::Remove(_) => {}
        }
        Ok(())
    }

    fn start_again(&mut self, id: u16) -> Result<(), Broken> {
        let setup = self.setup.clone();
        // Who was removed meanwhile has nothing to come back to.
        self.nodes.get_mut(&id).map_or(Ok(()), |node| node.start(&setup))?;
        Ok(())
    }

    fn node(&mut self, id: u16) -> &mut Node {
        self.nodes.get_mut(&id).expect("faults happen to nodes that are there")
    }

    fn flap(&mut self, now: Instant) {
        for active in &mut self.faults {
            if let Fault::Flap(directions) = &active.fault
                && now - active.flap.0 >= FLAP
            {
                active.flap = (now, !active.flap.1);
                if active.flap.1 { self.network.close(directions) } else { self.network.open(directions, false) }
            }
        }
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

    /// A node that stops by itself, and not because its disk is full, has found something wrong with itself.
    fn nobody_stops(&mut self) -> Result<(), Broken> {
        let full: Vec<u16> = { self.faults.iter() }
            .filter_map(|active| if let Fault::Fill(id) = active.fault { Some(id) } else { None })
            .collect();
        for node in self.nodes.values_mut() {
            let Some(status) = node.ended()? else { continue };
            if !(full.contains(&node.id) && status.code() == Some(74)) {
                return Err(Broken::Stopped { node: node.id, status: status.to_string(), words: node.last_words() });
            }
        }
        Ok(())
    }

    /// Nothing is wrong any more.
    pub(super) fn heal(&mut self) -> Result<(), Broken> {
        for active in std::mem::take(&mut self.faults) {
            self.end(&active, true)?;
        }
        let patience = Instant::now() + AGREES;
        while self.changing.is_some() && Instant::now() < patience {
            self.hear_operators()?;
            self.nobody_stops()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        self.agrees("after the faults")
    }

    /// Waits until all members know the same leader.
    fn agrees(&self, when: &str) -> Result<(), Broken> {
        let patience = Instant::now() + AGREES;
        loop {
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
    pub(super) fn same_state(&self) -> Result<String, Broken> {
        let patience = Instant::now() + AGREES;
        loop {
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
