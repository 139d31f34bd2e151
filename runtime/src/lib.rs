//! The Palisade server.
//!
//! One thread owns the node and runs the functions of [`palisade_spec`]; the other modules carry
//! inputs to that thread and outputs away from it. docs/architecture.md has the map.

pub mod accounts;
pub mod addresses;
pub mod audit;
pub mod budget;
mod certificate_end;
pub mod core;
pub mod descriptors;
pub mod grant_signer;
pub mod http;
pub mod limits;
mod log_pause;
mod member_address;
pub mod metrics;
mod outbox;
pub mod peers;
mod per_address;
pub mod recording;
pub mod server;
mod sockets;
mod stopwatch;
pub mod storage;
mod sync;
pub mod tls;
pub mod watch;
