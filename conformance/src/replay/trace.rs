//! A trace, as `palisade-model trace --json` writes it: a line for how it begins, then one for every step.

use palisade_spec::raft::NodeId;
use serde::Deserialize;
use serde_json::Value;

/// A trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// How it begins.
    pub head: Head,
    /// What happens.
    pub steps: Vec<Step>,
}

/// The first line.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    /// The version of what is written here.
    pub format: u32,
    /// The model.
    pub model: String,
    /// What the trace shows.
    pub property: String,
    /// How the cluster begins; nothing, for a model that has none.
    pub setting: Option<Setting>,
}

/// How a cluster begins.
#[derive(Clone, Debug, Deserialize)]
pub struct Setting {
    /// How many servers found it: those with the lowest numbers.
    pub founders: u32,
    /// How many more there are.
    pub joiners: u32,
    /// How many entries an AppendEntries may have.
    pub batch: usize,
    /// How many entries may be sent to a follower and not acknowledged; as many as the server's, if the model says nothing.
    pub inflight: Option<u64>,
    /// How many entries a node may commit in one step, likewise.
    pub commits: Option<u64>,
    /// The state machine before the first entry.
    pub machine: Value,
    /// What every server is given when it has recovered.
    pub starts: Vec<Given>,
    /// What happens before the first step, in the form of steps' events.
    pub prelude: Vec<Event>,
}

/// A step.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// Which, counted from 1.
    pub step: usize,
    /// What happens, as a sentence.
    pub sentence: String,
    /// What happens.
    pub event: Event,
}

/// What the adversary does.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Which kind of action it is.
    pub kind: String,
    /// To whom, if it is done to one server.
    pub server: Option<NodeId>,
    /// What the environment does, if it is that.
    #[serde(rename = "move")]
    pub chosen: Option<Value>,
    /// Everybody's part in it.
    #[serde(default)]
    pub turns: Vec<Turn>,
    /// What the server is then, where nobody has a turn.
    pub after: Option<Value>,
    /// How much time passes, in models of the table alone.
    pub milliseconds: Option<u64>,
    /// What is applied to the table there.
    pub payload: Option<Value>,
    /// The table after it.
    pub table: Option<Value>,
}

/// What happens to one server.
#[derive(Clone, Debug, Deserialize)]
pub struct Turn {
    /// To which.
    pub server: NodeId,
    /// Why.
    pub stimulus: String,
    /// What its node is given.
    pub inputs: Vec<Given>,
    /// Where it crashes, if it does.
    pub crash: Option<Crash>,
    /// What the server is then: its `node`, and its `disk`; if the model knows.
    pub after: Option<Value>,
}

/// An input of a node.
#[derive(Clone, Debug, Deserialize)]
pub struct Given {
    /// In the model's terms.
    pub input: Value,
    /// Whether what the node asks for is done; else it is no more than to send messages, and they are lost.
    pub done: bool,
}

/// A crash on the way.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Crash {
    /// At which input, counted from 0.
    pub input: usize,
    /// After how many of what it asked for.
    pub outputs: usize,
    /// How much of the write that is next was done: so many entries after the removal of what was in their place; of a snapshot,
    /// all but the removal of what it replaces. Nothing of it, if `None`.
    pub entries: Option<usize>,
}

/// Why something is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is not in the form that traces have.
    #[error("line {line} makes no sense as a line of a trace: {source}")]
    Line {
        /// Which, counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// There is nothing.
    #[error("a trace has a line for its beginning, at least")]
    Empty,
    /// It is in another form.
    #[error("the trace is in format {0}, and this program reads format {FORMAT}")]
    Format(u32),
    /// Its model has no servers.
    #[error("the model {0} has no servers that could be replayed")]
    NoServers(String),
}

/// The only format this program reads.
const FORMAT: u32 = 1;

impl Trace {
    /// Reads a trace, a value for each line.
    ///
    /// # Errors
    /// If it is none, or of a model without servers.
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

    /// How its cluster begins.
    ///
    /// # Panics
    /// Never: a trace without servers is not read.
    pub fn setting(&self) -> &Setting {
        self.head.setting.as_ref().expect("a trace without servers is not read")
    }
}
