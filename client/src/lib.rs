//! The async Rust client of Palisade.
//!
//! ```no_run
//! use std::time::Duration;
//! use palisade_client::{Client, LockOptions, Options, parse_endpoints};
//!
//! # async fn write_report(_fence: u64) -> std::io::Result<()> { Ok(()) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&parse_endpoints("127.0.0.1:7401,7402,7403")?, Options::default()).await?;
//! let guard = client.lock("reports/nightly", LockOptions::default().wait(Duration::from_secs(10))).await?;
//! tokio::select! {
//!     done = write_report(guard.token()) => done?,
//!     () = guard.lost() => eprintln!("stop: another client may hold the lock soon"),
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **A [`Guard`] excludes.** Each guard has a session of its own, so two tasks of one client that lock the same key
//!   exclude one another like two machines. Sessions are reused, one guard after the other. Code that is called under a
//!   guard and takes the lock as well holds it once more ([`Guard::hold_again`]).
//! - **Every operation takes effect once.** An unanswered operation is sent again under the same number, after lost
//!   replies, lost connections and changes of leader; the server applies a number once.
//! - **A guard knows first.** [`Guard::lost`] resolves before the server can grant the lock to another session, as long
//!   as this process runs, and the leader's clock runs at most 1% fast, this machine's at most 1% slow ([`margin`]).
//! - **Nothing leaks.** Dropping a guard releases the lock, or its own hold of several; dropping a [`Client::lock`] future
//!   withdraws the claim; both in the background; if no node can be reached, the session expires.
//!
//! # What it cannot promise
//!
//! A process that was stopped, or a machine that was suspended, can act after the end of its lease before it checks.
//! ([`Guard::is_valid`] is right at once then, [`Guard::lost`] resolves within 200 ms: see [`BootInstant`].) Send
//! [`Guard::token`] to the resource, and let the resource refuse a token lower than the highest it has seen: that is safe
//! whatever clocks do.
//!
//! # How it is built
//!
//! A [`Client`] is a handle to one background task, which owns one connection to the leader. The task is a loop
//! (`task`) around a state machine without sockets (`engine`), which is given commands, answers and the time, and gives
//! back frames to send. `route` finds the leader; `connection` is the WebSocket.

pub mod codec;
pub mod recipes;
pub mod tls;
pub mod wire;

mod client;
mod clock;
mod connection;
mod endpoints;
mod engine;
mod error;
mod escape;
mod guard;
mod lease;
mod oneshot;
mod options;
mod route;
mod task;
mod watch;

pub use client::Client;
pub use clock::{BootInstant, sleep_until};
pub use endpoints::{DEFAULT_ENDPOINTS, endpoints_from_env, parse_endpoints};
pub use error::Error;
pub use escape::{escaped, escaped_json};
pub use guard::Guard;
pub use lease::margin;
pub use options::{LockOptions, Options, Wait};
pub use tls::{DialError, Security, TlsError};
pub use watch::{WatchPosition, Watcher};
