//! Shared display of the gallery's models: the names of clients, and the changes of a step.

use crate::state_table::StateTable;

/// A client of the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// The first.
    A,
    /// The second.
    B,
    /// The third, if the model has three.
    C,
}

impl Client {
    /// The clients of a model with two clients.
    pub const TWO: [Client; 2] = [Client::A, Client::B];
    /// The clients of a model with three clients.
    pub const THREE: [Client; 3] = [Client::A, Client::B, Client::C];

    /// The client's name.
    pub fn name(self) -> String {
        format!("client {self:?}")
    }

    /// The client's index in a list of clients.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A state that can be displayed.
pub(super) trait ToStateTable {
    /// The displayed content of the state.
    fn table(&self) -> StateTable;
}

/// The differences between `before` and `after`, a line for each.
pub(super) fn changes(before: &impl ToStateTable, after: &impl ToStateTable) -> String {
    after.table().since(&before.table()).join("\n")
}

/// The owner of a key, in a word.
pub(super) fn key(holder: Option<Client>) -> String {
    holder.map_or("free".to_string(), |client| format!("{client:?}"))
}
