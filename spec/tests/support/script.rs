//! The commands of a cluster's script. The output lists the effects of a command in the order in
//! which they happen; the effects of a received message are indented below it.

use std::error::Error;
use std::sync::Arc;

use goldenscript::{Context, Runner};
use palisade_spec::raft::{
    Address, Body, Change, Config, Entry, HardState, Hint, Index, Input, Members, Message, NodeId, Payload, Position,
    ReadRound, RequestId, Snapshot, Stamp, Term,
};

use super::machine::Scripted;
use super::print;
use super::world::{EventLog, World};

/// Runs a script over a cluster of state machines `S`.
pub(crate) struct ClusterScript<S: Scripted> {
    world: World<S>,
}

/// The commands of a script.
#[derive(goldenscript::Command)]
pub(crate) enum Command {
    /// Starts a cluster of this many nodes, with limits on a batch, on entries in flight, on
    /// commits per step, and on the gap between stamps.
    Cluster {
        nodes: u32,
        #[arg(key)]
        batch: Option<usize>,
        #[arg(key)]
        inflight: Option<u64>,
        #[arg(key)]
        commits: Option<u64>,
        #[arg(key)]
        gap: Option<u64>,
    },
    /// Gives a node a disk whose log has no-ops of these terms, like a row of figure 3.6, and
    /// restarts it.
    Disk {
        id: u32,
        #[arg(key)]
        term: u64,
        #[arg(key)]
        vote: Option<u32>,
        #[arg(optional)]
        terms: Vec<u64>,
    },
    /// The node's election timer runs out.
    Election {
        id: u32,
    },
    /// Lets the reachable nodes forget their leader; the node campaigns, and all messages are
    /// delivered.
    Elect {
        id: u32,
    },
    /// The node's heartbeat timer runs out.
    Heartbeat {
        id: u32,
    },
    /// The node's monotonic clock advances.
    Clock {
        id: u32,
        milliseconds: u64,
    },
    /// Clients propose commands to a node, in one input; `noop` is a no-op.
    Propose {
        id: u32,
        #[arg(optional)]
        commands: Vec<String>,
    },
    /// Delivers the messages in flight in the order in which they were sent: all of them, or those
    /// of one sender or recipient, or only the nth of these. With `again=true` a copy stays in
    /// flight.
    Deliver {
        #[arg(key)]
        from: Option<u32>,
        #[arg(key)]
        to: Option<u32>,
        #[arg(key)]
        nth: Option<usize>,
        #[arg(key, optional)]
        again: bool,
    },
    /// Loses the messages that `deliver` would deliver.
    Drop {
        #[arg(key)]
        from: Option<u32>,
        #[arg(key)]
        to: Option<u32>,
        #[arg(key)]
        nth: Option<usize>,
    },
    /// Delivers all messages, and those sent in response, until none is in flight.
    Settle,
    /// Shows the messages in flight.
    Flight,
    /// Separates these nodes from the others. The messages in flight between them are lost.
    Partition {
        ids: Vec<u32>,
    },
    /// Cuts the link between two nodes in both directions, and leaves the others unchanged.
    Cut {
        one: u32,
        other: u32,
    },
    /// Ends all partitions and restores every link.
    Heal,
    /// Makes the node's outputs wait from now on.
    Hold {
        id: u32,
    },
    /// Executes all pending outputs, or the first `count` of them; timers do not count. With
    /// `merged=true`, one sync at the place of the first write makes all writes durable.
    Flush {
        id: u32,
        #[arg(key)]
        count: Option<usize>,
        #[arg(key, optional)]
        merged: bool,
    },
    /// Crashes the node after this many pending outputs and, if `torn` is given, after this many
    /// entries of the next write.
    Crash {
        id: u32,
        #[arg(key, optional)]
        after: usize,
        #[arg(key)]
        torn: Option<usize>,
    },
    /// Restarts the node; with `lost`, from an old copy of its disk, without the log from this
    /// entry on.
    Restart {
        id: u32,
        #[arg(key)]
        lost: Option<u64>,
    },
    /// The node's driver takes a snapshot of the state after this entry, without reporting it to
    /// the node.
    Snapshot {
        id: u32,
        through: u64,
    },
    /// The node's driver reports that a durable snapshot includes everything up to this entry.
    Compact {
        id: u32,
        through: u64,
    },
    /// Starts a server with a blank disk that knows of no cluster yet.
    Join {
        id: u32,
    },
    /// An operator asks a node to add a server, to promote a learner, or to remove a member.
    Add {
        id: u32,
        server: u32,
    },
    Promote {
        id: u32,
        learner: u32,
    },
    Remove {
        id: u32,
        member: u32,
    },
    /// Replaces a member that has lost its disk by a new one.
    Replace {
        id: u32,
        lost: u32,
        by: u32,
    },
    /// A client asks a node for a read with this number.
    Read {
        id: u32,
        number: u64,
    },
    /// An operator asks a node to transfer its leadership, to this node if one is given.
    Transfer {
        id: u32,
        #[arg(key)]
        to: Option<u32>,
    },
    /// Delivers a made-up message, addressed to this node unless `addressed` says otherwise.
    /// Entries are no-ops, written `index@term/stamp`; a snapshot has the initial state.
    Receive {
        to: u32,
        kind: String,
        #[arg(key)]
        from: u32,
        #[arg(key)]
        term: u64,
        #[arg(key)]
        addressed: Option<u32>,
        #[arg(key)]
        at: Option<String>,
        #[arg(key)]
        entries: Option<String>,
        #[arg(key, optional)]
        commit: u64,
        #[arg(key, optional)]
        stamp: u64,
        #[arg(key, optional)]
        index: u64,
        #[arg(key, optional)]
        granted: bool,
        #[arg(key, optional)]
        transfer: bool,
        #[arg(key, optional)]
        round: u64,
    },
    /// Shows all nodes, or the named ones.
    Status {
        #[arg(optional)]
        ids: Vec<u32>,
    },
    /// Includes timers in the output from now on.
    Timers,
}

impl<S: Scripted> ClusterScript<S> {
    /// Creates an empty cluster: a script begins with `cluster`.
    pub(crate) fn new() -> ClusterScript<S> {
        ClusterScript { world: World::new([]) }
    }

    fn start(&mut self, nodes: u32, limits: impl Fn(&mut Config)) {
        self.world = World::new((1..=nodes).map(|id| {
            let mut config = Config::new(NodeId(id));
            limits(&mut config);
            config
        }));
        self.world.event_log = EventLog { on: true, ..EventLog::default() };
    }

    fn disk(&mut self, id: u32, term: u64, vote: Option<u32>, terms: &[u64]) {
        self.world.replica(NodeId(id)).node = None;
        self.world.change_disk(NodeId(id), |disk| {
            disk.hard = HardState { term: Term(term), vote: vote.map(NodeId) };
            for &term in terms {
                let index = disk.log.last().index.next();
                disk.log.push(Entry { term: Term(term), index, stamp: Stamp(0), payload: Payload::Noop });
            }
        });
        self.world.restart(NodeId(id)).expect("the disk has what it was given");
    }

    /// The indexes, in the messages in flight, that a command selects.
    fn select(&self, from: Option<u32>, to: Option<u32>, nth: Option<usize>) -> Result<Vec<usize>, Box<dyn Error>> {
        let matches = |end: Option<u32>, id: NodeId| end.is_none_or(|end| NodeId(end) == id);
        let flight = self.world.flight.iter().enumerate();
        let positions = flight.filter(|(_, message)| matches(from, message.from) && matches(to, message.to));
        let positions: Vec<usize> = positions.map(|(position, _)| position).collect();
        match nth {
            Some(nth) => Ok(vec![*positions.get(nth - 1).ok_or("there is no such message")?]),
            None if positions.is_empty() => Err("there is no such message".into()),
            None => Ok(positions),
        }
    }

    fn status(&mut self, ids: &[u32]) {
        for (id, replica) in &self.world.replicas {
            if ids.is_empty() || ids.contains(&id.0) {
                let line = match &replica.node {
                    Some(node) => print::node(node),
                    None => format!("n{id} down, {}", print::disk(&replica.disk)),
                };
                self.world.event_log.lines.push(line);
            }
        }
    }

    fn execute(&mut self, command: &Command) -> Result<(), Box<dyn Error>> {
        let world = &mut self.world;
        match command {
            Command::Cluster { nodes, batch, inflight, commits, gap } => self.start(*nodes, |config| {
                config.max_batch = batch.unwrap_or(config.max_batch);
                config.max_inflight = inflight.unwrap_or(config.max_inflight);
                config.max_commits = commits.unwrap_or(config.max_commits);
                config.max_stamp_gap = gap.unwrap_or(config.max_stamp_gap);
            }),
            Command::Disk { id, term, vote, terms } => self.disk(*id, *term, *vote, terms),
            Command::Election { id } => check(world.step(NodeId(*id), Input::ElectionTimeout))?,
            Command::Elect { id } => check(world.elect(NodeId(*id)))?,
            Command::Heartbeat { id } => check(world.step(NodeId(*id), Input::HeartbeatTimeout))?,
            Command::Clock { id, milliseconds } => {
                check(world.step(NodeId(*id), Input::ClockAdvanced(*milliseconds)))?;
            }
            Command::Propose { id, commands } => {
                let payloads = commands.iter().map(|text| S::parse_payload(text)).collect::<Result<_, _>>()?;
                check(world.propose(NodeId(*id), payloads))?;
            }
            Command::Deliver { from, to, nth, again } => {
                let positions = self.select(*from, *to, *nth)?;
                let chosen: Vec<_> = positions.iter().map(|&position| self.world.flight[position].clone()).collect();
                if !again {
                    positions.iter().rev().for_each(|&position| drop(self.world.flight.remove(position)));
                }
                chosen.into_iter().try_for_each(|message| check(self.world.arrive(message)))?;
            }
            Command::Drop { from, to, nth } => {
                for position in self.select(*from, *to, *nth)?.into_iter().rev() {
                    self.world.flight.remove(position);
                }
            }
            Command::Settle => check(world.settle())?,
            Command::Flight => world.event_log.lines.extend(world.flight.iter().map(print::message::<S>)),
            Command::Partition { ids } => {
                let inside = |id: NodeId| ids.contains(&id.0);
                world.cut(|from, to| inside(from) != inside(to));
            }
            Command::Cut { one, other } => {
                let (one, other, before) = (NodeId(*one), NodeId(*other), world.cut.clone());
                world.cut(|from, to| {
                    before.contains(&(from, to)) || (from, to) == (one, other) || (from, to) == (other, one)
                });
            }
            Command::Heal => world.cut(|_, _| false),
            Command::Hold { id } => world.replica(NodeId(*id)).held = true,
            Command::Flush { id, count, merged } => {
                if *merged {
                    world.merge_writes(NodeId(*id));
                }
                world.replica(NodeId(*id)).held = count.is_some();
                check(world.flush(NodeId(*id), count.unwrap_or(usize::MAX)))?;
            }
            Command::Crash { id, after, torn } => check(world.crash(NodeId(*id), *after, *torn))?,
            Command::Restart { id, lost } => {
                if let Some(lost) = lost {
                    world.change_disk(NodeId(*id), |disk| disk.log.truncate(Index(*lost)));
                }
                check(world.restart(NodeId(*id)))?;
            }
            Command::Snapshot { id, through } => check(world.snapshot(NodeId(*id), Index(*through)))?,
            Command::Compact { id, through } => check(world.step(NodeId(*id), Input::Compact(Index(*through))))?,
            Command::Join { id } => world.start_node(Config::new(NodeId(*id)), Members::default()),
            Command::Add { id, server } => {
                let change = Change::Add { id: NodeId(*server), address: Address::from("") };
                check(world.change(NodeId(*id), change))?;
            }
            Command::Promote { id, learner } => {
                check(world.change(NodeId(*id), Change::Promote(NodeId(*learner))))?;
            }
            Command::Remove { id, member } => {
                check(world.change(NodeId(*id), Change::Remove(NodeId(*member))))?;
            }
            Command::Replace { id, lost, by } => {
                let (lost, by, address) = (NodeId(*lost), NodeId(*by), Address::from(""));
                check(world.change(NodeId(*id), Change::Replace { lost, by, address }))?;
            }
            Command::Read { id, number } => check(world.step(NodeId(*id), Input::Read(RequestId(*number))))?,
            Command::Transfer { id, to } => check(world.transfer(NodeId(*id), to.map(NodeId)))?,
            Command::Receive { to, from, term, addressed, .. } => {
                let (from, addressed, term) = (NodeId(*from), NodeId(addressed.unwrap_or(*to)), Term(*term));
                let message = Message { from, to: addressed, term, body: made_up::<S>(command)? };
                world.checker.messages_are_made_up();
                check(world.step(NodeId(*to), Input::Receive(message)))?;
            }
            Command::Status { ids } => self.status(ids),
            Command::Timers => world.event_log.timers = true,
        }
        Ok(())
    }
}

impl<S: Scripted> Runner for ClusterScript<S> {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        self.world.event_log.lines.clear();
        self.execute(command)?;
        Ok(self.world.event_log.lines.iter().map(|line| format!("{line}\n")).collect())
    }
}

fn check(check: palisade_spec::invariants::Check) -> Result<(), Box<dyn Error>> {
    check.map_err(|violation| violation.to_string().into())
}

/// The body of a made-up message.
fn made_up<S: Scripted>(command: &Command) -> Result<Body<S>, Box<dyn Error>> {
    let Command::Receive { kind, at, entries, commit, stamp, index, granted, transfer, round, .. } = command else {
        unreachable!()
    };
    let round = ReadRound(*round);
    let at = at.as_deref().map(position).transpose()?.unwrap_or_default();
    Ok(match kind.as_str() {
        "PreVote" => Body::PreVote { last: at },
        "PreVoteReply" => Body::PreVoteReply { granted: *granted },
        "RequestVote" => Body::RequestVote { last: at, transfer: *transfer },
        "TimeoutNow" => Body::TimeoutNow,
        "RequestVoteReply" => Body::RequestVoteReply { granted: *granted },
        "AppendEntries" => {
            let entries = entries.as_deref().unwrap_or_default().split_whitespace().map(entry::<S>);
            let entries = entries.collect::<Result<_, _>>()?;
            Body::AppendEntries { prev: at, entries, commit: Index(*commit), stamp: Stamp(*stamp), round }
        }
        "AppendAccepted" => Body::AppendAccepted { matched: Index(*index), round },
        "AppendRejected" => Body::AppendRejected { prev: Index(*index), hint: Hint::Short { next: Index(1) }, round },
        "InstallSnapshot" => {
            let snapshot = Snapshot { last: at, stamp: Stamp(*stamp), members: Arc::default(), machine: S::default() };
            Body::InstallSnapshot { snapshot: Arc::new(snapshot) }
        }
        _ => return Err(format!("{kind} is not a message").into()),
    })
}

fn position(text: &str) -> Result<Position, Box<dyn Error>> {
    let (index, term) = text.split_once('@').ok_or("a position is index@term")?;
    Ok(Position { index: Index(index.parse()?), term: Term(term.parse()?) })
}

fn entry<S: Scripted>(text: &str) -> Result<Entry<S::Command>, Box<dyn Error>> {
    let (at, stamp) = text.split_once('/').ok_or("an entry is index@term/stamp")?;
    let Position { index, term } = position(at)?;
    Ok(Entry { term, index, stamp: Stamp(stamp.parse()?), payload: Payload::Noop })
}
