//! The lock that shared structures are built on. A file that threads share takes it from here, so that the loom tests
//! can put loom's in its place (tests/loom.rs).

pub(crate) use parking_lot::Mutex;
