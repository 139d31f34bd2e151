//! A minimal state machine for tests of the log, here and in `tests/wal`.

use palisade_spec::lock::Bytes;
use palisade_spec::raft::{Stamp, StateMachine};
use serde::{Deserialize, Serialize};

/// Has no state; its commands are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Tape;

impl StateMachine for Tape {
    type Command = Bytes;
    type Outcome = ();

    fn apply(&mut self, _: Stamp, _: &Bytes) {}

    fn advance(&mut self, _: Stamp) {}

    fn next_deadline(&self) -> Option<Stamp> {
        None
    }
}
