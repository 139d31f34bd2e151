//! One suite for the clients of all languages: what a client must do (docs/clients.md), as scenarios
//! with faults that are run against each client.
//!
//! A client is driven through its adapter, a small program that takes commands from its input
//! ([`adapter`]). [`program`] finds the adapters. A scenario that cannot be run because a language's
//! tools are missing says SKIPPED and why; `PALISADE_CLIENTS=required` makes that a failure.
//!
//! A scenario is one function, and a test of each client: `cargo test -p palisade --test live
//! clients::python::` runs one client's.

#![allow(unreachable_pub, reason = "nothing outside this program can reach it")]

mod adapter;
mod clocks;
mod clusters;
mod faults;
mod holding;
mod links;
mod losing;
mod nightly;
mod one_address;
pub(crate) mod program;
mod queueing;
mod records;
mod rust_examples;
mod shared;
mod watching;

use program::Program;
pub use program::{Kind, folder, go, python};

/// If it is `required`, no scenario may be skipped.
const SKIPPING: &str = "PALISADE_CLIENTS";

/// Runs a scenario against a client.
fn run(kind: Kind, scenario: fn(&Program)) {
    unless_missing(kind.program(), |program| scenario(&program));
}

/// Runs a test, unless a tool is missing for it.
pub fn unless_missing<T>(tool: Result<T, String>, test: impl FnOnce(T)) {
    match tool {
        Ok(tool) => test(tool),
        Err(missing) if std::env::var_os(SKIPPING).is_some_and(|skipping| skipping == "required") => {
            panic!("{missing}; {SKIPPING}=required forbids to skip this scenario")
        }
        Err(missing) => eprintln!("SKIPPED: {missing}"),
    }
}

/// The tests of one client: every scenario, in the module that has the client's name.
macro_rules! client {
    ($client:ident, $kind:expr) => {
        client! { @with $client, $kind;
            clocks::setting_the_wall_clock_changes_nothing,
        }
    };
    // Those scenarios alone whose tools reach every program.
    (@portable $client:ident, $kind:expr) => {
        client! { @with $client, $kind; }
    };
    (@with $client:ident, $kind:expr; $($file:ident::$scenario:ident,)*) => {
        mod $client {
            use super::{Kind, run};

            client! { @tests $kind;
                $($file::$scenario,)*
                holding::a_lock_is_granted_shown_and_released,
                holding::a_held_lock_is_refused_at_once_without_a_wait,
                holding::a_lock_is_kept_while_its_holder_is_idle,
                holding::several_keys_are_one_grant,
                holding::readers_share_a_lock,
                holding::a_value_is_shown_and_replaced,
                holding::one_endpoint_that_is_a_follower_is_enough,
                holding::a_client_with_a_certificate_speaks_tls,
                queueing::waiters_are_granted_in_order_of_arrival,
                queueing::a_wait_ends_with_timeout,
                queueing::a_cancelled_wait_leaves_the_queue,
                faults::a_killed_leader_costs_no_lock,
                faults::a_killed_leader_costs_no_queue_position,
                faults::a_stopped_leader_costs_no_lock,
                faults::a_frozen_leader_costs_no_lock,
                faults::a_cut_connection_is_resumed,
                faults::a_lost_answer_to_an_acquire_is_one_grant,
                faults::a_lost_answer_to_a_grant_after_a_wait_is_one_grant,
                faults::a_lost_answer_to_a_release_is_a_release,
                losing::a_paused_client_says_that_its_lock_is_lost,
                losing::loss_is_reported_before_another_client_is_granted,
                losing::loss_is_reported_in_time_on_a_slow_network,
                losing::broken_lock_is_reported_lost,
                losing::a_lock_that_is_broken_while_its_client_is_cut_off_is_lost,
                losing::a_release_after_the_lease_is_lost,
                losing::a_killed_client_frees_its_lock_after_its_ttl,
                records::a_former_holder_writes_nothing,
                records::of_two_writes_to_one_version_one_is_done,
                records::a_lost_answer_to_a_write_of_a_holder_is_one_write,
                records::a_lost_answer_to_a_write_is_one_write,
                watching::locks_are_shown_and_listed,
                watching::a_watch_goes_on_when_nodes_are_killed,
                watching::a_compacted_past_is_told,
                one_address::one_address_before_all_nodes_is_enough,
            }
        }
    };
    (@tests $kind:expr; $($file:ident::$scenario:ident,)*) => {
        $(
            #[test]
            fn $scenario() {
                run($kind, super::$file::$scenario);
            }
        )*
    };
}

client!(rust, Kind::Rust);
client!(python, Kind::Python);
client!(python_asyncio, Kind::PythonAsyncio);
client!(typescript, Kind::TypeScript);
// libfaketime sets no clock of a Go program, which reads them without the C library.
client!(@portable go, Kind::Go);
