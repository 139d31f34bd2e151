//! Real processes: what clients, operators and other nodes see of a running cluster, and what they can do to it. They share one
//! program, whose tests run beside one another; `cargo test -p palisade --test live api::` runs one module's.

mod abuse;
mod api;
mod crowded_client;
mod durability;
mod exactly_once;
mod failover;
mod founding;
mod ledger;
mod lock_command;
mod membership;
mod recording;
mod scarcity;
mod snapshots;
mod support;
mod ttl;
mod wall_clock;
