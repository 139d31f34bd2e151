//! Raft, as a function.
//!
//! A [`Node`] is a value. [`Node::step`] takes one [`Input`], changes the value, and lists the [`Output`]s that a
//! driver must carry out, in an order that is part of the protocol (see [`interface`]). It replicates any
//! [`StateMachine`]; it knows nothing of locks.
//!
//! # The rules, and where they stand
//!
//! | rule | file | dissertation |
//! |---|---|---|
//! | one vote a term, durable before it is given; only to an up-to-date log | [`election`] | §3.4, §3.6.1 |
//! | ask before you campaign; a live leader is not disturbed; a leader without a quorum steps down | [`election`] | §9.6, §4.2.3, §6.2 |
//! | entries fit or are refused with a hint; conflicts give way; batches and pipelines | [`replication`], [`progress`] | §3.5, §10.2.1 |
//! | a majority commits, own term only; apply in order | [`commit`] | §3.6.2 |
//! | the log's beginning gives way to a snapshot; who lacks it is sent that | [`snapshot`] | §5 |
//! | a new leader's no-op | [`election`] | §6.4 |
//! | members change one at a time, in the log, after an own-term commit; learners first | [`membership`], [`members`] | §4 |
//! | reads wait until a majority has confirmed the leader | [`read`] | §6.4 |
//! | a leader transfers leadership to who has its whole log | [`transfer`] | §3.10 |
//! | cluster time: entries are stamped by the leader's clock, which heartbeats carry on; a clock belongs to a log | [`clock`] | ours |
//!
//! # What is not here
//!
//! Deliberately absent: joint consensus (one server at a time is enough here), reads by lease or at followers, clocks,
//! timers (a node only says when one is to be started afresh), retries (heartbeats find what was lost), and any
//! knowledge of how many bytes anything has.

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
