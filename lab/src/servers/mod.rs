//! The real servers, with pinned configurations, for experiments and for `palisade-lab up`.
//!
//! ```no_run
//! use palisade_lab::servers::{self, Kind, Options};
//!
//! # async fn example() -> Result<(), servers::Error> {
//! let redlock = servers::start(Kind::Redlock, &Options::default()).await?;
//! println!("{} at {}", redlock.version(), redlock.endpoints().join(","));
//! redlock.pause(0)?;
//! redlock.resume(0)?;
//! redlock.kill(1).await?;
//! redlock.restart(1).await?;
//! # Ok(())
//! # } // All five end here, and their directory is removed.
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `cluster` | [`Cluster`]: running servers of one kind, and what can be done to each |
//! | `plan`, `kinds`, `redis`, `etcd`, … | how each kind is started, and when it serves |
//! | `config`, `lab/config/` | the pinned configurations, and how an experiment replaces a setting |
//! | `process` | processes by their identity: ID and start time |
//! | `ports`, `home`, `find`, `clock` | free ports, directories, programs, clocks of their own |
//! | `signing` | [`Signing`]: keys with which the nodes of Palisade sign their grants |
//! | `link` | [`Link`]: a network link that an experiment can interrupt |
//! | `up`, `down`, `state` | the commands, and the file by which `down` finds what `up` has started |

mod clock;
mod cluster;
mod config;
mod down;
mod error;
mod etcd;
mod find;
mod home;
mod http;
mod kinds;
mod link;
pub mod objects;
mod options;
mod palisade;
mod plan;
mod ports;
mod postgres;
mod process;
mod redis;
mod signing;
mod state;
mod up;
mod zookeeper;

pub use cluster::{Cluster, Stopped};
pub use down::Down;
pub use error::Error;
pub use find::{Missing, missing};
pub(crate) use home::Home;
pub use link::Link;
pub use options::{Durability, Kind, Options};
pub use process::Identity;
pub use signing::Signing;
pub use state::{Node, Server, State};
pub use up::{Target, Up};
pub(crate) use zookeeper::state as zookeeper_state;

/// Starts the servers of a kind and waits until all of them serve.
///
/// # Errors
/// A program is missing, the directory or a port is unfit, or a server ends or does not serve in time.
/// What was started is ended, and the directory is removed.
pub async fn start(kind: Kind, options: &Options) -> Result<Cluster, Error> {
    let missing = missing(&[kind], options);
    if !missing.is_empty() {
        return Err(Error::Missing(missing));
    }
    let durable = kinds::is_durable(kind, options) && !options.allow_tmpfs;
    let home = home::Home::make(options.dir.as_deref(), kind.name(), durable, !options.outlive)?;
    let plan = kinds::plan(kind, options, home.path()).await?;
    Cluster::start(kind, options, home, plan).await
}
