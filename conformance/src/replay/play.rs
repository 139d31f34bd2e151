//! Replays one trace on live nodes and reports the first difference.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Input, Members, Message, NodeId, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::coverage::Coverage;
use super::crash_plan::{self, Plan};
use super::difference::Difference;
use super::expected_node::ExpectedNode;
use super::live::{Live, LiveError, Program};
use super::message_gate::{Link, MessageGate, MessageGateError, Sent, incarnation};
use super::rejected_inputs::rejected_input;
use super::trace::{Crash, Event, Given, Trace, Turn};
use super::translate::Translation;
use crate::stepper::protocol::{Answer, Effect, Now, Request, Setting};

/// Cluster ID of the replayed cluster. Any number works.
const CLUSTER: u64 = 0x00AB_1E00;

/// How the live nodes are run.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// The program of the nodes.
    pub program: Program,
    /// Segment size of the nodes' logs, in bytes. Short segments exercise segment removal.
    pub segment_bytes: u64,
}

/// The result of replaying one trace.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Number of the trace's steps that were replayed.
    pub steps: usize,
    /// Why the replay ended before the trace did.
    pub ended: Option<String>,
    /// What the replay exercised.
    pub coverage: Coverage,
}

/// Time within which a message that a node sends unprompted after a step arrives.
const LATE: Duration = Duration::from_millis(5);

/// A difference between a live node and the model.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The step, counted from 1; 0 is the setup before the first step.
    pub step: usize,
    /// What happens in this step.
    pub sentence: String,
    /// The node.
    pub server: NodeId,
    /// The difference.
    pub difference: Difference,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { step, sentence, server, difference } = self;
        write!(f, "step {step} ({sentence}), node {server}: {difference}")
    }
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// A live node differs from the model.
    #[error("{0}")]
    Found(Box<Finding>),
    /// The processes or the gate could not be set up.
    #[error("the replay cluster cannot be set up: {0}")]
    Setup(String),
}

/// Whether the replay continues.
enum Flow {
    Continues,
    /// A live node cannot follow the trace any further.
    Ends(String),
}

type NodeResult<T> = Result<T, (NodeId, Difference)>;

/// Replays a trace on live nodes.
///
/// # Errors
/// See [`PlayError`].
pub fn play(config: &ReplayConfig, trace: &Trace) -> Result<Played, PlayError> {
    let mut replay = Replay::start(config, trace)?;
    let mut played = Played::default();
    let beginning = |server, difference| found(0, "the setup", server, difference);
    replay.give_all_starts().map_err(|(server, difference)| beginning(server, difference))?;
    let mut flow = Flow::Continues;
    for event in &trace.setting().prelude {
        if let Flow::Continues = flow {
            flow = replay.act(event).map_err(|(server, difference)| beginning(server, difference))?;
        }
    }
    for step in &trace.steps {
        if let Flow::Ends(_) = flow {
            break;
        }
        flow = replay
            .act(&step.event)
            .map_err(|(server, difference)| found(step.step, &step.sentence, server, difference))?;
        played.steps += 1;
        if let Flow::Continues = flow {
            replay
                .give_rejected_input()
                .map_err(|(server, difference)| found(step.step, "a rejected input after it", server, difference))?;
        }
    }
    match flow {
        Flow::Ends(why) => played.ended = Some(why),
        Flow::Continues => replay
            .close()
            .map_err(|(server, difference)| found(played.steps, "after the last step", server, difference))?,
    }
    played.coverage = replay.coverage;
    Ok(played)
}

fn found(step: usize, sentence: &str, server: NodeId, difference: Difference) -> PlayError {
    PlayError::Found(Box::new(Finding { step, sentence: sentence.to_owned(), server, difference }))
}

/// A node's process and its expected state.
struct NodeSlot {
    live: Live,
    expected: ExpectedNode,
}

struct Replay {
    slots: BTreeMap<NodeId, NodeSlot>,
    gate: MessageGate,
    translation: Translation,
    starts: Vec<Given>,
    /// Number of messages sent on each link.
    sent: BTreeMap<Link, usize>,
    /// Selects among crash points that are the same to the model.
    salt: usize,
    /// Milliseconds that have passed since the last `ClockAdvanced`, in models that have only a
    /// table.
    unreported_ms: u64,
    /// Whether the leader has swept when such a model did not; from there on their tables differ.
    has_diverged: bool,
    coverage: Coverage,
    _directory: TempDir,
}

impl Replay {
    /// Starts the processes of a cluster. None of them has received an input.
    fn start(config: &ReplayConfig, trace: &Trace) -> Result<Replay, PlayError> {
        let wrong = |error: &dyn fmt::Display| PlayError::Setup(error.to_string());
        let setting = trace.setting();
        let servers = || (1..=setting.founders + setting.joiners).map(NodeId);
        let directory = tempfile::tempdir().map_err(|error| wrong(&error))?;
        let gate = MessageGate::open(CLUSTER, servers()).map_err(|error| wrong(&error))?;
        let translation = Translation::new(&setting.machine, gate.addresses.clone());
        let machine = translation.machine(&setting.machine).map_err(|error| wrong(&error))?;
        let founders: BTreeMap<NodeId, String> =
            gate.addresses.iter().take(setting.founders as usize).map(|(&id, address)| (id, address.clone())).collect();
        let begin = |node: NodeId| {
            let founders = if founders.contains_key(&node) { founders.clone() } else { BTreeMap::new() };
            let default = Config::new(node);
            let node_config = Config {
                max_batch: setting.batch,
                max_inflight: setting.inflight.unwrap_or(default.max_inflight),
                max_commits: setting.commits.unwrap_or(default.max_commits),
                ..default
            };
            let members =
                Members::founding(founders.iter().map(|(&id, address)| (id, Address::from(address.as_str()))));
            let Config { max_batch, max_inflight, max_commits, .. } = node_config;
            let expected = ExpectedNode::start(node_config, Durable::blank(machine.clone(), members));
            let setting = Setting {
                node,
                cluster: CLUSTER,
                incarnation: incarnation(node).0,
                peer_addr: gate.addresses[&node].clone(),
                founders,
                machine: machine.clone(),
                max_batch,
                max_inflight,
                max_commits,
                segment_bytes: config.segment_bytes,
            };
            let home = directory.path().join(node.to_string());
            Live::start(&config.program, home, setting).map(|(live, now)| (node, NodeSlot { live, expected }, now))
        };
        let begun: Vec<_> = std::thread::scope(|scope| {
            let begun: Vec<_> = servers().map(|node| scope.spawn(move || begin(node))).collect();
            begun.into_iter().map(|begun| begun.join().expect("a start does not panic")).collect()
        });
        let mut slots = BTreeMap::new();
        for begun in begun {
            let (node, slot, now) = match begun {
                Ok(begun) => begun,
                Err(error @ LiveError::Start { .. }) => return Err(wrong(&error)),
                Err(error) => {
                    return Err(found(
                        0,
                        "the first start",
                        NodeId(0),
                        Difference::new("the process", "it starts", error.to_string()),
                    ));
                }
            };
            gate.set_address(node, &slot.live.peer_addr).map_err(|error| wrong(&error))?;
            compare_state(&slot.expected, &now).map_err(|difference| found(0, "the first start", node, difference))?;
            slots.insert(node, slot);
        }
        let starts = setting.starts.clone();
        let (sent, coverage) = (BTreeMap::new(), Coverage::default());
        let (salt, unreported_ms, has_diverged) = (0, 0, false);
        Ok(Replay {
            slots,
            gate,
            translation,
            starts,
            sent,
            salt,
            unreported_ms,
            has_diverged,
            coverage,
            _directory: directory,
        })
    }

    /// Gives every node the inputs that precede all others.
    fn give_all_starts(&mut self) -> NodeResult<()> {
        let all: Vec<NodeId> = self.slots.keys().copied().collect();
        all.into_iter().try_for_each(|server| self.give_starts(server))
    }

    fn give_starts(&mut self, server: NodeId) -> NodeResult<()> {
        for given in self.starts.clone() {
            self.give(server, "start", &given, None)?;
        }
        Ok(())
    }

    /// Replays one action of the adversary.
    fn act(&mut self, event: &Event) -> NodeResult<Flow> {
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
    fn give_rejected_input(&mut self) -> NodeResult<()> {
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
            self.give(server, "propose", &given(json!({ "Propose": [payload] })), None)?;
        }
        let Some(traced) = event.table.as_ref().filter(|_| !self.has_diverged) else { return Ok(()) };
        let table = self.translation.of_server(self.expected(server)?.node.machine());
        Difference::between("the model's table", traced, &table).map_or(Ok(()), |difference| Err((server, difference)))
    }

    fn expected(&self, server: NodeId) -> NodeResult<&ExpectedNode> {
        self.slots.get(&server).map(|slot| &slot.expected).ok_or_else(|| unknown_server(server))
    }

    fn turn(&mut self, turn: &Turn) -> NodeResult<Flow> {
        for (place, given) in turn.inputs.iter().enumerate() {
            let crash = turn.crash.filter(|crash| crash.input == place);
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
    fn give(&mut self, server: NodeId, stimulus: &str, given: &Given, crash: Option<Crash>) -> NodeResult<Flow> {
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

    /// Translates the input to the server's terms and gives it. A message that is not in `sent` is
    /// forged.
    fn feed(
        &mut self,
        server: NodeId,
        input: Input<LockTable>,
        sent: Option<&Sent>,
        crash: Option<Crash>,
    ) -> NodeResult<Flow> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?;
        let before = slot.expected.clone();
        let outputs = slot.expected.step(input.clone());
        self.coverage.stepped(&before.node, &input, &outputs);
        let plan = crash.map(|crash| crash_plan::plan(crash, &outputs, self.salt));
        let stop = plan.as_ref().and_then(|plan| plan.stop);
        let request = if let Input::Receive(message) = &input {
            let passed = match sent {
                Some(sent) => self.gate.deliver(sent),
                None => self.gate.forge(server, message),
            };
            match passed {
                Ok(()) => {}
                Err(MessageGateError::Enough) if already_has_snapshot(&before, message) => {
                    return Ok(Flow::Ends("a live node refuses a snapshot of what it already has".into()));
                }
                Err(error) => {
                    return Err((
                        server,
                        Difference::new("delivery", "the node accepts the message", error.to_string()),
                    ));
                }
            }
            Request::Receive { from: message.from, stop }
        } else {
            Request::Give { input: input.clone(), stop }
        };
        let answer = slot.live.request(&request).map_err(|error| stopped(server, &error))?;
        self.compare(server, answer, &input, &outputs, plan.as_ref())?;
        let Some(plan) = plan else { return Ok(Flow::Continues) };
        self.coverage.note(
            "crash",
            plan.stop.map_or_else(|| "when all is done".to_string(), |stop| crash_point(&format!("{stop:?}"))),
        );
        self.restart(server)?;
        Ok(if plan.diverges {
            Flow::Ends("a live disk has all writes of a step or none".into())
        } else {
            Flow::Continues
        })
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

    /// Compares what a node did with what it should have done.
    fn compare(
        &mut self,
        server: NodeId,
        answer: Answer,
        input: &Input<LockTable>,
        outputs: &[Output<LockTable>],
        plan: Option<&Plan>,
    ) -> NodeResult<()> {
        let different = |what: &str, expected: &dyn fmt::Debug, seen: &dyn fmt::Debug| {
            (server, Difference::new(what, format!("{expected:?}"), format!("{seen:?}")))
        };
        let all = crash_plan::effects(outputs);
        let due = plan.map_or(&all, |plan| &plan.effects);
        let (effects, now) = match answer {
            Answer::Stepped(stepped) if plan.is_none_or(|plan| plan.stop.is_none()) => {
                if stepped.input != *input {
                    return Err(different("the input", input, &stepped.input));
                }
                let due: Vec<String> = outputs.iter().map(|output| format!("{output:?}")).collect();
                if stepped.outputs != due {
                    return Err(different("the outputs", &due, &stepped.outputs));
                }
                (stepped.effects, Some(stepped.now))
            }
            Answer::Halted { effects } if plan.is_some_and(|plan| plan.stop.is_some()) => (effects, None),
            other => {
                let expected =
                    plan.and_then(|plan| plan.stop).map_or("a step".into(), |stop| format!("to halt at {stop:?}"));
                return Err((server, Difference::new("the answer", expected, format!("{other:?}"))));
            }
        };
        if effects != *due {
            return Err(different("the driver's effects, in order", due, &effects));
        }
        let sends = effects.iter().filter(|effect| matches!(effect, Effect::Send(_) | Effect::SendSnapshot(_))).count();
        let expected = &mut self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?.expected;
        let sent = expected.clone().carry_out(outputs);
        match plan {
            Some(plan) => {
                expected.carry_out(&outputs[..plan.durable]);
                if let (true, Some(Output::Persist(write))) = (plan.is_half_installed, outputs.get(plan.durable)) {
                    expected.half_install(write);
                }
            }
            None => drop(expected.carry_out(outputs)),
        }
        self.compare_sent(server, &sent[..sends])?;
        match now {
            Some(now) => compare_state(&self.slots[&server].expected, &now).map_err(|difference| (server, difference)),
            None => Ok(()),
        }
    }

    /// Waits for the messages that a node should send, compares them, and checks that it sent no
    /// others.
    fn compare_sent(&mut self, server: NodeId, sent: &[Message<LockTable>]) -> NodeResult<()> {
        let expected = &self.slots[&server].expected;
        for message in sent.iter().filter(|message| !expected.has_cut_off(message.to)) {
            let link = (server, message.to);
            let number = self.sent.entry(link).or_default();
            let heard = self.gate.sent(link, *number).map_err(|error| {
                (server, Difference::new("messages sent", format!("{message:?}"), error.to_string()))
            })?;
            if heard.message != *message {
                let (expected, seen) = (format!("{message:?}"), format!("{:?}", heard.message));
                return Err((server, Difference::new("messages sent", expected, seen)));
            }
            *number += 1;
        }
        for to in self.slots.keys().filter(|to| **to != server) {
            let link = (server, *to);
            let (due, count) = (self.sent.get(&link).copied().unwrap_or(0), self.gate.count(link));
            if count != due {
                let what = format!("number of messages sent to node {to}");
                return Err((server, Difference::new(what, due.to_string(), count.to_string())));
            }
        }
        match self.gate.violation() {
            Some(violation) => Err((server, Difference::new("messages sent", "only valid messages", violation))),
            None => Ok(()),
        }
    }

    /// At the end, checks that no node has sent any further message.
    fn close(&mut self) -> NodeResult<()> {
        std::thread::sleep(LATE);
        let all: Vec<NodeId> = self.slots.keys().copied().collect();
        all.into_iter().try_for_each(|server| self.compare_sent(server, &[]))
    }

    /// Kills a node at its present point and starts it again.
    fn restart(&mut self, server: NodeId) -> NodeResult<()> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?;
        slot.live.kill();
        slot.expected.restart();
        let now = slot.live.restart().map_err(|error| stopped(server, &error))?;
        compare_state(&slot.expected, &now).map_err(|mut difference| {
            difference.what.push_str(", after a restart");
            (server, difference)
        })?;
        self.gate.set_address(server, &slot.live.peer_addr).map_err(|error| bad_trace(server, &error))?;
        self.give_starts(server)
    }

    fn take_snapshot(&mut self, server: NodeId) -> NodeResult<()> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?;
        slot.expected.take_snapshot();
        match slot.live.request(&Request::TakeSnapshot).map_err(|error| stopped(server, &error))? {
            Answer::Taken(now) => compare_state(&slot.expected, &now).map_err(|difference| (server, difference)),
            other => Err((server, Difference::new("the answer", "a snapshot", format!("{other:?}")))),
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

/// Compares the complete state of a live node with the expected one.
fn compare_state(expected: &ExpectedNode, now: &Now) -> Result<(), Difference> {
    if expected.node != now.node
        && let Some(difference) = Difference::between("the node", &value(&expected.node), &value(&now.node))
    {
        return Err(difference);
    }
    let expected = expected.settled();
    if expected != now.disk
        && let Some(difference) = Difference::between("the disk, read back", &value(&expected), &value(&now.disk))
    {
        return Err(difference);
    }
    Ok(())
}

fn value(of: &impl serde::Serialize) -> Value {
    serde_json::to_value(of).expect("nodes and disks are plain values")
}

/// Whether a server already has everything that a snapshot includes.
fn already_has_snapshot(expected: &ExpectedNode, message: &Message<LockTable>) -> bool {
    let palisade_spec::raft::Body::InstallSnapshot { snapshot } = &message.body else { return false };
    let has = expected.node.commit().max(expected.disk.snapshot.last.index);
    has >= snapshot.last.index
}

/// The crash point without the numbers that differ between nodes.
fn crash_point(stop: &str) -> String {
    stop.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>().replace("nth: , ", "")
}

fn stopped(server: NodeId, error: &LiveError) -> (NodeId, Difference) {
    (server, Difference::new("the process", "it answers the request", error.to_string()))
}

fn bad_trace(server: NodeId, error: &dyn fmt::Display) -> (NodeId, Difference) {
    (server, Difference::new("the trace", "an event that can be replayed", error.to_string()))
}

fn unknown_server(server: NodeId) -> (NodeId, Difference) {
    (server, Difference::new("the trace", "an event that can be replayed", format!("there is no server {server}")))
}
