//! How proposals and what became of them are shown.

use palisade_spec::raft::NodeId;
use serde_json::{Value, json};

use super::{Proposals, Tape};
use crate::diagram::Tone;
use crate::facts::Facts;
use crate::world::{Legible, Shown, Told};

impl Legible for Tape {
    fn command(command: &u8) -> String {
        command.to_string()
    }

    fn content(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    fn data(&self) -> Value {
        json!(self)
    }
}

impl Shown for Proposals {
    fn facts(&self, facts: &mut Facts) {
        facts.fields("clients", [("proposed", format!("{} of {}", self.made, self.most))]);
    }

    fn lifelines(&self) -> Vec<String> {
        vec!["clients".to_string()]
    }

    fn notes(&self, _: &Proposals) -> Vec<(usize, String, Tone)> {
        Vec::new()
    }
}

/// The server to which a proposal is made.
impl Told for NodeId {
    fn sentence(&self) -> String {
        format!("a client's proposal arrives at server {self}")
    }

    fn event(&self) -> Value {
        json!({ "propose": self })
    }

    fn doer(&self) -> Option<usize> {
        Some(0)
    }

    fn label(&self) -> String {
        "propose".to_string()
    }
}
