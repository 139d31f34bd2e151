//! `palisade-conformance step-node`: a node that takes each step on a command from standard input,
//! for the [replay](crate::replay) that steps live nodes as a model was stepped.
//!
//! A stepped node is a process with a server's parts: the node, the driver that executes its
//! outputs, the write-ahead log in real files, the connections to its peers with their handshakes
//! and frames. It has no timers and accepts no clients, and takes an input only on a
//! [request](protocol::Request). The driver then steps the node exactly once and executes the
//! outputs. The answer has the effects, the node's new state, and what a restart would recover from
//! the disk. A request may name a point between two messages or in a write at which the process
//! halts, to be killed there.
//!
//! This does not exercise the decisions of a core iteration: which inputs are drained together, in
//! which order they are stepped, and when timers run out. None of them can break safety
//! (docs/protocol.md, "What the driver may decide").
//!
//! A stepped node listens on the loopback device only, and refuses every other address. A mark in
//! its directory keeps a server from serving it; and a stepped node refuses the directory of a
//! server.

pub mod command;
mod effect_log;
mod error;
mod observed_disk;
mod observed_transport;
pub mod protocol;
mod read_only_disk;
mod stepped_node;

use std::io::{self, BufRead};
use std::path::Path;
use std::sync::{Arc, mpsc};

use self::effect_log::EffectLog;
pub use self::error::StepperError;
use self::protocol::Answer;
use self::stepped_node::SteppedNode;

/// Steps the node of a directory on the requests of standard input, until its end.
///
/// # Errors
/// See [`StepperError`].
pub fn run(directory: &Path) -> Result<(), StepperError> {
    let effects = Arc::new(EffectLog::new());
    let lines = read_lines(Arc::clone(&effects)).map_err(StepperError::Stdio)?;
    let Ok(first) = lines.recv() else { return Ok(()) };
    let setting = serde_json::from_str(&first).map_err(StepperError::Setting)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(StepperError::Listen)?;
    let mut node = SteppedNode::begin(directory, setting, effects, runtime)?;
    node.answer(&Answer::Ready { peer_addr: node.peer_addr.to_string(), self_now: Box::new(node.now()?) })?;
    for line in lines {
        let answer = match serde_json::from_str(&line) {
            Ok(request) => node.request(request)?,
            Err(error) => Answer::Cannot(format!("the line is not a valid request: {error}")),
        };
        node.answer(&answer)?;
    }
    Ok(())
}

/// Reads standard input on a thread of its own, which notices the end of the input even while the
/// node is halted.
fn read_lines(effects: Arc<EffectLog>) -> io::Result<mpsc::Receiver<String>> {
    let (sender, lines) = mpsc::channel();
    let read = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        effects.input_ended();
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(lines)
}
