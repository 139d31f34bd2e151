//! Export for Knossos and Jepsen: EDN, one event per line.
//!
//! ```text
//! {:process 0, :type :invoke, :f :acquire, :value ["k" {:session "s1", :wait_ms 500}], :time 1000000, :index 1, …}
//! {:process 0, :type :ok, :f :acquire, :value ["k" {:granted {:session "s1", :token 7}}], :time 2000000, :index 2, …}
//! ```
//!
//! `:value` is `[key what]`, the form in which Jepsen's `independent` checks each key separately;
//! the key is `nil` for operations on sessions only. A `:fail` and an `:info` repeat the
//! invocation's `:value`, as Knossos requires, and give the reason under `:error`. `:process` is a
//! [process](super::processes), because a Knossos process does one thing at a time and a client of
//! ours does not. `:op` and `:client` are our own fields, which other checkers ignore. Notes and
//! the header, which are not operations, have `:process :nemesis`, which Knossos leaves out.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::edn::Edn;
use super::processes::processes;
use super::{Call, Event, History, OpId};

/// Writes a history as EDN lines.
///
/// # Errors
/// If writing to `into` fails.
pub fn write(history: &History, mut into: impl Write) -> io::Result<()> {
    let processes = processes(history.operations.iter().map(|operation| (operation.invoked, operation.completed())));
    let processes =
        history.operations.iter().zip(processes).map(|(operation, process)| (operation.id, (process, &operation.call)));
    let processes: HashMap<OpId, (usize, &Call)> = processes.collect();
    for (index, event) in history.events().into_iter().enumerate() {
        writeln!(into, "{}", line(index, &event, &processes))?;
    }
    Ok(())
}

fn line(index: usize, event: &Event, processes: &HashMap<OpId, (usize, &Call)>) -> Edn {
    let (op, time, kind) = match event {
        Event::History { .. } => return nemesis(index, "history", plain(event)),
        Event::Note { .. } => return nemesis(index, "note", plain(event)),
        Event::Invoke { op, time, .. } => (*op, *time, "invoke"),
        Event::Ok { op, time, .. } => (*op, *time, "ok"),
        Event::Fail { op, time, .. } => (*op, *time, "fail"),
        Event::Info { op, time, .. } => (*op, *time, "info"),
    };
    let (process, call) = processes[&op];
    let (f, key, asked) = parts(call);
    let (value, error) = match event {
        Event::Ok { value, .. } => (plain(value), None),
        Event::Fail { error, .. } => (asked, Some(plain(error))),
        Event::Info { why, .. } => (asked, Some(json!(why))),
        _ => (asked, None),
    };
    let mut entries = vec![
        ("process", Edn::Int(process as u64)),
        ("type", Edn::keyword(kind)),
        ("f", Edn::keyword(&f)),
        ("value", Edn::Vector(vec![key.into(), value.into()])),
        ("time", Edn::Int(time.0)),
        ("index", Edn::Int(index as u64)),
        ("op", Edn::Int(op.0)),
    ];
    if let Event::Invoke { client, .. } = event {
        entries.push(("client", Edn::Text(client.to_string())));
    }
    entries.extend(error.map(|error| ("error", error.into())));
    Edn::Map(entries.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

fn nemesis(index: usize, f: &str, value: Value) -> Edn {
    let time = value.get("time").cloned().unwrap_or(json!(0));
    let entries = [
        ("process", Edn::keyword("nemesis")),
        ("type", Edn::keyword("info")),
        ("f", Edn::keyword(f)),
        ("value", value.into()),
        ("time", time.into()),
        ("index", Edn::Int(index as u64)),
    ];
    Edn::Map(entries.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

fn plain(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("events have names and numbers only")
}

/// A call's name, key and other fields.
fn parts(call: &Call) -> (String, Value, Value) {
    let Value::Object(call) = plain(call) else { unreachable!("calls have fields") };
    let (f, mut fields) = call.into_iter().next().expect("a call has a name");
    let key = fields.as_object_mut().and_then(|fields| fields.remove("key")).unwrap_or(Value::Null);
    (f, key, fields)
}
