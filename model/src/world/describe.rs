//! Descriptions of an environment and its moves, for tables, sentences and diagrams.

use crate::diagram::Tone;
use crate::state_table::StateTable;

/// Text forms of an environment.
pub trait DescribeEnvironment {
    /// Adds the environment's state to the table.
    fn table(&self, table: &mut StateTable);

    /// The participants beside the servers: their lifelines on a diagram.
    fn lifelines(&self) -> Vec<String>;

    /// What the participants learned or did since `before`: the lifeline, counted from 0, and a
    /// note.
    fn notes(&self, before: &Self) -> Vec<(usize, String, Tone)>;
}

/// Text and data forms of an environment's move.
pub trait DescribeMove {
    /// The move as a sentence.
    fn sentence(&self) -> String;

    /// The move as data.
    fn event(&self) -> serde_json::Value;

    /// The participant that makes the move: its lifeline, counted from 0; `None` if the move
    /// concerns all.
    fn participant(&self) -> Option<usize>;

    /// A short label for an arrow or a note.
    fn label(&self) -> String {
        self.sentence()
    }
}
