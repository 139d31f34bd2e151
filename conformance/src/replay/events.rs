//! Replays the events of a trace: each becomes inputs, crashes and snapshots of live nodes, and the
//! expected nodes are compared with the model's servers.

use palisade_spec::raft::{Input, NodeId};
use serde_json::{Value, json};

use super::difference::Difference;
use super::finding::{NodeResult, bad_trace, unknown_server};
use super::message_gate::Sent;
use super::nodes::{Flow, LiveNodes};
use super::rejected_inputs::rejected_input;
use super::trace::{Crash, Event, Given, Turn};

impl LiveNodes {
    /// Replays one action of the adversary.
    pub(super) fn act(&mut self, event: &Event) -> NodeResult<Flow> {
        self.salt += 1;
        self.coverage.note(
            "action",
            if event.kind == "move" { event.turns.first().map_or("move", |turn| &turn.stimulus) } else { &event.kind },
        );
        match (event.kind.as_str(), event.server) {
            ("crash", Some(server)) => {
                self.coverage.note("crash", "between two steps");
                self.restart(server)?;
                self.compare_with_trace(server, event.after.as_ref())?;
            }
            ("snapshot", Some(server)) => {
                self.take_snapshot(server)?;
                self.compare_with_trace(server, event.after.as_ref())?;
            }
            ("tick", _) => self.unreported_ms += event.milliseconds.unwrap_or_default(),
            ("apply", _) => self.apply(event)?,
            _ => {
                for turn in &event.turns {
                    if let Flow::Ends(why) = self.turn(turn)? {
                        return Ok(Flow::Ends(why));
                    }
                }
            }
        }
        Ok(Flow::Continues)
    }

    /// Gives a node an input that it refuses or drops.
    pub(super) fn give_rejected_input(&mut self) -> NodeResult<()> {
        let servers: Vec<NodeId> = self.slots.keys().copied().collect();
        let count = servers.len();
        let server = servers[self.salt % count];
        let peer = servers[(self.salt / count) % count];
        let expected = self.expected(server)?;
        let speaks = peer != server && self.gate.knows(peer) && !expected.has_cut_off(peer);
        let Some(input) = rejected_input(&expected.node, speaks.then_some(peer), self.salt / 2) else { return Ok(()) };
        self.coverage.note("action", "rejected input");
        self.feed(server, input, None, None).map(drop)
    }

    /// Applies an entry, in a model that has only a table: the one server is given the elapsed
    /// time, then a proposal of the entry. When a deadline has passed, the server appends a no-op
    /// on its own; the model need not. If the model does something else, the two tables differ from
    /// there on, and the server is compared with its expected node only.
    fn apply(&mut self, event: &Event) -> NodeResult<()> {
        let server = NodeId(1);
        let payload = event.payload.clone().unwrap_or_default();
        let given = |input: Value| Given { input, done: true };
        let before = self.expected(server)?.node.commit();
        let elapsed = std::mem::take(&mut self.unreported_ms);
        if elapsed > 0 {
            self.give(server, "clock", &given(json!({ "ClockAdvanced": elapsed })), None)?;
        }
        let has_swept = self.expected(server)?.node.commit() != before;
        if !has_swept || payload != "Noop" {
            self.has_diverged |= has_swept;
            self.give(server, "propose", &given(json!({ "Propose": { "id": 1, "payloads": [payload] } })), None)?;
        }
        let Some(traced) = event.table.as_ref().filter(|_| !self.has_diverged) else { return Ok(()) };
        let table = self.translation.of_server(self.expected(server)?.node.machine());
        Difference::between("the model's table", traced, &table).map_or(Ok(()), |difference| Err((server, difference)))
    }

    fn turn(&mut self, turn: &Turn) -> NodeResult<Flow> {
        for (index, given) in turn.inputs.iter().enumerate() {
            let crash = turn.crash.filter(|crash| crash.input == index);
            if let Flow::Ends(why) = self.give(turn.server, &turn.stimulus, given, crash)? {
                return Ok(Flow::Ends(why));
            }
            if crash.is_some() {
                break;
            }
        }
        self.compare_with_trace(turn.server, turn.after.as_ref())?;
        Ok(Flow::Continues)
    }

    /// Gives a node an input and compares the result. With a crash plan, the node is killed at the
    /// planned point.
    pub(super) fn give(
        &mut self,
        server: NodeId,
        stimulus: &str,
        given: &Given,
        crash: Option<Crash>,
    ) -> NodeResult<Flow> {
        let traced = given.input.get("Receive");
        let (input, sent) = match traced {
            Some(traced) if stimulus == "campaign" => {
                let message = serde_json::from_value(traced.clone()).map_err(|error| bad_trace(server, &error))?;
                (Input::Receive(message), None)
            }
            Some(traced) => match self.find_sent(server, traced)? {
                Ok(sent) => (Input::Receive(sent.message.clone()), Some(sent)),
                Err(why) => return Ok(Flow::Ends(why)),
            },
            None => (self.translation.input(&given.input).map_err(|error| bad_trace(server, &error))?, None),
        };
        self.feed(server, input, sent.as_ref(), crash)
    }

    /// Finds the sent message that a node is to receive. The inner error says why that message
    /// never reaches a live node.
    fn find_sent(&self, server: NodeId, traced: &Value) -> NodeResult<Result<Sent, String>> {
        let from = traced["from"].as_u64().and_then(|from| u32::try_from(from).ok()).map(NodeId);
        let from = from.ok_or_else(|| unknown_server(server))?;
        let sender = self.slots.get(&from).ok_or_else(|| unknown_server(from))?;
        let hearer = self.slots.get(&server).ok_or_else(|| unknown_server(server))?;
        if hearer.expected.has_cut_off(from) {
            return Ok(Err("a live node does not read from a removed member".into()));
        }
        match self.gate.find((from, server), |message| self.translation.is_message(message, traced)) {
            Some(sent) => Ok(Ok(sent)),
            None if sender.expected.has_cut_off(server) => {
                Ok(Err("a live node sends nothing to a removed member".into()))
            }
            None => Err((from, Difference::new("messages sent", traced.to_string(), "no such message"))),
        }
    }

    /// Compares the expected node with the model's server in the trace.
    fn compare_with_trace(&self, server: NodeId, traced: Option<&Value>) -> NodeResult<()> {
        let Some(traced) = traced else { return Ok(()) };
        let expected = &self.slots[&server].expected;
        let parts = [
            Difference::between("the model's node", &traced["node"], &self.translation.of_server(&expected.node)),
            Difference::between("the model's disk", &traced["disk"], &self.translation.of_server(&expected.disk)),
        ];
        parts.into_iter().flatten().next().map_or(Ok(()), |difference| Err((server, difference)))
    }
}
