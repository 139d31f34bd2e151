//! The traces that `palisade-model trace --json` writes: a line for the starting state, then a line
//! for each step.

use palisade_spec::raft::NodeId;
use serde::Deserialize;
use serde_json::Value;

/// A trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The starting state.
    pub head: Head,
    /// The steps.
    pub steps: Vec<Step>,
}

/// The first line.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    /// Version of the format.
    pub format: u32,
    /// The model's name.
    pub model: String,
    /// The property that the trace shows.
    pub property: String,
    /// The cluster's starting state; `None` for a model without servers.
    pub setting: Option<Setting>,
}

/// A cluster's starting state and configuration.
#[derive(Clone, Debug, Deserialize)]
pub struct Setting {
    /// Number of founding servers: those with the lowest IDs.
    pub founders: u32,
    /// Number of servers that may join later.
    pub joiners: u32,
    /// Maximum number of entries in an AppendEntries.
    pub batch: usize,
    /// Maximum number of unacknowledged entries in flight to a follower; `None` for the server's
    /// default.
    pub inflight: Option<u64>,
    /// Maximum number of entries that a node commits in one step; `None` for the server's default.
    pub commits: Option<u64>,
    /// The state machine before the first entry.
    pub machine: Value,
    /// Inputs that every server is given after it has recovered.
    pub starts: Vec<Given>,
    /// Events before the first step.
    pub prelude: Vec<Event>,
}

/// A step.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// Number of the step, from 1.
    pub step: usize,
    /// What happens, as a sentence.
    pub sentence: String,
    /// What happens.
    pub event: Event,
}

/// An action of the adversary.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Kind of the action.
    pub kind: String,
    /// The server, if the action concerns one.
    pub server: Option<NodeId>,
    /// The action of the environment, if it is one.
    #[serde(rename = "move")]
    pub chosen: Option<Value>,
    /// What happens to each server.
    #[serde(default)]
    pub turns: Vec<Turn>,
    /// The server's state after the action, if it has no turn.
    pub after: Option<Value>,
    /// The time that passes, in milliseconds, in models that have only a table.
    pub milliseconds: Option<u64>,
    /// The payload applied to the table, in these models.
    pub payload: Option<Value>,
    /// The table after the payload was applied.
    pub table: Option<Value>,
}

/// What happens to one server in an event.
#[derive(Clone, Debug, Deserialize)]
pub struct Turn {
    /// The server.
    pub server: NodeId,
    /// What caused the inputs.
    pub stimulus: String,
    /// The inputs given to its node.
    pub inputs: Vec<Given>,
    /// Where the server crashes, if it does.
    pub crash: Option<Crash>,
    /// The server's `node` and `disk` after the turn, if the model knows them.
    pub after: Option<Value>,
}

/// An input of a node.
#[derive(Clone, Debug, Deserialize)]
pub struct Given {
    /// The input, in the model's terms.
    pub input: Value,
    /// Whether the node's outputs are executed. If not, they are only messages, and these are
    /// lost.
    pub done: bool,
}

/// A crash during a turn.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Crash {
    /// The input at which the server crashes, counted from 0.
    pub input: usize,
    /// Number of outputs that were executed before the crash.
    pub outputs: usize,
    /// How much of the next write was done: of entries, this many after the removal of those that
    /// they replace; of a snapshot, everything except the removal of what it replaces. `None`:
    /// nothing of it.
    pub entries: Option<usize>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line does not have the format of a trace.
    #[error("line {line} is not a line of a trace: {source}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The trace has no lines.
    #[error("the trace is empty: the first line, with the starting state, is missing")]
    Empty,
    /// The trace has another format.
    #[error("the trace is in format {0}, and this program reads format {FORMAT}")]
    Format(u32),
    /// The model has no servers.
    #[error("the model {0} has no servers, so its traces cannot be replayed")]
    NoServers(String),
}

/// The only format this program reads.
const FORMAT: u32 = 1;

impl Trace {
    /// Reads a trace from one JSON value per line.
    ///
    /// # Errors
    /// If a line does not parse, or the model has no servers.
    pub fn read(lines: impl IntoIterator<Item = Value>) -> Result<Trace, TraceError> {
        let mut lines = lines.into_iter().enumerate();
        let wrong = |at: usize| move |source| TraceError::Line { line: at + 1, source };
        let (_, first) = lines.next().ok_or(TraceError::Empty)?;
        let head: Head = serde_json::from_value(first).map_err(wrong(0))?;
        if head.format != FORMAT {
            return Err(TraceError::Format(head.format));
        }
        if head.setting.is_none() {
            return Err(TraceError::NoServers(head.model));
        }
        let steps = lines.map(|(at, line)| serde_json::from_value(line).map_err(wrong(at)));
        Ok(Trace { head, steps: steps.collect::<Result<_, _>>()? })
    }

    /// The cluster's starting state.
    ///
    /// # Panics
    /// Never: `read` rejects a trace without servers.
    pub fn setting(&self) -> &Setting {
        self.head.setting.as_ref().expect("a trace without servers is not read")
    }
}
