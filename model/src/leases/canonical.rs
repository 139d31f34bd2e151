//! The canonical digest: states with equal digests count as one.
//!
//! The digest leaves out what makes no difference to later steps:
//!
//! - **Server numbers.** Servers are interchangeable: the digest sorts them by their own digests.
//! - **Term numbers.** Only their order counts. Of a server's own term, only the set of leaders and
//!   delayed messages that it still accepts counts: an election always begins a new term.
//! - **Votes and progress.** A vote counts in its own election only. A leader commits what a
//!   follower acknowledges at once, whatever its progress for the follower was before.
//! - **The applied state**, except its next deadline. The table follows from the entries (the
//!   layers `raft` and `cluster` show that), and the replies to clients follow from the entries
//!   that any server applied.
//! - **Births.** An entry's stamp minus its birth bounds how far ahead of real time a clock may be
//!   whose log has the entry: of an entry and all before it, the least difference counts.
//! - **The start of leases that are over**, and **keepalives** that would extend no lease.
//!
//! A test checks that all states with one digest have the same behaviour: `model/tests/leases.rs`
//! compares the digests of their successors, and the values of the properties.

use palisade_spec::lock::Command;
use palisade_spec::raft::{Body, Entry, Payload, StateMachine, Term};
use smallvec::SmallVec;

use super::protocol::uncommitted;
use super::state::{Server, State, entries};
use crate::cluster::{Client, RequestLocation};
use crate::world::digest::{digest, mix};

const SEED: u64 = 0x243F_6A88_85A3_08D3;

impl State {
    /// The digest of everything that makes a difference.
    pub(super) fn canonical(&self) -> u64 {
        let terms = self.terms();
        let mut servers: SmallVec<[u64; 3]> =
            self.servers.iter().map(|server| self.server_digest(server, &terms)).collect();
        servers.sort_unstable();
        let [elections, crashes, delays] = self.budgets().map(u64::from);
        let budgets = self.now << 24 | elections << 16 | crashes << 8 | delays;
        let committed = self.truth.committed.values().next_back();
        let committed = committed.map_or(0, |entry| rank(&terms, entry.term) << 8 | entry.index.0);
        let violation = self.violation.map_or(0, |violation| digest(violation.property.name(), &[]));
        let clients = (0..self.clients.len()).map(|client| self.client_digest(client, &terms));
        let rest = [budgets, committed, violation];
        servers.into_iter().chain(clients).chain(rest).fold(SEED, mix)
    }

    /// The terms of entries, delayed messages and keepalives, in order.
    fn terms(&self) -> SmallVec<[Term; 8]> {
        let logs = self.servers.iter().flat_map(|server| server.node.log().entries()).map(|entry| entry.term);
        let delayed = self.delayed.iter().flat_map(|late| {
            let inside = entries(late).iter().map(|entry| entry.term);
            std::iter::once(late.term).chain(inside)
        });
        let keepalives = self.clients.iter().flat_map(Client::open_keepalives);
        let locations = keepalives.filter_map(|keepalive| match keepalive.location {
            RequestLocation::Entry(entry) => Some(entry.term),
            RequestLocation::Arriving(_) => None,
        });
        let mut terms: SmallVec<[Term; 8]> = SmallVec::new();
        for term in logs.chain(delayed).chain(locations) {
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        terms.sort_unstable();
        terms
    }

    fn server_digest(&self, server: &Server, terms: &[Term]) -> u64 {
        let node = &*server.node;
        let leaders = self.servers.iter().map(|other| &other.node).filter(|other| other.is_leader());
        let others = leaders.filter(|other| other.id() != node.id()).map(|other| other.term());
        let ignored = others.filter(|term| *term < node.term());
        let leads = if node.is_leader() { 1 + self.now - server.looked } else { 0 };
        let deadline = node.machine().next_deadline().map_or(u64::MAX, |deadline| deadline.0);
        let lost = if self.crashes > 0 { uncommitted(node) } else { 0 };
        let own = [ignored.count() as u64, leads, node.clock().0, deadline, lost].into_iter().fold(SEED, mix);
        let log = self.log_digest(node.log().entries(), terms);
        let late = self.delayed.iter().filter(|message| message.to == node.id());
        let mut delayed: SmallVec<[u64; 2]> = late
            .map(|message| {
                let Body::AppendEntries { commit, stamp, .. } = message.body else {
                    unreachable!("only AppendEntries are delayed")
                };
                let entries = self.log_digest(entries(message), terms);
                [rank(terms, message.term), commit.0, stamp.0, entries].into_iter().fold(SEED, mix)
            })
            .collect();
        delayed.sort_unstable();
        delayed.into_iter().fold(mix(own, log), mix)
    }

    fn log_digest(&self, entries: &[Entry<Command>], terms: &[Term]) -> u64 {
        let mut least = i64::MAX;
        entries.iter().fold(SEED, |digest, entry| {
            least = least.min(entry.stamp.0.cast_signed() - (self.now - self.age(entry.position())).cast_signed());
            let kind = match &entry.payload {
                Payload::Noop | Payload::Members(_) => 0,
                Payload::Command(Command::KeepAlive { sessions }) => sessions[0].number << 1,
                Payload::Command(Command::Acquire { session, .. }) => session.number << 1 | 1,
                Payload::Command(_) => unreachable!("clients send only acquires and keepalives"),
            };
            [rank(terms, entry.term), entry.stamp.0, least.cast_unsigned(), kind].into_iter().fold(digest, mix)
        })
    }

    fn client_digest(&self, number: usize, terms: &[Term]) -> u64 {
        let client = &self.clients[number];
        let arrivals = u64::from_le_bytes([client.arrivals[0], client.arrivals[1], client.arrivals[2], 0, 0, 0, 0, 0]);
        let lease = match client.token {
            None => client.asked << 1,
            Some(_) if self.relies(number) => (2 + client.lease) << 1 | 1,
            Some(_) => 1,
        };
        let token = client.token.map_or(0, |token| token.0);
        client.open_keepalives().fold([arrivals, lease, token].into_iter().fold(SEED, mix), |digest, keepalive| {
            let location = match keepalive.location {
                RequestLocation::Entry(entry) => rank(terms, entry.term) << 8 | entry.index.0,
                RequestLocation::Arriving(_) => unreachable!("a request arrives within a step"),
            };
            mix(digest, location << 16 | keepalive.sent)
        })
    }
}

fn rank(terms: &[Term], term: Term) -> u64 {
    terms.iter().take_while(|known| **known < term).count() as u64
}
