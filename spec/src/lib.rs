//! Palisade's protocol, as pure functions.
//!
//! This crate has the transition functions that the model checker explores and that the server
//! executes. It is `no_std` and forbids unsafe code, so the compiler ensures that it uses no clock,
//! socket, file, thread or randomness. Everything that is not deterministic comes in as an
//! [`Input`](raft::Input); every effect goes out as an [`Output`](raft::Output).
//!
//! | module | what it is | what it knows |
//! |---|---|---|
//! | [`raft`] | consensus: [`Node`](raft::Node), generic over the state machine it replicates | no locks |
//! | [`lock`] | the replicated state machine: [`LockTable`](lock::LockTable), sessions, queues, fencing tokens | of Raft, only the [`StateMachine`](raft::StateMachine) trait |
//! | [`invariants`] | safety properties, one a file, as functions over plain states | both |
//! | [`checker`] | [`ClusterChecker`](checker::ClusterChecker), which judges them all over a run of a cluster | all of these |
//!
//! docs/protocol.md has the glossary, the rules, the output contract and the differences from the
//! dissertation (D. Ongaro, *Consensus: Bridging Theory and Practice*, 2014; cited here as "§3.4",
//! "figure 3.1").

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod checker;
pub mod invariants;
pub mod lock;
pub mod raft;
