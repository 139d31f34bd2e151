//! Shared by the tests: a cluster in memory that checks every invariant after every step, and logs
//! the events in lines that resemble the dissertation's figures; `spec/tests/scripts/README.md`
//! explains them.
//!
//! | file | what it is |
//! |---|---|
//! | [`world`] | nodes, disks that *are* [`Durable`](palisade_spec::raft::Durable), and a controlled network; feeds a [`ClusterChecker`](palisade_spec::checker::ClusterChecker) |
//! | [`commands`] | random commands to a lock table |
//! | [`machine`] | what a state machine must provide for scripts; [`slate`] and [`locks`] implement it |
//! | [`print`] | formats messages, entries and nodes in one line each |
//! | [`script`] | the commands of a cluster's script |
//! | [`run`] | all scripts of a folder |

// Every test binary compiles this module, and uses only a part of it.
#![allow(dead_code)]

pub(crate) mod commands;
pub(crate) mod locks;
pub(crate) mod machine;
pub(crate) mod print;
pub(crate) mod run;
pub(crate) mod script;
pub(crate) mod slate;
pub(crate) mod world;
