//! What the structures that threads share are built on. They import it from here, so that the loom tests
//! can substitute loom's (tests/loom).

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize};

pub(crate) use parking_lot::Mutex;
pub(crate) use tokio::sync::Notify;
