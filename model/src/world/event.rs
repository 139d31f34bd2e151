//! The adversary's actions as JSON, complete enough to replay them with live servers.
//!
//! A turn describes what happens to one server. `inputs` lists the inputs of its node, in order:
//! each has the JSON form of [`Input`], its number of `outputs`, and whether the outputs are `done`
//! (if not, they only send messages, and these are lost). A `crash` names the input at which the
//! server crashes, counted from 0, the number of that input's outputs that were executed, the
//! number of entries of the next write that were on disk (null: nothing of the write), the disk's
//! contents, and whether the server stays `away`, partitioned from the others; it restarts from
//! that disk at once. `sends` gives the fate of each message: it travels, it arrives in a later
//! turn of the same step (and may also travel, to arrive again), it is lost, or its sender or
//! receiver is cut off. `after` is the server's complete state: its node, and its disk.
//!
//! A server that starts, also for the first time, gets the inputs that the setting lists under
//! `starts` before any other. The steps under `prelude` come before the path's first step, and all
//! messages that are sent in them arrive at once.

use palisade_spec::raft::{Durable, Input, NodeId, Snapshot, StateMachine};
use serde_json::{Value, json};
use stateright::Model;

use super::action::Action;
use super::action_parts::{MessageFate, Turn};
use super::bounds::Elections;
use super::describe::DescribeMove;
use super::driver::NodeStep;
use super::environment::{Environment, Machine};
use super::replica::{Replica, Stimulus};
use super::setup::World;
use super::state::State;

impl<E: Environment> World<E> {
    /// The initial state of a path: each server, its disk, the network and the environment. A
    /// server whose state is not that of a node recovered from its disk leads from the beginning,
    /// or follows the leader.
    pub(super) fn setting_json(&self, initial: &State<E>) -> Value {
        let servers = initial.servers.iter().map(|replica| server(replica));
        let network = initial.network.iter().map(|message| json!(**message));
        json!({
            "bounds": format!("{:?}", self.bounds),
            "founders": self.bounds.servers,
            "joiners": self.bounds.joiners,
            "batch": self.bounds.batch,
            "inflight": self.bounds.inflight,
            "commits": self.bounds.commits,
            "machine": self.blank,
            "starts": self.starts(),
            "prelude": self.prelude,
            "servers": servers.collect::<Vec<_>>(),
            "network": network.collect::<Vec<_>>(),
            "environment": *initial.environment,
        })
    }

    /// The effect of an action.
    pub(super) fn event_json(&self, last: &State<E>, action: &Action<E>) -> Value {
        let turns: Vec<Value> = self.turns(last, action).iter().map(turn).collect();
        match action {
            Action::Step { server, stimulus, again, .. } => {
                json!({ "kind": kind(stimulus), "server": server, "again": again, "turns": turns })
            }
            Action::Crash(server) => {
                let after = self.after(last, action, *server);
                json!({ "kind": "crash", "server": server, "disk": disk(&last.server(*server).disk), "after": after })
            }
            Action::Snapshot(server) => {
                json!({ "kind": "snapshot", "server": server, "after": self.after(last, action, *server) })
            }
            Action::Lose(message) => json!({ "kind": "lose", "message": **message }),
            Action::Move { chosen, .. } => json!({ "kind": "move", "move": chosen.event(), "turns": turns }),
            Action::Cut(server) => json!({ "kind": "cut", "server": server }),
            Action::Heal(server) => json!({ "kind": "heal", "server": server }),
        }
    }

    /// The inputs that a server gets after recovery: with `Elections::AtWill`, servers do not wait
    /// for a leader.
    fn starts(&self) -> Value {
        match self.bounds.elections {
            Elections::AtWill => json!([{ "input": Input::<E::Machine>::ElectionTimeout, "done": false }]),
            Elections::StepByStep => json!([]),
        }
    }

    /// A server's state after an action.
    fn after(&self, last: &State<E>, action: &Action<E>, server: NodeId) -> Value {
        self.next_state(last, action.clone()).map_or(Value::Null, |next| complete(&next.server(server)))
    }
}

/// The complete state of a server.
fn complete<S: Machine>(replica: &Replica<S>) -> Value {
    json!({ "node": replica.node, "disk": replica.disk })
}

/// An input of a node.
fn given<S: Machine>(node_step: &NodeStep<S>) -> Value {
    json!({ "input": node_step.input, "done": node_step.done, "outputs": node_step.outputs.len() })
}

fn server<S: Machine>(replica: &Replica<S>) -> Value {
    let node = &replica.node;
    json!({
        "id": node.id(),
        "role": node.role(),
        "commit": node.commit(),
        "clock": node.clock(),
        "machine": node.machine().data(),
        "disk": disk(&replica.disk),
        "cut": replica.cut,
    })
}

fn disk<S: Machine>(disk: &Durable<S>) -> Value {
    let Snapshot { last, stamp, members, machine } = &disk.snapshot;
    let snapshot = json!({ "last": last, "stamp": stamp, "members": members, "machine": machine.data() });
    json!({ "hard": disk.hard, "snapshot": snapshot, "log": disk.log })
}

fn kind<S: StateMachine>(stimulus: &Stimulus<S>) -> &'static str {
    match stimulus {
        Stimulus::Deliver(_) => "deliver",
        Stimulus::Campaign => "campaign",
        Stimulus::ElectionTimeout => "election timeout",
        Stimulus::HeartbeatTimeout => "heartbeat timeout",
        Stimulus::Propose(_) => "propose",
        Stimulus::Change(_) => "change",
        Stimulus::Read(_) => "read",
        Stimulus::Transfer(_) => "transfer",
        Stimulus::Clock(_) => "clock",
        Stimulus::Compact(_) => "compact",
    }
}

fn fate(fate: MessageFate) -> &'static str {
    match fate {
        MessageFate::Travels => "travels",
        MessageFate::Arrives => "arrives",
        MessageFate::ArrivesAndTravels => "arrives and travels",
        MessageFate::Lost => "lost",
        MessageFate::CutOff => "cut off",
    }
}

fn turn<E: Environment>(turn: &Turn<E>) -> Value {
    let inputs: Vec<Value> = turn.node_steps.iter().map(given).collect();
    let crash = turn.crash.as_ref().map(|crash| {
        json!({
            "input": crash.input,
            "outputs": crash.outputs,
            "entries": crash.entries,
            "disk": disk(&crash.disk),
            "away": turn.stays_away(),
        })
    });
    let sends: Vec<Value> =
        turn.sent.iter().map(|(message, fate)| json!({ "message": **message, "fate": self::fate(*fate) })).collect();
    json!({
        "server": turn.server,
        "stimulus": kind(&turn.stimulus),
        "inputs": inputs,
        "crash": crash,
        "sends": sends,
        "after": complete(&turn.after),
    })
}
