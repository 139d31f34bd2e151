//! Traffic between clients and nodes.

use std::time::Duration;

use palisade::core::{ConnectionId, Event, Request, Responder};
use palisade_client::wire::Code;
use palisade_spec::lock::Command;
use palisade_spec::raft::NodeId;
use rand::Rng;
use tokio::sync::oneshot;

use super::super::call::{CallId, ClientId};
use super::super::client::{Client, ClientAction, Environment};
use super::super::event_log::Note;
use super::super::host::Reply;
use super::{EventKind, World};

impl World {
    /// A client takes its turn.
    pub(super) fn client(&mut self, id: ClientId) {
        if self.turns[usize::from(id.0)] != self.now {
            return;
        }
        let mut actions = Vec::new();
        self.with_client(id, |client, env| {
            if client.next() <= env.now {
                client.act(env, &mut actions);
            }
        });
        self.send_actions(actions);
        self.client_again(id);
    }

    /// Runs `act` with a client and its surroundings.
    pub(super) fn with_client(&mut self, id: ClientId, act: impl FnOnce(&mut Client, &mut Environment<'_>)) {
        let nodes: Vec<NodeId> = self.servers.keys().copied().collect();
        let mut env = Environment {
            now: self.now,
            rng: &mut self.rng,
            judge: &self.judge,
            resource: &mut self.resource,
            tally: &mut self.tally,
            history: &mut self.history,
            nodes: &nodes,
            has_access_control: self.plan.has_access_control,
            closing: self.closing,
        };
        act(&mut self.clients[usize::from(id.0)], &mut env);
    }

    fn client_again(&mut self, id: ClientId) {
        let next = self.clients[usize::from(id.0)].next();
        let at = next.max(self.now + Duration::from_micros(100));
        // A client has one scheduled turn: an earlier event is ignored when its time is not the
        // client's.
        if std::mem::replace(&mut self.turns[usize::from(id.0)], at) != at {
            self.at(at, EventKind::Client(id));
        }
    }

    pub(super) fn send_actions(&mut self, actions: Vec<ClientAction>) {
        for action in actions {
            // If a hang-up is lost, the node never learns of it.
            let is_lost = self.storms && self.rng.random_bool(0.02);
            let delay = self.client_delay();
            if is_lost {
                continue;
            }
            match action {
                ClientAction::Request(node, call, request) => {
                    self.after(delay, EventKind::Request(node, call, Box::new(request)))
                }
                ClientAction::HangUp(node, connection) => {
                    // The node notices late if the peer vanished without closing the connection.
                    let late = if self.rng.random_bool(0.3) { self.milliseconds(0..3000) } else { Duration::ZERO };
                    self.after(delay + late, EventKind::HangUp(node, connection));
                }
            }
        }
    }

    fn client_delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.random_range(200..2000))
    }

    /// A request arrives at a node.
    pub(super) fn request(&mut self, node: NodeId, call: CallId, request: Request) {
        if self.servers.get(&node).is_none_or(|server| server.process.is_none()) {
            return;
        }
        self.events.lock().record(self.now, Note::of_request(node, call, &request));
        let (answer, reply) = oneshot::channel();
        let responder = Responder::once(call.connection, self.shown(node), answer);
        self.servers[&node].host.open(call, reply);
        self.watch_wait(node, call, &request);
        if let Request::Propose { command: Command::Open { opening } | Command::AcquireOnce { opening, .. }, .. } =
            &request
        {
            self.openings.insert(call, opening.proof);
        }
        if let Request::Propose { command: Command::Close { session }, .. } = &request {
            self.judge.lock().clients.client_asks_to_close(*session);
        }
        self.enqueue(node, |inbox| inbox.events.push(Event::Request(request, responder)));
    }

    /// A node's connection is closed: from now on no answer over it reaches its client. The task of the connection
    /// tells the core of that, at once or when the task has its next turn.
    pub(super) fn hang_up(&mut self, node: NodeId, connection: ConnectionId) {
        if let Some(server) = self.servers.get(&node).filter(|server| server.process.is_some()) {
            server.host.hang_up(|call| call.connection == connection);
            if self.rng.random_bool(0.5) {
                self.disconnected(node, connection);
            } else {
                let turn = self.milliseconds(1..100);
                self.after(turn, EventKind::Disconnected(node, connection));
            }
        }
    }

    /// The core of a node learns that a connection is closed.
    pub(super) fn disconnected(&mut self, node: NodeId, connection: ConnectionId) {
        if self.servers.get(&node).is_some_and(|server| server.process.is_some()) {
            self.enqueue(node, |inbox| inbox.events.push(Event::Disconnected(connection)));
        }
    }

    /// A node answered, `after` the start of its driver iteration.
    pub(super) fn answer(&mut self, call: CallId, after: Duration, reply: Reply) {
        let refused = matches!(&reply, Err(failure) if matches!(failure.error, Code::NotLeader | Code::NoLeader));
        if let Some(proof) = self.openings.remove(&call).filter(|_| refused) {
            let mut judge = self.judge.lock();
            let check = judge.clients.client_refused(proof);
            judge.note(check);
        }
        let is_lost = self.storms && self.rng.random_bool(0.03);
        let delay = self.client_delay();
        if !is_lost {
            self.after(after + delay, EventKind::Reply(call, Box::new(reply)));
        }
    }

    /// An answer arrives at a client.
    pub(super) fn reply(&mut self, call: CallId, reply: Reply) {
        let Some(client) = self.clients.get(usize::from(call.client.0)) else { return };
        if client.paused_until > self.now {
            let later = client.paused_until;
            return self.at(later, EventKind::Reply(call, Box::new(reply)));
        }
        let refused = reply.as_ref().err().map(|failure| failure.error);
        self.events.lock().record(self.now, Note::of_reply(call, refused));
        self.with_client(call.client, |client, env| client.receive(call, reply, env));
        self.client_again(call.client);
    }
}
