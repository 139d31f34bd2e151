//! Real processes: how clients, operators and other nodes see a running cluster, and what they can
//! do to it. The tests share one program and run in parallel; `cargo test -p palisade --test live
//! api::` runs one module's.

mod abuse;
mod admin_address;
mod api;
mod audit;
mod clients;
mod described;
mod durability;
mod exactly_once;
mod examples;
mod failover;
mod forwarding;
mod founding;
mod hold;
mod ledger;
mod lock_command;
mod membership;
mod operating;
mod packaging;
mod page;
mod recipes;
mod recording;
mod scarcity;
mod shared_client;
mod signed_tokens;
mod snapshots;
mod support;
mod tls;
mod ttl;
mod upgrade;
mod wall_clock;
