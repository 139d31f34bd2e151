//! The model's terms and the server's.
//!
//! Most models replicate a tape that remembers numbers; the server replicates locks. So a number `n` becomes a command that
//! opens a session with the nonce `n`, which lives for longer than any trace, and a tape becomes the table in which these
//! sessions were opened in this order. That is exact: the commands are different ones for different numbers, the table tells
//! which came in which order, and nothing of it is ever due, so time alone changes it as little as it changes a tape.
//! Models that replicate locks themselves need no translation.
//!
//! In models members have no addresses; here they have that of the gate. Everything else is the same on both sides, and is
//! translated by leaving it alone.

use std::collections::BTreeMap;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Input, Message, NodeId};
use serde_json::{Value, json};

/// How long a session lives that stands for a number: a day, and no trace has more than seconds.
const TTL: u64 = 86_400_000;

/// The translator for one trace.
#[derive(Clone, Debug)]
pub struct Translation {
    /// Whether the model replicates a tape.
    is_tape: bool,
    /// Where each member is reached.
    addresses: BTreeMap<NodeId, String>,
}

impl Translation {
    /// For a model whose state machine begins as `machine`, and members that are reached at these addresses.
    pub fn new(machine: &Value, addresses: BTreeMap<NodeId, String>) -> Translation {
        Translation { is_tape: machine.is_array(), addresses }
    }

    /// The state machine before the first entry.
    ///
    /// # Errors
    /// If it is neither a blank tape nor a table.
    pub fn machine(&self, machine: &Value) -> serde_json::Result<LockTable> {
        if self.is_tape { Ok(LockTable::default()) } else { serde_json::from_value(machine.clone()) }
    }

    /// An input of the model's, for a server. A message is none: of those, the server's own words are taken.
    ///
    /// # Errors
    /// If it is no input.
    pub fn input(&self, input: &Value) -> serde_json::Result<Input<LockTable>> {
        let mut input = input.clone();
        self.to_server(&mut input);
        serde_json::from_value(input)
    }

    /// Something that a server is or says, in the model's terms.
    pub fn of_server(&self, said: &impl serde::Serialize) -> Value {
        let mut said = serde_json::to_value(said).expect("what nodes are and say are plain values");
        self.to_model(&mut said);
        said
    }

    /// Whether a server's message is this one of the model.
    pub fn is_message(&self, message: &Message<LockTable>, model: &Value) -> bool {
        self.of_server(message) == *model
    }

    fn to_server(&self, value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(|value| self.to_server(value)),
            Value::Object(fields) => {
                if let Some(number) = fields.get("Command").and_then(Value::as_u64) {
                    let opening = json!({ "nonce": number, "owner": "", "ttl": TTL });
                    fields.insert("Command".into(), json!({ "Open": { "opening": opening } }));
                }
                let added =
                    fields.get("by").or(fields.get("id")).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
                if let (Some(id), true) = (added, fields.contains_key("address")) {
                    let address = self.addresses.get(&NodeId(id)).cloned().unwrap_or_default();
                    fields.insert("address".into(), address.into());
                }
                fields.values_mut().for_each(|value| self.to_server(value));
            }
            _ => {}
        }
    }

    fn to_model(&self, value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(|value| self.to_model(value)),
            Value::Object(fields) => {
                if let Some(address) = fields.get_mut("address") {
                    *address = "".into();
                }
                if self.is_tape {
                    if let Some(machine) = fields.get_mut("machine") {
                        *machine = tape(machine);
                    }
                    if let Some(opening) = fields.get("Command").map(|command| &command["Open"]["opening"]["nonce"]) {
                        let number = opening.clone();
                        fields.insert("Command".into(), number);
                    }
                }
                fields.values_mut().for_each(|value| self.to_model(value));
            }
            _ => {}
        }
    }
}

/// The tape that a table stands for: the sessions in the order in which they were opened.
fn tape(table: &Value) -> Value {
    let sessions = table["sessions"].as_array().map_or(&[][..], Vec::as_slice);
    sessions.iter().map(|session| session[0]["nonce"].clone()).collect()
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Payload, Stamp, StateMachine};

    use super::*;

    fn translation() -> Translation {
        Translation::new(&json!([]), [(NodeId(4), "127.0.0.1:9".to_string())].into())
    }

    /// Whatever is written on a tape can be read off the table again, in its order.
    #[test]
    fn a_tape_is_a_table() {
        let translation = translation();
        let mut table = translation.machine(&json!([])).unwrap();
        for number in [3, 1, 2] {
            let Input::Propose(payloads) = translation.input(&json!({ "Propose": [{ "Command": number }] })).unwrap()
            else {
                panic!("a proposal stays one")
            };
            let [Payload::Command(command)] = payloads.as_slice() else { panic!("one command stays one") };
            table.apply(Stamp(number), command);
            assert_eq!(translation.of_server(&Payload::Command(command.clone())), json!({ "Command": number }));
        }
        assert_eq!(translation.of_server(&json!({ "machine": table }))["machine"], json!([3, 1, 2]));
        assert!(table.next_deadline() > Some(Stamp(TTL - 1)), "nothing is ever due");
    }

    #[test]
    fn a_member_gets_its_address_and_loses_it_again() {
        let added = json!({ "Change": { "Add": { "id": 4, "address": "" } } });
        let input = translation().input(&added).unwrap();
        assert!(format!("{input:?}").contains("127.0.0.1:9"));
        assert_eq!(translation().of_server(&input), added);
    }
}
