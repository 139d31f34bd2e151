//! What the tests share: a cluster in memory that checks every invariant after every step, and tells what happens in
//! lines that read like the dissertation's figures.
//!
//! | file | what it is |
//! |---|---|
//! | [`world`] | nodes, disks that *are* [`Durable`](palisade_spec::raft::Durable), and a network that does as it is told |
//! | [`checker`] | the invariants, and three more of the harness's own |
//! | [`machine`] | what a state machine needs in order to be scripted; [`slate`] and [`locks`] are the two that are |
//! | [`print`] | messages, entries and nodes in one line each |
//! | [`script`] | the commands of a cluster's script |
//! | [`run`] | all scripts of a folder |

// Every test binary compiles this module, and uses its own part of it.
#![allow(dead_code)]

pub(crate) mod checker;
pub(crate) mod locks;
pub(crate) mod machine;
pub(crate) mod print;
pub(crate) mod run;
pub(crate) mod script;
pub(crate) mod slate;
pub(crate) mod world;
