//! The play: a trace in, the first difference out.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use palisade::puppet::strings::{Answer, Deed, Now, Pull, Setting};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Input, Members, Message, NodeId, Output, Payload};
use serde_json::Value;
use tempfile::TempDir;

use super::coverage::Coverage;
use super::crash::{self, Plan};
use super::difference::Difference;
use super::gate::{Gate, GateError, Way, incarnation};
use super::live::{Live, LiveError};
use super::terms::Terms;
use super::trace::{Crash, Event, Given, Trace, Turn};
use super::twin::Twin;

/// The cluster that is played. Any number will do.
const CLUSTER: u64 = 0x00AB_1E00;

/// What live nodes are made of.
#[derive(Clone, Debug)]
pub struct Company {
    /// The program `palisade`.
    pub program: PathBuf,
    /// How long the segments of the nodes' logs are: short ones give way all the time.
    pub segment_bytes: u64,
}

/// What came of a play.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// How many of the trace's steps were taken.
    pub steps: usize,
    /// How many of them the trace has.
    pub of: usize,
    /// Why it ended before the trace did.
    pub ended: Option<String>,
    /// What was exercised.
    pub coverage: Coverage,
}

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
pub fn play(company: &Company, trace: &Trace) -> Result<Played, PlayError> {
    let mut stage = Stage::set(company, trace)?;
    let mut played = Played { of: trace.steps.len(), ..Played::default() };
    let beginning = |server, difference| found(0, "the beginning", server, difference);
    let mut flow = stage.raise().map_err(|(server, difference)| beginning(server, difference))?;
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
    }
    if let Flow::Ends(why) = flow {
        played.ended = Some(why);
    }
    played.coverage = stage.coverage;
    Ok(played)
}

fn found(step: usize, sentence: &str, server: NodeId, difference: Difference) -> PlayError {
    PlayError::Found(Box::new(Finding { step, sentence: sentence.to_owned(), server, difference }))
}

/// A node's process, and what it is to be.
struct Seat {
    live: Live,
    twin: Twin,
}

struct Stage {
    seats: BTreeMap<NodeId, Seat>,
    gate: Gate,
    terms: Terms,
    starts: Vec<Given>,
    /// How much each node has said on each way.
    said: BTreeMap<Way, usize>,
    /// Chooses between places that are the same to the model.
    salt: usize,
    coverage: Coverage,
    _directory: TempDir,
}

impl Stage {
    /// A cluster of processes, none of which has been given anything.
    fn set(company: &Company, trace: &Trace) -> Result<Stage, PlayError> {
        let wrong = |error: &dyn fmt::Display| PlayError::Stage(error.to_string());
        let setting = trace.setting();
        let servers = || (1..=setting.founders + setting.joiners).map(NodeId);
        let directory = tempfile::tempdir().map_err(|error| wrong(&error))?;
        let gate = Gate::open(CLUSTER, servers()).map_err(|error| wrong(&error))?;
        let terms = Terms::new(&setting.machine, gate.addresses.clone());
        let machine = terms.machine(&setting.machine).map_err(|error| wrong(&error))?;
        let founders: BTreeMap<NodeId, String> = gate
            .addresses
            .iter()
            .take(usize::from(setting.founders))
            .map(|(&id, address)| (id, address.clone()))
            .collect();
        let begin = |node: NodeId| {
            let founders = if founders.contains_key(&node) { founders.clone() } else { BTreeMap::new() };
            let config = Config { max_batch: setting.batch, ..Config::new(node) };
            let members =
                Members::founding(founders.iter().map(|(&id, address)| (id, Address::from(address.as_str()))));
            let twin = Twin::start(config, Durable::blank(machine.clone(), members));
            let setting = Setting {
                node,
                cluster: CLUSTER,
                incarnation: incarnation(node).0,
                peer_addr: gate.addresses[&node].clone(),
                founders,
                machine: machine.clone(),
                max_batch: setting.batch,
                segment_bytes: company.segment_bytes,
            };
            let home = directory.path().join(node.to_string());
            Live::start(&company.program, home, setting).map(|(live, now)| (node, Seat { live, twin }, now))
        };
        let begun: Vec<_> = std::thread::scope(|scope| {
            let begun: Vec<_> = servers().map(|node| scope.spawn(move || begin(node))).collect();
            begun.into_iter().map(|begun| begun.join().expect("a start does not panic")).collect()
        });
        let mut seats = BTreeMap::new();
        for begun in begun {
            let (node, seat, now) = match begun {
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
            gate.is_at(node, &seat.live.peer_addr).map_err(|error| wrong(&error))?;
            is_as(&seat.twin, &now).map_err(|difference| found(0, "the first start", node, difference))?;
            seats.insert(node, seat);
        }
        let starts = setting.starts.clone();
        let (said, coverage) = (BTreeMap::new(), Coverage::default());
        Ok(Stage { seats, gate, terms, starts, said, salt: 0, coverage, _directory: directory })
    }

    /// Everybody is given what comes before everything else.
    fn raise(&mut self) -> Part<Flow> {
        for server in self.seats.keys().copied().collect::<Vec<_>>() {
            self.give_starts(server)?;
        }
        Ok(Flow::GoesOn)
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
                if let Flow::Ends(why) = self.restart(server)? {
                    return Ok(Flow::Ends(why));
                }
                self.is_as_told(server, event.after.as_ref())?;
            }
            ("snapshot", Some(server)) => {
                self.take_snapshot(server)?;
                self.is_as_told(server, event.after.as_ref())?;
            }
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
        self.is_as_told(turn.server, Some(&turn.after))?;
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
            None => (self.terms.input(&given.input).map_err(|error| nonsense(server, &error))?, None),
        };
        let seat = self.seats.get_mut(&server).ok_or_else(|| nobody(server))?;
        let before = seat.twin.clone();
        let outputs = seat.twin.step(input.clone());
        self.coverage.stepped(&before.node, &input, &outputs);
        let plan = crash.map(|crash| crash::plan(crash, &outputs, self.salt));
        let stop = plan.as_ref().and_then(|plan| plan.stop);
        let pull = if let Input::Receive(message) = &input {
            let passed = match &said {
                Some(said) => self.gate.deliver(said),
                None => self.gate.forge(message),
            };
            match passed {
                Ok(()) => {}
                Err(GateError::Enough) if has_no_use(&before, message) => {
                    return Ok(Flow::Ends("a live node takes no snapshot of what it has".into()));
                }
                Err(error) => {
                    return Err((server, Difference::new("what arrives", "the node takes it", error.to_string())));
                }
            }
            Pull::Receive { from: message.from, stop }
        } else {
            Pull::Give { input: input.clone(), stop }
        };
        let answer = seat.live.pull(&pull).map_err(|error| stopped(server, &error))?;
        self.compare(server, answer, &input, &outputs, plan.as_ref())?;
        let Some(plan) = plan else { return Ok(Flow::GoesOn) };
        self.coverage.note(
            "crash",
            plan.stop.map_or_else(|| "when all is done".to_string(), |stop| place(&format!("{stop:?}"))),
        );
        let back = self.restart(server)?;
        Ok(if plan.parts { Flow::Ends("a live disk has all of a step's writes or none".into()) } else { back })
    }

    /// Finds what a node is to hear. The inner error says why that never reaches a live node.
    fn hear(&self, server: NodeId, told: &Value) -> Part<Result<super::gate::Said, String>> {
        let from = told["from"].as_u64().and_then(|from| u16::try_from(from).ok()).map(NodeId);
        let from = from.ok_or_else(|| nobody(server))?;
        let sender = self.seats.get(&from).ok_or_else(|| nobody(from))?;
        let hearer = self.seats.get(&server).ok_or_else(|| nobody(server))?;
        if hearer.twin.has_cut_off(from) {
            return Ok(Err("a live node does not listen to a member that was removed".into()));
        }
        match self.gate.find((from, server), |message| self.terms.is_message(message, told)) {
            Some(said) => Ok(Ok(said)),
            None if sender.twin.has_cut_off(server) => {
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
        let all = crash::deeds(outputs);
        let due = plan.map_or(&all, |plan| &plan.deeds);
        let (deeds, now) = match answer {
            Answer::Stepped(stepped) if plan.is_none_or(|plan| plan.stop.is_none()) => {
                if stepped.input != *input {
                    return Err(different("the input", input, &stepped.input));
                }
                let due: Vec<String> = outputs.iter().map(|output| format!("{output:?}")).collect();
                if stepped.outputs != due {
                    return Err(different("the outputs", &due, &stepped.outputs));
                }
                (stepped.deeds, Some(stepped.now))
            }
            Answer::Stands { deeds } if plan.is_some_and(|plan| plan.stop.is_some()) => (deeds, None),
            other => {
                let expected = plan
                    .and_then(|plan| plan.stop)
                    .map_or("a step".into(), |stop| format!("to stand still at {stop:?}"));
                return Err((server, Difference::new("the answer", expected, format!("{other:?}"))));
            }
        };
        if deeds != *due {
            return Err(different("what the driver did, in order", due, &deeds));
        }
        let sends = deeds.iter().filter(|deed| matches!(deed, Deed::Send(_) | Deed::SendSnapshot(_))).count();
        let twin = &mut self.seats.get_mut(&server).ok_or_else(|| nobody(server))?.twin;
        let said = twin.clone().carry_out(outputs);
        match plan {
            Some(plan) => {
                twin.carry_out(&outputs[..plan.durable]);
                if let (true, Some(Output::Persist(write))) = (plan.is_half_installed, outputs.get(plan.durable)) {
                    twin.half_install(write);
                }
            }
            None => drop(twin.carry_out(outputs)),
        }
        self.compare_said(server, &said[..sends])?;
        match now {
            Some(now) => is_as(&self.seats[&server].twin, &now).map_err(|difference| (server, difference)),
            None => Ok(()),
        }
    }

    /// Waits for what a node was to say, compares it, and makes sure that it has said nothing else.
    fn compare_said(&mut self, server: NodeId, said: &[Message<LockTable>]) -> Part<()> {
        let twin = &self.seats[&server].twin;
        for message in said.iter().filter(|message| !twin.has_cut_off(message.to)) {
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
        for to in self.seats.keys().filter(|to| **to != server) {
            let way = (server, *to);
            let (due, count) = (self.said.get(&way).copied().unwrap_or(0), self.gate.count(way));
            if count != due {
                let what = format!("how many messages to node {to} it has said");
                return Err((server, Difference::new(what, due.to_string(), count.to_string())));
            }
        }
        Ok(())
    }

    /// Kills a node where it stands, and starts it again.
    fn restart(&mut self, server: NodeId) -> Part<Flow> {
        let seat = self.seats.get_mut(&server).ok_or_else(|| nobody(server))?;
        seat.live.kill();
        seat.twin.restart();
        let now = seat.live.restart().map_err(|error| stopped(server, &error))?;
        let begun = begun_with(seat.twin.disk.clone(), &now.disk);
        let begins_later = begun != seat.twin.disk;
        if begins_later {
            seat.twin.disk = begun;
            seat.twin.restart();
        }
        is_as(&seat.twin, &now).map_err(|mut difference| {
            difference.what.push_str(", after a restart");
            (server, difference)
        })?;
        self.gate.is_at(server, &seat.live.peer_addr).map_err(|error| nonsense(server, &error))?;
        self.give_starts(server)?;
        Ok(if begins_later {
            Flow::Ends("a live log that is read back begins with the snapshot, if the members changed before it".into())
        } else {
            Flow::GoesOn
        })
    }

    fn take_snapshot(&mut self, server: NodeId) -> Part<()> {
        let seat = self.seats.get_mut(&server).ok_or_else(|| nobody(server))?;
        seat.twin.take_snapshot();
        match seat.live.pull(&Pull::TakeSnapshot).map_err(|error| stopped(server, &error))? {
            Answer::Taken(now) => is_as(&seat.twin, &now).map_err(|difference| (server, difference)),
            other => Err((server, Difference::new("the answer", "a snapshot", format!("{other:?}")))),
        }
    }

    /// Compares what a node is to be with what the trace says the model's server is.
    fn is_as_told(&self, server: NodeId, told: Option<&Value>) -> Part<()> {
        let Some(told) = told else { return Ok(()) };
        let twin = &self.seats[&server].twin;
        let parts = [
            Difference::between("the model's node", &told["node"], &self.terms.of_server(&twin.node)),
            Difference::between("the model's disk", &told["disk"], &self.terms.of_server(&twin.disk)),
        ];
        parts.into_iter().flatten().next().map_or(Ok(()), |difference| Err((server, difference)))
    }
}

/// Compares a live node with what it is to be, completely.
fn is_as(twin: &Twin, now: &Now) -> Result<(), Difference> {
    if twin.node != now.node
        && let Some(difference) = Difference::between("the node", &value(&twin.node), &value(&now.node))
    {
        return Err(difference);
    }
    let expected = begun_with(twin.settled(), &now.disk);
    if expected != now.disk
        && let Some(difference) = Difference::between("the disk, read back", &value(&expected), &value(&now.disk))
    {
        return Err(difference);
    }
    Ok(())
}

/// A disk whose log begins where the other one's does, if that is within its snapshot. Who the members were before a snapshot
/// is nowhere in the files: if they changed on the way there, the log that is read back begins with the snapshot.
fn begun_with(mut disk: Durable<LockTable>, other: &Durable<LockTable>) -> Durable<LockTable> {
    let (base, included) = (other.log.base().index, disk.snapshot.last.index);
    if disk.log.base().index < base && base == included && has_changed(&disk) {
        disk.log.compact(included);
    }
    disk
}

/// Whether the members changed between the beginning of the log and the snapshot.
fn has_changed(disk: &Durable<LockTable>) -> bool {
    let included = disk.snapshot.last.index;
    let mut until = disk.log.entries().iter().take_while(|entry| entry.index <= included);
    until.any(|entry| matches!(entry.payload, Payload::Members(_)))
}

fn value(of: &impl serde::Serialize) -> Value {
    serde_json::to_value(of).expect("what nodes are is plain values")
}

/// Whether a server has all that a snapshot includes.
fn has_no_use(twin: &Twin, message: &Message<LockTable>) -> bool {
    let palisade_spec::raft::Body::InstallSnapshot { snapshot } = &message.body else { return false };
    let has = twin.node.commit().max(twin.disk.snapshot.last.index);
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

/// Where the program `palisade` of this workspace is: built, if it is not.
///
/// # Errors
/// If it cannot be built.
pub fn program() -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os("PALISADE") {
        return Ok(program.into());
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // target/debug/palisade-conformance, or target/debug/deps/replay-….
    let profile = own.ancestors().skip(1).find(|folder| folder.file_name().is_none_or(|name| name != "deps"));
    let folder = profile.ok_or("this program is nowhere")?;
    build(Path::new(env!("CARGO_MANIFEST_DIR")), folder)?;
    Ok(folder.join("palisade"))
}

/// Builds the program beside this one, with the same profile. Cargo does nothing if it is up to date.
fn build(manifest: &Path, folder: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.current_dir(manifest).args(["build", "--quiet", "--package", "palisade", "--bin", "palisade"]);
    if folder.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    if let Some(target) = folder.parent() {
        command.arg("--target-dir").arg(target);
    }
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
