//! What the stories share to be read: the names of clients, and a state as a short list of its parts.

use std::fmt;

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

    /// Its place in a list of clients.
    pub fn place(self) -> usize {
        self as usize
    }
}

/// A state that is read as a list of its parts, always the same ones in the same order.
pub(super) trait Parts {
    /// What each part is now, in a few words.
    fn parts(&self) -> Vec<String>;
}

/// A state in one line, or with a line for each part in the alternate form, which the Explorer shows.
pub(super) fn write(state: &impl Parts, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&state.parts().join(if f.alternate() { "\n" } else { "; " }))
}

/// The parts of `after` that are not as they were in `before`.
pub(super) fn changes(before: &impl Parts, after: &impl Parts) -> String {
    let pairs = before.parts().into_iter().zip(after.parts());
    pairs.filter(|(old, new)| old != new).map(|(_, new)| new).collect::<Vec<_>>().join("; ")
}

/// Who has a key, in a word.
pub(super) fn key(holder: Option<Client>) -> String {
    holder.map_or("free".to_string(), |client| format!("{client:?}"))
}
