//! The client, against a cluster that fails at will.

mod cancellation;
mod crowd;
mod discovery;
mod exactly_once;
mod lease;
mod sessions;
mod support;
mod waiting;
mod wire_golden;
