//! Export for checkers like Porcupine: JSON, one whole operation per line.
//!
//! ```text
//! {"Version":1,"DriftPpm":0}
//! {"ClientId":0,"Input":{"acquire":{…}},"Call":1000000,"Output":{"ok":{"granted":{…}}},"Return":2000000,"Op":1,"Client":"a","Notes":[],"End":2000000}
//! ```
//!
//! The first line is the header. `ClientId`, `Input`, `Call`, `Output` and `Return` are the fields
//! of `porcupine.Operation`, so that every line except the first can be decoded into one. An
//! operation with an unknown outcome returns after all others, with `Output` `null`: a model must
//! then accept any effect, including none. `ClientId` is a [process](super::processes). The other
//! fields are ours: `End` is the time at which the client gave up, `Why` the reason.

use std::io::{self, Write};

use serde::Serialize;

use super::event::VERSION;
use super::processes::processes;
use super::{Answer, Call, Client, End, History, Note, OpId, Operation, Refusal, Time};

/// Facts about the whole history.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Header {
    version: u32,
    drift_ppm: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Line {
    client_id: usize,
    input: Call,
    call: Time,
    output: Option<Output>,
    #[serde(rename = "Return")]
    returns: Time,
    op: OpId,
    client: Client,
    notes: Vec<(Time, Note)>,
    end: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Output {
    Ok(Answer),
    Fail(Refusal),
}

/// Writes a history: its header, then its operations.
///
/// # Errors
/// If writing to `into` fails.
pub fn write(history: &History, mut into: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut into, &Header { version: VERSION, drift_ppm: history.drift_ppm })?;
    into.write_all(b"\n")?;
    let operations = &history.operations;
    let processes = processes(operations.iter().map(|operation| (operation.invoked, operation.completed())));
    let moments =
        operations.iter().flat_map(|operation| [Some(operation.invoked), operation.end.as_ref().map(|(at, _)| *at)]);
    let after_all = Time(moments.flatten().max().map_or(0, |last| last.0 + 1));
    for (operation, client_id) in operations.iter().zip(processes) {
        let Operation { id: op, client, invoked, call, notes, end } = operation.clone();
        let returns = operation.completed().min(after_all);
        let ended = end.as_ref().map(|(time, _)| *time);
        let (output, why) = match end.map(|(_, end)| end) {
            Some(End::Ok(answer)) => (Some(Output::Ok(answer)), None),
            Some(End::Fail(refusal)) => (Some(Output::Fail(refusal)), None),
            Some(End::Info(why)) => (None, Some(why)),
            None => (None, None),
        };
        let line = Line { client_id, input: call, call: invoked, output, returns, op, client, notes, end: ended, why };
        serde_json::to_writer(&mut into, &line)?;
        into.write_all(b"\n")?;
    }
    Ok(())
}
