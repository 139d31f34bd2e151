//! Five servers, each with a log, and a leader for each term: Raft as coarsely as the gallery needs
//! it.
//!
//! An election is one step, with the required votes. A leader sends a follower its whole log, and a
//! follower's acknowledgement counts at once.

use super::show::Client;

/// Number of servers.
pub(super) const SERVERS: usize = 5;
const MAJORITY: usize = 3;
const TERMS: u8 = 2;
const LONGEST_LOG: usize = 3;

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Command {
    Acquire(Client),
    Release(Client),
}

/// A position in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) term: u8,
    pub(super) command: Command,
}

/// A server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) term: u8,
    pub(super) leads: bool,
    pub(super) log: Vec<Entry>,
}

/// The servers.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Raft {
    pub(super) servers: [Server; SERVERS],
    /// The committed entries. A server may learn of them at any time.
    pub(super) committed: Vec<Entry>,
}

impl Raft {
    /// Server 1 leads term 1.
    pub(super) fn new() -> Raft {
        let mut servers = std::array::from_fn(|_| Server { term: 1, leads: false, log: Vec::new() });
        servers[0].leads = true;
        Raft { servers, committed: Vec::new() }
    }

    /// Whether a server accepts requests to append.
    pub(super) fn accepts(&self, server: usize) -> bool {
        self.servers[server].leads && self.servers[server].log.len() < LONGEST_LOG
    }

    /// A leader appends an entry of its term.
    pub(super) fn append(&mut self, leader: usize, command: Command) {
        let server = &mut self.servers[leader];
        server.log.push(Entry { term: server.term, command });
    }

    /// How up to date a server's log is (dissertation, §3.6.1).
    fn progress(&self, server: usize) -> (u8, usize) {
        let log = &self.servers[server].log;
        (log.last().map_or(0, |entry| entry.term), log.len())
    }

    /// The voters that would elect a server.
    pub(super) fn elections(&self, candidate: usize) -> Vec<[usize; 2]> {
        let Server { term, leads, .. } = self.servers[candidate];
        if leads || term == TERMS {
            return Vec::new();
        }
        let votes = |voter: &usize| {
            let up_to_date = self.progress(*voter) <= self.progress(candidate);
            *voter != candidate && self.servers[*voter].term <= term && up_to_date
        };
        let voters: Vec<usize> = (0..SERVERS).filter(votes).collect();
        let pairs = |index: usize| voters[index + 1..].iter().map(move |&second| (index, second));
        (0..voters.len()).flat_map(pairs).map(|(index, second)| [voters[index], second]).collect()
    }

    /// Elects a server for its next term.
    pub(super) fn elect(&mut self, candidate: usize, voters: [usize; 2]) {
        let term = self.servers[candidate].term + 1;
        for voter in voters {
            let server = &mut self.servers[voter];
            (server.term, server.leads) = (term, false);
        }
        let leader = &mut self.servers[candidate];
        (leader.term, leader.leads) = (term, true);
    }

    /// Servers that lack entries of this leader's log and accept its term.
    pub(super) fn followers(&self, leader: usize) -> Vec<usize> {
        let Server { term, ref log, .. } = self.servers[leader];
        let behind = |&other: &usize| {
            let follower = &self.servers[other];
            other != leader && (follower.term < term || (follower.term == term && follower.log != *log))
        };
        (0..SERVERS).filter(behind).collect()
    }

    /// A follower replaces its log by the leader's.
    pub(super) fn receive(&mut self, follower: usize, leader: usize) {
        self.servers[follower] = Server { leads: false, ..self.servers[leader].clone() };
    }

    /// Whether a majority has the log of a leader, which ends with an entry of its own term
    /// (§3.6.2).
    pub(super) fn may_commit(&self, leader: usize) -> bool {
        let Server { term, ref log, .. } = self.servers[leader];
        let have = self.servers.iter().filter(|server| server.log.starts_with(log)).count();
        let own_term = log.last().is_some_and(|entry| entry.term == term);
        own_term && have >= MAJORITY && !self.committed.starts_with(log)
    }

    /// Commits the log of a leader.
    pub(super) fn commit(&mut self, leader: usize) {
        self.committed.clone_from(&self.servers[leader].log);
    }

    /// The committed prefix of a server's log.
    pub(super) fn known(&self, server: usize) -> &[Entry] {
        let log = &self.servers[server].log;
        let same = log.iter().zip(&self.committed).take_while(|(mine, known)| mine == known).count();
        &log[..same]
    }
}
