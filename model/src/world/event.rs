//! What the adversary does, as data: enough to do it again with live servers.
//!
//! A turn is what happens to one server: the `inputs` of its node, in order, each in the form that
//! [`Input`] has in JSON; whether what the node asks for is `done` (if not, it asks only to
//! send messages, and they are lost); and how many outputs it asks for. A `crash` says at which input it happens,
//! counted from 0, after how many of that input's outputs, how many entries of the write that is next had been written
//! (null: nothing of it), what the disk has then, and whether the server stays `away`, cut off from the others; it comes
//! back from that disk at once. `sends` says what becomes of each message: it travels, it arrives in a later turn of the
//! same step (and travels, to arrive again), it is lost, or its sender or receiver is cut off. `after` is what the server is then, completely: its node, and its disk.
//!
//! A server that starts, for the first time too, is given what the setting names under `starts` before anything else. The
//! steps under `prelude` come before the first one of the path, and all that is sent in them arrives at once.

use palisade_spec::raft::{Durable, Input, NodeId, Snapshot, StateMachine};
use serde_json::{Value, json};
use stateright::Model;

use super::action::Action;
use super::action_parts::{MessageFate, Turn};
use super::bounds::Elections;
use super::driver::Fed;
use super::environment::{Environment, Machine};
use super::model::World;
use super::replica::{Replica, Stimulus};
use super::show::DescribeMove;
use super::state::State;

impl<E: Environment> World<E> {
    /// How a path begins: what each server is, what its disk has, what is on its way and what is around. A server whose
    /// state is not that of one which has just recovered from its disk leads from the beginning, or follows who does.
    pub(super) fn begin(&self, initial: &State<E>) -> Value {
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

    /// What an action does.
    pub(super) fn recount(&self, last: &State<E>, action: &Action<E>) -> Value {
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

    /// What a server is given when it has recovered: where elections are held at will, nobody waits for a leader.
    fn starts(&self) -> Value {
        match self.bounds.elections {
            Elections::AtWill => json!([{ "input": Input::<E::Machine>::ElectionTimeout, "done": false }]),
            Elections::StepByStep => json!([]),
        }
    }

    /// What a server is after an action.
    fn after(&self, last: &State<E>, action: &Action<E>, server: NodeId) -> Value {
        self.next_state(last, action.clone()).map_or(Value::Null, |next| complete(&next.server(server)))
    }
}

/// Everything that a server is.
fn complete<S: Machine>(replica: &Replica<S>) -> Value {
    json!({ "node": replica.node, "disk": replica.disk })
}

/// An input of a node.
fn given<S: Machine>(fed: &Fed<S>) -> Value {
    json!({ "input": fed.input, "done": fed.done, "outputs": fed.outputs.len() })
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
    let inputs: Vec<Value> = turn.fed.iter().map(given).collect();
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
