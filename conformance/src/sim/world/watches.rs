//! Watchers: each follows the events of its keys at one node after the other, slowly at times, over
//! connections that end at any moment.
//!
//! They read what the nodes have published, and send nothing to the nodes: a run without them is the same.

use std::collections::VecDeque;

use palisade::core::listing_of;
use palisade::watch::{self, Filter};
use palisade_spec::invariants::Check;
use palisade_spec::lock::{Key, LockTable, Principal};
use palisade_spec::raft::{Index, Node, NodeId};
use palisade_spec::violated;
use rand::Rng;

use super::super::client::ADMINISTRATOR;
use super::super::watcher::{Connection, PART, PROPERTY, Watcher};
use super::{EventKind, World};

impl World {
    /// A watcher takes its turn.
    pub(super) fn watch(&mut self, number: usize) {
        let Some(mut watcher) = self.watchers.get_mut(number).and_then(Option::take) else { return };
        let check = self.watch_turn(&mut watcher);
        self.judge.lock().note(check);
        let pause = watcher.pause();
        self.watchers[number] = Some(watcher);
        self.after(pause, EventKind::Watch(number));
    }

    fn watch_turn(&self, watcher: &mut Watcher) -> Check {
        let judge = self.judge.lock();
        let Some(agreed) = judge.checker.reference() else { return Ok(()) };
        let is_dead = |connection: &Connection| !self.servers[&connection.node].runs(connection.boot);
        if watcher.connection.as_ref().is_some_and(is_dead) || watcher.rng.random_bool(0.04) {
            watcher.disconnect(agreed)?;
        }
        if watcher.connection.is_none() {
            let nodes: Vec<NodeId> = self.servers.keys().copied().collect();
            let node = nodes[watcher.rng.random_range(0..nodes.len())];
            self.begin_watch(watcher, node);
        }
        for _ in 0..watcher.rng.random_range(0..4) {
            if self.read_listing(watcher) {
                break;
            }
            let reached = self.reached(watcher);
            if !watcher.tell(agreed, reached)? {
                break;
            }
        }
        let arrives = watcher.rng.random_range(0..80);
        watcher.receive(agreed, arrives)
    }

    /// Begins a watch at a node that runs and knows a leader, as the server demands.
    fn begin_watch(&self, watcher: &mut Watcher, id: NodeId) {
        let server = &self.servers[&id];
        let Some(process) = server.process.as_ref().filter(|process| process.driver.node().leader().is_some()) else {
            return;
        };
        let (filter, reader, after) =
            (watcher.filter.clone(), Principal::from(ADMINISTRATOR), watcher.position.after());
        watcher.begin();
        let watch = watch::Watcher::new(&process.watches, filter, reader, after);
        watcher.connection =
            Some(Connection { node: id, boot: server.boot(), watch, read: None, under_way: VecDeque::new() });
    }

    /// Reads a part of a listing if the watch lacks one, which takes it at another turn: meanwhile the node
    /// may go on. Returns whether it was read now.
    fn read_listing(&self, watcher: &mut Watcher) -> bool {
        let Watcher { connection: Some(connection), filter, .. } = watcher else { return false };
        if connection.watch.lacks().is_none() {
            return false;
        }
        if let Some(listing) = connection.read.take() {
            connection.watch.take_listing(listing);
            return false;
        }
        let Some(process) = &self.servers[&connection.node].process else { return false };
        let after = connection.watch.lacks().flatten().map(Key::from);
        let (Filter::Key(prefix) | Filter::Prefix(prefix)) = filter;
        let reader = Principal::from(ADMINISTRATOR);
        connection.read = Some(listing_of(process.driver.node(), &reader, prefix, after.as_ref(), PART));
        true
    }

    /// The last entry of which the node of this watch has told its watchers.
    fn reached(&self, watcher: &Watcher) -> u64 {
        let node = watcher.connection.as_ref().map(|connection| connection.node);
        let process = node.and_then(|node| self.servers[&node].process.as_ref());
        process.map_or(0, |process| process.watches.reached())
    }

    /// At the end, each watcher is told of everything at any node that runs.
    pub(super) fn check_watchers(&mut self, committed: Index) {
        let knows_leader = |node: &&Node<LockTable>| node.leader().is_some();
        let nodes: Vec<NodeId> = self.running_members().into_iter().filter(knows_leader).map(Node::id).collect();
        for number in 0..self.watchers.len() {
            let Some(mut watcher) = self.watchers[number].take() else { continue };
            let node = nodes.get(watcher.rng.random_range(0..nodes.len().max(1)));
            if let Some(&node) = node {
                let check = self.finish_watch(&mut watcher, node, committed);
                self.judge.lock().note(check);
            }
            self.watchers[number] = Some(watcher);
        }
    }

    fn finish_watch(&self, watcher: &mut Watcher, node: NodeId, committed: Index) -> Check {
        let judge = self.judge.lock();
        let Some(agreed) = judge.checker.reference() else { return Ok(()) };
        watcher.disconnect(agreed)?;
        // A watch that was cut off has another attempt.
        for _ in 0..2 {
            self.begin_watch(watcher, node);
            loop {
                if self.read_listing(watcher) {
                    continue;
                }
                let is_more = watcher.tell(agreed, self.reached(watcher))?;
                watcher.receive(agreed, usize::MAX)?;
                if !is_more {
                    break;
                }
            }
        }
        let reached = self.reached(watcher);
        if watcher.position.after().is_none() || reached < committed.0 {
            let position = watcher.position.after();
            return violated!(
                PROPERTY,
                "entry {committed} was committed, node {node} tells watchers up to {reached}, and one is at {position:?}"
            );
        }
        watcher.check_complete(agreed, reached)
    }
}
