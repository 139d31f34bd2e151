//! Tests of the client against a simulated cluster with faults.

mod cancellation;
mod discovery;
mod exactly_once;
mod holds;
mod lease;
mod many_tasks;
mod sessions;
mod support;
mod waiting;
mod wire_golden;
