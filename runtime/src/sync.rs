//! The mutex of the structures that threads share. They import it from here, so that the loom tests
//! can substitute loom's (tests/loom.rs).

pub(crate) use parking_lot::Mutex;
