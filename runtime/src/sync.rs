//! Mutexes, atomics and wake-ups for the structures that threads share. They import them from here, so that the loom
//! tests can substitute loom's (tests/loom).

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize};

pub(crate) use parking_lot::Mutex;
pub(crate) use tokio::sync::Notify;
