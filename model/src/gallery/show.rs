//! What the stories share to be read: the names of clients, and what a step changes.

use crate::state_table::StateTable;

/// A client of the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// The first.
    A,
    /// The second.
    B,
    /// The third, where there is one.
    C,
}

impl Client {
    /// Those of a story with two clients.
    pub const TWO: [Client; 2] = [Client::A, Client::B];
    /// Those of a story with three clients.
    pub const THREE: [Client; 3] = [Client::A, Client::B, Client::C];

    /// What it is called.
    pub fn name(self) -> String {
        format!("client {self:?}")
    }

    /// Its place in a list of clients.
    pub fn place(self) -> usize {
        self as usize
    }
}

/// A state that can be told.
pub(super) trait ToStateTable {
    /// Everything that is worth saying of it.
    fn table(&self) -> StateTable;
}

/// What is different in `after` from what was in `before`, with a line for each.
pub(super) fn changes(before: &impl ToStateTable, after: &impl ToStateTable) -> String {
    after.table().since(&before.table()).join("\n")
}

/// Who has a key, in a word.
pub(super) fn key(holder: Option<Client>) -> String {
    holder.map_or("free".to_string(), |client| format!("{client:?}"))
}
