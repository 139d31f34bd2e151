//! The play: a trace in, the first difference out.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use palisade::stepper::protocol::{Answer, Effect, Now, Request, Setting};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Input, Members, Message, NodeId, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::coverage::Coverage;
use super::crash::{self, Plan};
use super::difference::Difference;
use super::expected_node::ExpectedNode;
use super::live::{Live, LiveError, Program};
use super::message_gate::{MessageGate, MessageGateError, Said, Way, incarnation};
use super::rejected_inputs::aside;
use super::trace::{Crash, Event, Given, Trace, Turn};
use super::translate::Translation;

/// The cluster that is played. Any number will do.
const CLUSTER: u64 = 0x00AB_1E00;

/// What live nodes are made of.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// What is run.
    pub program: Program,
    /// How long the segments of the nodes' logs are: short ones give way all the time.
    pub segment_bytes: u64,
}

/// What came of a play.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// How many of the trace's steps were taken.
    pub steps: usize,
    /// Why it ended before the trace did.
    pub ended: Option<String>,
    /// What was exercised.
    pub coverage: Coverage,
}

/// What a node says after a step of its own accord has come by then.
const LATE: Duration = Duration::from_millis(5);

/// A live node that is not what the model says.
#[derive(Clone, Debug)]
pub struct Finding {
    /// In which step, counted from 1; 0 is what comes before.
    pub step: usize,
    /// What happens in it.
    pub sentence: String,
    /// Which node.
    pub server: NodeId,
    /// How it differs.
    pub difference: Difference,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { step, sentence, server, difference } = self;
        write!(f, "step {step} ({sentence}), node {server}: {difference}")
    }
}

/// Why a play did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// A difference was found.
    #[error("{0}")]
    Found(Box<Finding>),
    /// There is no stage.
    #[error("there is no stage to play on: {0}")]
    Stage(String),
}

/// How a part of a play ends.
enum Flow {
    GoesOn,
    /// A live node cannot follow any further.
    Ends(String),
}

type Part<T> = Result<T, (NodeId, Difference)>;

/// Plays a trace on live nodes.
///
/// # Errors
/// See [`PlayError`].
pub fn play(config: &ReplayConfig, trace: &Trace) -> Result<Played, PlayError> {
    let mut stage = Stage::set(config, trace)?;
    let mut played = Played::default();
    let beginning = |server, difference| found(0, "the beginning", server, difference);
    stage.raise().map_err(|(server, difference)| beginning(server, difference))?;
    let mut flow = Flow::GoesOn;
    for event in &trace.setting().prelude {
        if let Flow::GoesOn = flow {
            flow = stage.act(event).map_err(|(server, difference)| beginning(server, difference))?;
        }
    }
    for step in &trace.steps {
        if let Flow::Ends(_) = flow {
            break;
        }
        flow = stage
            .act(&step.event)
            .map_err(|(server, difference)| found(step.step, &step.sentence, server, difference))?;
        played.steps += 1;
        if let Flow::GoesOn = flow {
            stage.ask_in_vain().map_err(|(server, difference)| {
                found(step.step, "what is asked in vain after it", server, difference)
            })?;
        }
    }
    match flow {
        Flow::Ends(why) => played.ended = Some(why),
        Flow::GoesOn => stage
            .close()
            .map_err(|(server, difference)| found(played.steps, "after the last step", server, difference))?,
    }
    played.coverage = stage.coverage;
    Ok(played)
}

fn found(step: usize, sentence: &str, server: NodeId, difference: Difference) -> PlayError {
    PlayError::Found(Box::new(Finding { step, sentence: sentence.to_owned(), server, difference }))
}

/// A node's process, and what it is to be.
struct NodeSlot {
    live: Live,
    expected: ExpectedNode,
}

struct Stage {
    slots: BTreeMap<NodeId, NodeSlot>,
    gate: MessageGate,
    translation: Translation,
    starts: Vec<Given>,
    /// How much each node has said on each way.
    said: BTreeMap<Way, usize>,
    /// Chooses between places that are the same to the model.
    salt: usize,
    /// How much time has passed that no clock has measured yet, in models of the table alone.
    unmeasured: u64,
    /// Whether the leader has done more than such a model.
    strays: bool,
    coverage: Coverage,
    _directory: TempDir,
}

impl Stage {
    /// A cluster of processes, none of which has been given anything.
    fn set(config: &ReplayConfig, trace: &Trace) -> Result<Stage, PlayError> {
        let wrong = |error: &dyn fmt::Display| PlayError::Stage(error.to_string());
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
            gate.is_at(node, &slot.live.peer_addr).map_err(|error| wrong(&error))?;
            is_as(&slot.expected, &now).map_err(|difference| found(0, "the first start", node, difference))?;
            slots.insert(node, slot);
        }
        let starts = setting.starts.clone();
        let (said, coverage) = (BTreeMap::new(), Coverage::default());
        let (salt, unmeasured, strays) = (0, 0, false);
        Ok(Stage { slots, gate, translation, starts, said, salt, unmeasured, strays, coverage, _directory: directory })
    }

    /// Everybody is given what comes before everything else.
    fn raise(&mut self) -> Part<()> {
        let all: Vec<NodeId> = self.slots.keys().copied().collect();
        all.into_iter().try_for_each(|server| self.give_starts(server))
    }

    fn give_starts(&mut self, server: NodeId) -> Part<()> {
        for given in self.starts.clone() {
            self.give(server, "start", &given, None)?;
        }
        Ok(())
    }

    /// One action of the adversary's.
    fn act(&mut self, event: &Event) -> Part<Flow> {
        self.salt += 1;
        self.coverage.note(
            "action",
            if event.kind == "move" { event.turns.first().map_or("move", |turn| &turn.stimulus) } else { &event.kind },
        );
        match (event.kind.as_str(), event.server) {
            ("crash", Some(server)) => {
                self.coverage.note("crash", "between two steps");
                self.restart(server)?;
                self.is_as_told(server, event.after.as_ref())?;
            }
            ("snapshot", Some(server)) => {
                self.take_snapshot(server)?;
                self.is_as_told(server, event.after.as_ref())?;
            }
            ("tick", _) => self.unmeasured += event.milliseconds.unwrap_or_default(),
            ("apply", _) => self.apply(event)?,
            _ => {
                for turn in &event.turns {
                    if let Flow::Ends(why) = self.turn(turn)? {
                        return Ok(Flow::Ends(why));
                    }
                }
            }
        }
        Ok(Flow::GoesOn)
    }

    /// Asks a node for something that it refuses, or drops.
    fn ask_in_vain(&mut self) -> Part<()> {
        let servers: Vec<NodeId> = self.slots.keys().copied().collect();
        let count = servers.len();
        let server = servers[self.salt % count];
        let peer = servers[(self.salt / count) % count];
        let expected = self.expected(server)?;
        let speaks = peer != server && self.gate.knows(peer) && !expected.has_cut_off(peer);
        let Some(input) = aside(&expected.node, speaks.then_some(peer), self.salt / 2) else { return Ok(()) };
        self.coverage.note("action", "in vain");
        self.feed(server, input, None, None).map(drop)
    }

    /// An entry is applied, in a model that has only a table: the one server looks at its clock, and is asked for the entry.
    /// When a deadline has passed, it appends a no-op by itself. The model need not; if it does something else, the
    /// two go different ways from there on, and what the server is compared with is its twin alone.
    fn apply(&mut self, event: &Event) -> Part<()> {
        let server = NodeId(1);
        let payload = event.payload.clone().unwrap_or_default();
        let given = |input: Value| Given { input, done: true };
        let before = self.expected(server)?.node.commit();
        let elapsed = std::mem::take(&mut self.unmeasured);
        if elapsed > 0 {
            self.give(server, "clock", &given(json!({ "ClockAdvanced": elapsed })), None)?;
        }
        let has_swept = self.expected(server)?.node.commit() != before;
        if !has_swept || payload != "Noop" {
            self.strays |= has_swept;
            self.give(server, "propose", &given(json!({ "Propose": [payload] })), None)?;
        }
        let Some(told) = event.table.as_ref().filter(|_| !self.strays) else { return Ok(()) };
        let table = self.translation.of_server(self.expected(server)?.node.machine());
        Difference::between("the model's table", told, &table).map_or(Ok(()), |difference| Err((server, difference)))
    }

    fn expected(&self, server: NodeId) -> Part<&ExpectedNode> {
        self.slots.get(&server).map(|slot| &slot.expected).ok_or_else(|| nobody(server))
    }

    fn turn(&mut self, turn: &Turn) -> Part<Flow> {
        for (place, given) in turn.inputs.iter().enumerate() {
            let crash = turn.crash.filter(|crash| crash.input == place);
            if let Flow::Ends(why) = self.give(turn.server, &turn.stimulus, given, crash)? {
                return Ok(Flow::Ends(why));
            }
            if crash.is_some() {
                break;
            }
        }
        self.is_as_told(turn.server, turn.after.as_ref())?;
        Ok(Flow::GoesOn)
    }

    /// Gives a node an input, compares what comes of it, and lets the node crash on the way if it is to.
    fn give(&mut self, server: NodeId, stimulus: &str, given: &Given, crash: Option<Crash>) -> Part<Flow> {
        let told = given.input.get("Receive");
        let (input, said) = match told {
            Some(told) if stimulus == "campaign" => {
                let message = serde_json::from_value(told.clone()).map_err(|error| nonsense(server, &error))?;
                (Input::Receive(message), None)
            }
            Some(told) => match self.hear(server, told)? {
                Ok(said) => (Input::Receive(said.message.clone()), Some(said)),
                Err(why) => return Ok(Flow::Ends(why)),
            },
            None => (self.translation.input(&given.input).map_err(|error| nonsense(server, &error))?, None),
        };
        self.feed(server, input, said.as_ref(), crash)
    }

    /// The same in the server's terms. A message that was not `said` is made up.
    fn feed(
        &mut self,
        server: NodeId,
        input: Input<LockTable>,
        said: Option<&Said>,
        crash: Option<Crash>,
    ) -> Part<Flow> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| nobody(server))?;
        let before = slot.expected.clone();
        let outputs = slot.expected.step(input.clone());
        self.coverage.stepped(&before.node, &input, &outputs);
        let plan = crash.map(|crash| crash::plan(crash, &outputs, self.salt));
        let stop = plan.as_ref().and_then(|plan| plan.stop);
        let request = if let Input::Receive(message) = &input {
            let passed = match said {
                Some(said) => self.gate.deliver(said),
                None => self.gate.forge(server, message),
            };
            match passed {
                Ok(()) => {}
                Err(MessageGateError::Enough) if has_no_use(&before, message) => {
                    return Ok(Flow::Ends("a live node takes no snapshot of what it has".into()));
                }
                Err(error) => {
                    return Err((server, Difference::new("what arrives", "the node takes it", error.to_string())));
                }
            }
            Request::Receive { from: message.from, stop }
        } else {
            Request::Give { input: input.clone(), stop }
        };
        let answer = slot.live.request(&request).map_err(|error| stopped(server, &error))?;
        self.compare(server, answer, &input, &outputs, plan.as_ref())?;
        let Some(plan) = plan else { return Ok(Flow::GoesOn) };
        self.coverage.note(
            "crash",
            plan.stop.map_or_else(|| "when all is done".to_string(), |stop| place(&format!("{stop:?}"))),
        );
        self.restart(server)?;
        Ok(if plan.parts { Flow::Ends("a live disk has all of a step's writes or none".into()) } else { Flow::GoesOn })
    }

    /// Finds what a node is to hear. The inner error says why that never reaches a live node.
    fn hear(&self, server: NodeId, told: &Value) -> Part<Result<Said, String>> {
        let from = told["from"].as_u64().and_then(|from| u32::try_from(from).ok()).map(NodeId);
        let from = from.ok_or_else(|| nobody(server))?;
        let sender = self.slots.get(&from).ok_or_else(|| nobody(from))?;
        let hearer = self.slots.get(&server).ok_or_else(|| nobody(server))?;
        if hearer.expected.has_cut_off(from) {
            return Ok(Err("a live node does not listen to a member that was removed".into()));
        }
        match self.gate.find((from, server), |message| self.translation.is_message(message, told)) {
            Some(said) => Ok(Ok(said)),
            None if sender.expected.has_cut_off(server) => {
                Ok(Err("a live node says nothing to a member that was removed".into()))
            }
            None => Err((from, Difference::new("what it said", told.to_string(), "nothing of the kind"))),
        }
    }

    /// Compares what a node did with what it was to do.
    fn compare(
        &mut self,
        server: NodeId,
        answer: Answer,
        input: &Input<LockTable>,
        outputs: &[Output<LockTable>],
        plan: Option<&Plan>,
    ) -> Part<()> {
        let different = |what: &str, expected: &dyn fmt::Debug, seen: &dyn fmt::Debug| {
            (server, Difference::new(what, format!("{expected:?}"), format!("{seen:?}")))
        };
        let all = crash::effects(outputs);
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
                let expected = plan
                    .and_then(|plan| plan.stop)
                    .map_or("a step".into(), |stop| format!("to stand still at {stop:?}"));
                return Err((server, Difference::new("the answer", expected, format!("{other:?}"))));
            }
        };
        if effects != *due {
            return Err(different("what the driver did, in order", due, &effects));
        }
        let sends = effects.iter().filter(|effect| matches!(effect, Effect::Send(_) | Effect::SendSnapshot(_))).count();
        let expected = &mut self.slots.get_mut(&server).ok_or_else(|| nobody(server))?.expected;
        let said = expected.clone().carry_out(outputs);
        match plan {
            Some(plan) => {
                expected.carry_out(&outputs[..plan.durable]);
                if let (true, Some(Output::Persist(write))) = (plan.is_half_installed, outputs.get(plan.durable)) {
                    expected.half_install(write);
                }
            }
            None => drop(expected.carry_out(outputs)),
        }
        self.compare_said(server, &said[..sends])?;
        match now {
            Some(now) => is_as(&self.slots[&server].expected, &now).map_err(|difference| (server, difference)),
            None => Ok(()),
        }
    }

    /// Waits for what a node was to say, compares it, and makes sure that it has said nothing else.
    fn compare_said(&mut self, server: NodeId, said: &[Message<LockTable>]) -> Part<()> {
        let expected = &self.slots[&server].expected;
        for message in said.iter().filter(|message| !expected.has_cut_off(message.to)) {
            let way = (server, message.to);
            let number = self.said.entry(way).or_default();
            let heard = self.gate.said(way, *number).map_err(|error| {
                (server, Difference::new("what it says", format!("{message:?}"), error.to_string()))
            })?;
            if heard.message != *message {
                let (expected, seen) = (format!("{message:?}"), format!("{:?}", heard.message));
                return Err((server, Difference::new("what it says", expected, seen)));
            }
            *number += 1;
        }
        for to in self.slots.keys().filter(|to| **to != server) {
            let way = (server, *to);
            let (due, count) = (self.said.get(&way).copied().unwrap_or(0), self.gate.count(way));
            if count != due {
                let what = format!("how many messages to node {to} it has said");
                return Err((server, Difference::new(what, due.to_string(), count.to_string())));
            }
        }
        match self.gate.trouble() {
            Some(trouble) => Err((server, Difference::new("what it says", "what makes sense", trouble))),
            None => Ok(()),
        }
    }

    /// At the end: nobody has said anything since that was not to be said.
    fn close(&mut self) -> Part<()> {
        std::thread::sleep(LATE);
        let all: Vec<NodeId> = self.slots.keys().copied().collect();
        all.into_iter().try_for_each(|server| self.compare_said(server, &[]))
    }

    /// Kills a node where it stands, and starts it again.
    fn restart(&mut self, server: NodeId) -> Part<()> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| nobody(server))?;
        slot.live.kill();
        slot.expected.restart();
        let now = slot.live.restart().map_err(|error| stopped(server, &error))?;
        is_as(&slot.expected, &now).map_err(|mut difference| {
            difference.what.push_str(", after a restart");
            (server, difference)
        })?;
        self.gate.is_at(server, &slot.live.peer_addr).map_err(|error| nonsense(server, &error))?;
        self.give_starts(server)
    }

    fn take_snapshot(&mut self, server: NodeId) -> Part<()> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| nobody(server))?;
        slot.expected.take_snapshot();
        match slot.live.request(&Request::TakeSnapshot).map_err(|error| stopped(server, &error))? {
            Answer::Taken(now) => is_as(&slot.expected, &now).map_err(|difference| (server, difference)),
            other => Err((server, Difference::new("the answer", "a snapshot", format!("{other:?}")))),
        }
    }

    /// Compares what a node is to be with what the trace says the model's server is.
    fn is_as_told(&self, server: NodeId, told: Option<&Value>) -> Part<()> {
        let Some(told) = told else { return Ok(()) };
        let expected = &self.slots[&server].expected;
        let parts = [
            Difference::between("the model's node", &told["node"], &self.translation.of_server(&expected.node)),
            Difference::between("the model's disk", &told["disk"], &self.translation.of_server(&expected.disk)),
        ];
        parts.into_iter().flatten().next().map_or(Ok(()), |difference| Err((server, difference)))
    }
}

/// Compares a live node with what it is to be, completely.
fn is_as(expected: &ExpectedNode, now: &Now) -> Result<(), Difference> {
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
    serde_json::to_value(of).expect("what nodes are is plain values")
}

/// Whether a server has all that a snapshot includes.
fn has_no_use(expected: &ExpectedNode, message: &Message<LockTable>) -> bool {
    let palisade_spec::raft::Body::InstallSnapshot { snapshot } = &message.body else { return false };
    let has = expected.node.commit().max(expected.disk.snapshot.last.index);
    has >= snapshot.last.index
}

/// A place, without what differs from one node to another.
fn place(stop: &str) -> String {
    stop.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>().replace("nth: , ", "")
}

fn stopped(server: NodeId, error: &LiveError) -> (NodeId, Difference) {
    (server, Difference::new("the process", "it does what it is told", error.to_string()))
}

fn nonsense(server: NodeId, error: &dyn fmt::Display) -> (NodeId, Difference) {
    (server, Difference::new("the trace", "something that can be played", error.to_string()))
}

fn nobody(server: NodeId) -> (NodeId, Difference) {
    (server, Difference::new("the trace", "something that can be played", format!("there is no server {server}")))
}

/// The program `palisade` that stands beside this one, if `PALISADE` names no other.
///
/// # Errors
/// If there is none.
pub fn program() -> Result<Program, String> {
    let beside = || std::env::current_exe().map(|program| program.with_file_name("palisade"));
    let file = std::env::var_os("PALISADE").map_or_else(beside, |named| Ok(PathBuf::from(named)));
    let file = file.map_err(|error| error.to_string())?;
    if file.exists() {
        Ok(Program { file, on: String::new() })
    } else {
        Err(format!(
            "there is no {}: build the server first (`just replay` does), or name it with PALISADE",
            file.display()
        ))
    }
}
