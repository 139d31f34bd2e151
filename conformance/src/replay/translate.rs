//! Translates between the models' terms and the server's.
//!
//! Most models replicate a tape of numbers; the server replicates locks. So a number `n` becomes a
//! command that opens a session with the proof `n` and a time-to-live longer than any trace, and a
//! tape becomes the table in which these sessions were opened in this order. The translation is
//! exact: different numbers become different commands, the table keeps their order, and no session
//! is ever due, so that the passing of time changes such a table as little as a tape. Models that
//! replicate locks themselves need no translation.
//!
//! The members of a model have no addresses; here each member has its address at the gate.
//! Everything else is the same on both sides and stays unchanged.

use std::collections::BTreeMap;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Input, Message, NodeId};
use serde_json::{Value, json};

/// Time-to-live of a session that stands for a number, in milliseconds: one day. Traces last
/// seconds.
const TTL: u64 = 86_400_000;

/// The translator for one trace.
#[derive(Clone, Debug)]
pub struct Translation {
    /// Whether the model replicates a tape.
    is_tape: bool,
    /// The address of each member.
    addresses: BTreeMap<NodeId, String>,
}

impl Translation {
    /// A translator for a model whose state machine begins as `machine`, with these addresses.
    pub fn new(machine: &Value, addresses: BTreeMap<NodeId, String>) -> Translation {
        Translation { is_tape: machine.is_array(), addresses }
    }

    /// The server's state machine before the first entry.
    ///
    /// # Errors
    /// If `machine` is neither a blank tape nor a table.
    pub fn machine(&self, machine: &Value) -> serde_json::Result<LockTable> {
        if self.is_tape { Ok(LockTable::default()) } else { serde_json::from_value(machine.clone()) }
    }

    /// Translates an input of the model for a server. It does not translate messages: a server is
    /// given the message that the sending server really sent.
    ///
    /// # Errors
    /// If `input` is not an input.
    pub fn input(&self, input: &Value) -> serde_json::Result<Input<LockTable>> {
        let mut input = input.clone();
        self.to_server(&mut input);
        serde_json::from_value(input)
    }

    /// Translates a server's state or output to the model's terms.
    pub fn of_server(&self, value: &impl serde::Serialize) -> Value {
        let mut value = serde_json::to_value(value).expect("nodes and messages are plain values");
        self.to_model(&mut value);
        value
    }

    /// Whether a server's message is this message of the model.
    pub fn is_message(&self, message: &Message<LockTable>, model: &Value) -> bool {
        self.of_server(message) == *model
    }

    fn to_server(&self, value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(|value| self.to_server(value)),
            Value::Object(fields) => {
                if let Some(number) = fields.get("Command").and_then(Value::as_u64) {
                    let opening = json!({ "proof": [0, number], "owner": "", "ttl": TTL });
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
                    if let Some(opening) = fields.get("Command").map(|command| &command["Open"]["opening"]["proof"][1])
                    {
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
    sessions.iter().map(|session| session[0]["proof"][1].clone()).collect()
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Payload, Stamp, StateMachine};

    use super::*;

    fn translation() -> Translation {
        Translation::new(&json!([]), [(NodeId(4), "127.0.0.1:9".to_string())].into())
    }

    /// The table contains the numbers of a tape in their order.
    #[test]
    fn table_keeps_the_numbers_of_a_tape_in_order() {
        let translation = translation();
        let mut table = translation.machine(&json!([])).unwrap();
        for number in [3, 1, 2] {
            let propose = json!({ "Propose": { "id": 1, "payloads": [{ "Command": number }] } });
            let Input::Propose { payloads, .. } = translation.input(&propose).unwrap() else {
                panic!("a proposal stays a proposal")
            };
            let [Payload::Command(command)] = payloads.as_slice() else { panic!("one command stays one command") };
            table.apply(Stamp(number), command);
            assert_eq!(translation.of_server(&Payload::Command(command.clone())), json!({ "Command": number }));
        }
        assert_eq!(translation.of_server(&json!({ "machine": table }))["machine"], json!([3, 1, 2]));
        assert!(table.next_deadline() > Some(Stamp(TTL - 1)), "no session is ever due");
    }

    #[test]
    fn address_of_a_member_is_set_and_cleared() {
        let added = json!({ "Change": { "id": 1, "change": { "Add": { "id": 4, "address": "" } } } });
        let input = translation().input(&added).unwrap();
        assert!(format!("{input:?}").contains("127.0.0.1:9"));
        assert_eq!(translation().of_server(&input), added);
    }
}
