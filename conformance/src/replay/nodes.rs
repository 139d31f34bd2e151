//! The live nodes of a replay: they start, take inputs, crash and restart, and are compared with
//! their expected nodes after each.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Input, Members, Message, NodeId, Output};
use tempfile::TempDir;

use super::compare;
use super::coverage::Coverage;
use super::crash_plan::{self, Plan};
use super::difference::Difference;
use super::expected_node::ExpectedNode;
use super::finding::{NodeResult, PlayError, bad_trace, found, stopped, unknown_server};
use super::live::{Live, LiveError, Program};
use super::message_gate::{Link, MessageGate, MessageGateError, Sent, incarnation};
use super::trace::{Crash, Given, Trace};
use super::translate::Translation;
use crate::stepper::protocol::{Answer, Request, Setting};

/// Cluster ID of the replayed cluster. Any number works.
const CLUSTER: u64 = 0x00AB_1E00;

/// How the live nodes are run.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// The program of the nodes.
    pub program: Program,
    /// The program of the version before, for every second node: it speaks version 10 of the protocol between nodes
    /// only.
    pub previous: Option<Previous>,
    /// Segment size of the nodes' logs, in bytes. Short segments exercise segment removal.
    pub segment_bytes: u64,
}

/// The program of the version before, and which nodes run it.
#[derive(Clone, Debug)]
pub struct Previous {
    /// The program.
    pub program: Program,
    /// The nodes whose number has this remainder when it is divided by two run it.
    pub parity: u32,
}

impl ReplayConfig {
    /// The program of the version before, if this node runs it.
    fn previous_of(&self, node: NodeId) -> Option<&Program> {
        self.previous.as_ref().filter(|previous| node.0 % 2 == previous.parity).map(|previous| &previous.program)
    }
}

/// Time within which a message that a node sends unprompted after a step arrives.
const LATE: Duration = Duration::from_millis(5);

/// Whether the replay continues.
pub(super) enum Flow {
    Continues,
    /// A live node cannot follow the trace any further.
    Ends(String),
}

/// A node's process and its expected state.
pub(super) struct NodeSlot {
    pub(super) live: Live,
    pub(super) expected: ExpectedNode,
}

/// The live nodes of a replay, each with its expected node.
pub(super) struct LiveNodes {
    pub(super) slots: BTreeMap<NodeId, NodeSlot>,
    pub(super) gate: MessageGate,
    pub(super) translation: Translation,
    starts: Vec<Given>,
    /// Number of messages sent on each link.
    sent: BTreeMap<Link, usize>,
    /// Selects among crash points that are the same to the model.
    pub(super) salt: usize,
    /// Milliseconds that have passed since the last `ClockAdvanced`, in models that have only a
    /// table.
    pub(super) unreported_ms: u64,
    /// Whether the leader has swept when such a model did not; from there on their tables differ.
    pub(super) has_diverged: bool,
    pub(super) coverage: Coverage,
    _directory: TempDir,
}

impl LiveNodes {
    /// Starts the processes of a cluster. None of them has received an input.
    pub(super) fn start(config: &ReplayConfig, trace: &Trace) -> Result<LiveNodes, PlayError> {
        let wrong = |error: &dyn fmt::Display| PlayError::Setup(error.to_string());
        let setting = trace.setting();
        let servers = || (1..=setting.founders + setting.joiners).map(NodeId);
        let directory = tempfile::tempdir().map_err(|error| wrong(&error))?;
        let of_version_10 = servers().filter(|&node| config.previous_of(node).is_some()).collect();
        let gate = MessageGate::open(CLUSTER, servers(), of_version_10).map_err(|error| wrong(&error))?;
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
            let program = config.previous_of(node).unwrap_or(&config.program);
            Live::start(program, home, setting).map(|(live, now)| (node, NodeSlot { live, expected }, now))
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
            compare::state(&slot.expected, &now).map_err(|difference| found(0, "the first start", node, difference))?;
            slots.insert(node, slot);
        }
        let starts = setting.starts.clone();
        let (sent, coverage) = (BTreeMap::new(), Coverage::default());
        let (salt, unreported_ms, has_diverged) = (0, 0, false);
        Ok(LiveNodes {
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
    pub(super) fn give_all_starts(&mut self) -> NodeResult<()> {
        let all: Vec<NodeId> = self.slots.keys().copied().collect();
        all.into_iter().try_for_each(|server| self.give_starts(server))
    }

    fn give_starts(&mut self, server: NodeId) -> NodeResult<()> {
        for given in self.starts.clone() {
            self.give(server, "start", &given, None)?;
        }
        Ok(())
    }

    pub(super) fn expected(&self, server: NodeId) -> NodeResult<&ExpectedNode> {
        self.slots.get(&server).map(|slot| &slot.expected).ok_or_else(|| unknown_server(server))
    }

    /// Translates the input to the server's terms and gives it. A message that is not in `sent` is
    /// forged.
    pub(super) fn feed(
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

    /// Compares what a node did with what it should have done.
    fn compare(
        &mut self,
        server: NodeId,
        answer: Answer,
        input: &Input<LockTable>,
        outputs: &[Output<LockTable>],
        plan: Option<&Plan>,
    ) -> NodeResult<()> {
        let (sends, now) = compare::step(answer, input, outputs, plan).map_err(|difference| (server, difference))?;
        let expected = &mut self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?.expected;
        let sent = expected.clone().execute(outputs);
        match plan {
            Some(plan) => {
                expected.execute(&outputs[..plan.durable]);
                if let (true, Some(Output::Persist(write))) = (plan.is_half_installed, outputs.get(plan.durable)) {
                    expected.half_install(write);
                }
            }
            None => drop(expected.execute(outputs)),
        }
        self.compare_sent(server, &sent[..sends])?;
        match now {
            Some(now) => compare::state(&self.slots[&server].expected, &now).map_err(|difference| (server, difference)),
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
    pub(super) fn close(&mut self) -> NodeResult<()> {
        std::thread::sleep(LATE);
        let all: Vec<NodeId> = self.slots.keys().copied().collect();
        all.into_iter().try_for_each(|server| self.compare_sent(server, &[]))
    }

    /// Kills a node at its present point and starts it again.
    pub(super) fn restart(&mut self, server: NodeId) -> NodeResult<()> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?;
        slot.live.kill();
        slot.expected.restart();
        let now = slot.live.restart().map_err(|error| stopped(server, &error))?;
        compare::state(&slot.expected, &now).map_err(|mut difference| {
            difference.what.push_str(", after a restart");
            (server, difference)
        })?;
        self.gate.set_address(server, &slot.live.peer_addr).map_err(|error| bad_trace(server, &error))?;
        self.give_starts(server)
    }

    pub(super) fn take_snapshot(&mut self, server: NodeId) -> NodeResult<()> {
        let slot = self.slots.get_mut(&server).ok_or_else(|| unknown_server(server))?;
        slot.expected.take_snapshot();
        match slot.live.request(&Request::TakeSnapshot).map_err(|error| stopped(server, &error))? {
            Answer::Taken(now) => compare::state(&slot.expected, &now).map_err(|difference| (server, difference)),
            other => Err((server, Difference::new("the answer", "a snapshot", format!("{other:?}")))),
        }
    }
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
