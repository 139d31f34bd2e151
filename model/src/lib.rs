//! Models.
pub mod cluster;
pub mod locks;
pub mod raft;
pub mod world;
