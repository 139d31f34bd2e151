//! Raft, as a function.
//!
//! A [`Node`] is a value. [`Node::step`] takes one [`Input`], changes the value, and lists the
//! [`Output`]s that a driver must carry out, in an order that is part of the protocol (see
//! [`interface`]). It replicates any [`StateMachine`]; it knows nothing of locks.
//!
//! # The rules and their files
//!
//! | rule | file | dissertation |
//! |---|---|---|
//! | one vote a term, durable before it is granted; only to an up-to-date log | [`election`] | §3.4, §3.6.1 |
//! | PreVote; protection of a live leader; CheckQuorum | [`election`] | §9.6, §4.2.3, §6.2 |
//! | consistency check with hints; truncation of conflicts; batches and pipelines | [`replication`], [`progress`] | §3.5, §10.2.1 |
//! | commit by a majority, own term only; apply in order | [`commit`] | §3.6.2 |
//! | log compaction; InstallSnapshot for lagging followers | [`snapshot`] | §5 |
//! | a new leader's no-op | [`election`] | §6.4 |
//! | members change one at a time, in the log, after an own-term commit; learners first | [`membership`], [`members`] | §4 |
//! | reads wait until a majority has confirmed the leader | [`read`] | §6.4 |
//! | leadership transfer to a voter with the whole log | [`transfer`] | §3.10 |
//! | cluster time: the leader's clock stamps entries, heartbeats carry it; a clock belongs to a log | [`clock`] | ours |
//!
//! # Non-goals
//!
//! Deliberately absent: joint consensus (one server at a time is enough here), reads by lease or at
//! followers, clocks, timers (a node only says when to restart one), retries (heartbeats detect
//! lost messages), and sizes in bytes.

pub mod clock;
pub mod commit;
mod config;
mod durable;
pub mod election;
mod ids;
pub mod interface;
mod log;
mod machine;
pub mod members;
pub mod membership;
mod message;
mod node;
#[cfg(test)]
pub(crate) mod parts;
pub mod progress;
pub mod read;
pub mod replication;
mod role;
pub mod snapshot;
pub mod transfer;

pub use config::Config;
pub use durable::{Durable, HardState, Persist, Snapshot};
pub use ids::{Index, MAX_NUMBER, MAX_TERM_ADVANCE, NodeId, ReadId, ReadRound, Stamp, Term};
pub(crate) use ids::{in_range, number};
pub use interface::{DropReason, Input, Output};
pub use log::{Entry, Log, Payload, Position};
pub use machine::StateMachine;
pub use members::{Address, Change, Member, Members, Refusal, Standing};
pub use message::{Body, Hint, Message};
pub use node::Node;
pub use progress::{Progress, ProgressState};
pub use read::Reads;
pub use role::{Leadership, Role};
