//! Models.
pub mod locks;
pub mod raft;
pub mod world;
