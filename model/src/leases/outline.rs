//! Which states count as one.
//!
//! An outline is a number that leaves out what makes no difference from here on:
//!
//! - **Names.** Servers are interchangeable: the outline has them in the order of their own outlines.
//! - **Terms' numbers.** Only their order counts, and how many elections there were. Of a server's own term only which
//!   leaders and delayed messages it still listens to: elections are always for a new term.
//! - **Votes and progress.** A vote counts in its own election only. A leader commits what a follower answers at once,
//!   whatever it knew of it before.
//! - **Tables.** They follow from the entries that are applied (the layers `raft` and `cluster` show that).
//! - **Births.** An entry's stamp minus its birth bounds how far any clock may be ahead of real time that has the entry in
//!   its log: of an entry and all before it, the least counts.
//! - **Leases that are over**, by their lengths.
//!
//! A unit test compares what all states of an outline can do.

use palisade_spec::lock::Command;
use palisade_spec::raft::{Body, Entry, Payload, Term};
use smallvec::SmallVec;

use super::state::{Server, State, entries};
use crate::cluster::{Client, Place};
use crate::world::digest::{digest, mix};

const SEED: u64 = 0x243F_6A88_85A3_08D3;

impl State {
    /// The state's outline.
    pub fn outline(&self) -> u64 {
        let terms = self.terms();
        let mut servers: SmallVec<[u64; 3]> = self.servers.iter().map(|server| self.server_outline(server, &terms)).collect();
        servers.sort_unstable();
        let elections = self.servers.iter().map(|server| server.node.term().0).max().unwrap_or(0);
        let budgets = self.now << 24 | u64::from(self.crashes) << 16 | u64::from(self.delays) << 8 | elections;
        let committed = self.truth.committed.values().next_back();
        let committed = committed.map_or(0, |entry| rank(&terms, entry.term) << 8 | entry.index.0);
        let violation = self.violation.map_or(0, |violation| digest(violation.property, &[]));
        let clients = self.clients.iter().map(|client| self.client_outline(client, &terms));
        let rest = [budgets, committed, violation];
        servers.into_iter().chain(clients).chain(rest).fold(SEED, mix)
    }

    /// The terms of entries, in order.
    fn terms(&self) -> SmallVec<[Term; 8]> {
        let logs = self.servers.iter().flat_map(|server| server.node.log().entries()).map(|entry| entry.term);
        let delayed = self.delayed.iter().flat_map(|late| {
            let inside = entries(late).iter().map(|entry| entry.term);
            std::iter::once(late.term).chain(inside)
        });
        let keepalives = self.clients.iter().flat_map(|client| &client.keepalives);
        let places = keepalives.filter_map(|keepalive| match keepalive.place {
            Place::Entry(entry) => Some(entry.term),
            Place::Arriving(_) => None,
        });
        let mut terms: SmallVec<[Term; 8]> = SmallVec::new();
        for term in logs.chain(delayed).chain(places) {
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        terms.sort_unstable();
        terms
    }

    fn server_outline(&self, server: &Server, terms: &[Term]) -> u64 {
        let node = &*server.node;
        let leaders = self.servers.iter().map(|other| &other.node).filter(|other| other.is_leader());
        let others = leaders.filter(|other| other.id() != node.id()).map(|other| other.term());
        let ignored = others.filter(|term| *term < node.term());
        let leads = if node.is_leader() { 1 + self.now - server.looked } else { 0 };
        let own = [ignored.count() as u64, leads, node.clock().0, node.commit().0].into_iter().fold(SEED, mix);
        let log = self.log_outline(node.log().entries(), terms);
        let late = self.delayed.iter().filter(|message| message.to == node.id());
        let mut delayed: SmallVec<[u64; 2]> = late
            .map(|message| {
                let Body::AppendEntries { commit, stamp, .. } = message.body else { unreachable!("only those are") };
                let entries = self.log_outline(entries(message), terms);
                [rank(terms, message.term), commit.0, stamp.0, entries].into_iter().fold(SEED, mix)
            })
            .collect();
        delayed.sort_unstable();
        delayed.into_iter().fold(mix(own, log), mix)
    }

    fn log_outline(&self, entries: &[Entry<Command>], terms: &[Term]) -> u64 {
        let mut least = i64::MAX;
        entries.iter().fold(SEED, |outline, entry| {
            least = least.min(entry.stamp.0.cast_signed() - (self.now - self.age(entry.position())).cast_signed());
            let kind = match &entry.payload {
                Payload::Noop | Payload::Members(_) => 0,
                Payload::Command(Command::KeepAlive { sessions }) => sessions[0].number << 1,
                Payload::Command(Command::Acquire { session, .. }) => session.number << 1 | 1,
                Payload::Command(_) => unreachable!("clients send nothing else"),
            };
            [rank(terms, entry.term), entry.stamp.0, least.cast_unsigned(), kind].into_iter().fold(outline, mix)
        })
    }

    fn client_outline(&self, client: &Client, terms: &[Term]) -> u64 {
        let arrivals = u64::from_le_bytes([client.arrivals[0], client.arrivals[1], client.arrivals[2], 0, 0, 0, 0, 0]);
        let lease = match client.token {
            None => client.asked << 1,
            Some(_) if client.relies(self.now, self.ttl) => (2 + client.lease) << 1 | 1,
            Some(_) => 1,
        };
        let token = client.token.map_or(0, |token| token.0);
        client.keepalives.iter().fold([arrivals, lease, token].into_iter().fold(SEED, mix), |outline, keepalive| {
            let place = match keepalive.place {
                Place::Entry(entry) => rank(terms, entry.term) << 8 | entry.index.0,
                Place::Arriving(_) => unreachable!("a request arrives within a step"),
            };
            mix(outline, place << 16 | keepalive.sent)
        })
    }
}

fn rank(terms: &[Term], term: Term) -> u64 {
    terms.iter().take_while(|known| **known < term).count() as u64
}
