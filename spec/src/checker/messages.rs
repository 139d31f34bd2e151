//! Messages: they leave in the order of the outputs, after the writes before them, and none
//! arrives that was not sent.

use super::Slot;
use super::cluster::ClusterChecker;
use super::machine::Checked;
use super::server::Sending;
use crate::invariants::{Check, Property, persist_before_send};
use crate::raft::{Body, Message, NodeId, Term};
use crate::{require, violated};

/// The writes that must be durable before a message leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    slot: Slot,
    run: usize,
    writes: u64,
}

impl<S: Checked> ClusterChecker<S> {
    /// A node has output this message.
    pub(super) fn must_send(&mut self, slot: Slot, sending: Sending<S>) -> Check {
        let fingerprint = self.feed.fingerprint;
        let reports_sends = self.feed.reports_sends;
        let server = self.server(slot)?;
        let promise = Promise { slot, run: server.earlier.len(), writes: server.asked };
        let from = server.id;
        match (&sending, fingerprint) {
            (Sending::Snapshot(to, term), _) => {
                self.offers.insert((from, *to, *term));
            }
            (Sending::Message(message), Some(fingerprint)) => {
                let servers = &self.servers;
                let known = self.sent.entry(fingerprint(message)).or_insert(promise);
                // A run that ended before the preceding writes were done never sent the message;
                // the later run sent it again.
                let was_lost = known.run < promise.run && known.writes > servers[&slot].done_in(known.run);
                if known.slot == slot && was_lost {
                    *known = promise;
                }
            }
            (Sending::Message(_), None) => {}
        }
        if reports_sends {
            self.server(slot)?.unsent.push_back((promise.writes, sending));
        }
        Ok(())
    }

    /// A message leaves.
    ///
    /// # Errors
    /// The first violation.
    pub fn sent(&mut self, slot: Slot, message: &Message<S>) -> Check {
        self.counts.sent += 1;
        let Message { to, term, body, .. } = message;
        // The content of a snapshot is on the disk; the output only asks for it.
        let is_offer = |sending: &Sending<S>| match (sending, body) {
            (Sending::Snapshot(receiver, of), Body::InstallSnapshot { .. }) => (receiver, of) == (to, term),
            (Sending::Message(asked), _) => asked == message,
            _ => false,
        };
        self.leaves(slot, *to, body.name(), is_offer)?;
        persist_before_send(message, &self.servers[&slot].disk)
    }

    /// A snapshot is offered to a follower.
    ///
    /// # Errors
    /// The first violation.
    pub fn offered(&mut self, slot: Slot, to: NodeId, term: Term) -> Check {
        let is_offer =
            |sending: &Sending<S>| matches!(sending, Sending::Snapshot(asked, of) if (*asked, *of) == (to, term));
        self.leaves(slot, to, "a snapshot", is_offer)
    }

    /// The next message of the outputs leaves.
    fn leaves(&mut self, slot: Slot, to: NodeId, what: &str, is_next: impl Fn(&Sending<S>) -> bool) -> Check {
        let server = self.server(slot)?;
        let (from, done) = (server.id, server.done);
        match server.unsent.pop_front() {
            Some((_, asked)) if !is_next(&asked) => violated!(
                Property::SendsMatchOutputs,
                "node {from} sends {what} to {to}, and its next output is {asked:?}"
            ),
            Some((writes, _)) => require!(
                Property::PersistBeforeSend,
                writes <= done,
                "node {from} sends {what} to {to}, and the writes before it are not durable"
            ),
            None => {
                violated!(Property::SendsMatchOutputs, "node {from} sends {what} to {to}, and no output asked for it")
            }
        }
    }

    /// A message arrives at a server: it was sent, and the writes before it were durable by then.
    ///
    /// # Errors
    /// The first violation.
    pub fn received(&mut self, slot: Slot, message: &Message<S>) -> Check {
        self.counts.received += 1;
        let id = self.server(slot)?.id;
        self.numbers.insert(id, slot);
        let Message { from, to, term, body } = message;
        let (name, is_known) = (body.name(), self.numbers.contains_key(from));
        if let Body::InstallSnapshot { snapshot } = body {
            self.counts.snapshots += 1;
            let asked = self.offers.contains(&(*from, *to, *term));
            require!(
                Property::NoSpuriousMessage,
                asked || !is_known,
                "node {from} had no output that sends {name} to {to} in term {term}"
            )?;
            return self.compare_snapshot(snapshot);
        }
        if !is_known {
            self.counts.uncounted += 1;
            return Ok(());
        }
        let Some(fingerprint) = self.feed.fingerprint else { return Ok(()) };
        let Some(promise) = self.sent.get(&fingerprint(message)) else {
            return violated!(Property::NoSpuriousMessage, "node {from} never sent this {name}: {message:?}");
        };
        let done = self.servers.get(&promise.slot).map_or(0, |server| server.done_in(promise.run));
        require!(
            Property::PersistBeforeSend,
            promise.writes <= done,
            "node {from} sent {name} before the preceding writes were durable: {message:?}"
        )
    }
}
