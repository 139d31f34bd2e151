//! The core: the one thread that owns the node.
//!
//! The core waits for inputs, takes as many as there are, steps the node through all of them,
//! writes and syncs once, and releases every output that follows the write (group commit). Nothing
//! else touches the node. Inputs come through two channels; answers leave through
//! [`Outbox`](crate::outbox::Outbox)es and one-shot channels, which never block the core.
//!
//! The protocol leaves open what the core decides itself (how many inputs an iteration takes, in
//! which order it steps their kinds, when timers fire): any order of inputs is safe. The core's
//! obligations to the protocol are in [`palisade_spec::raft::interface`]; [`driver`] meets them,
//! without threads or channels.

mod access;
mod admission;
mod channel;
pub mod credential;
mod driver;
mod founding;
mod freshness;
mod locks;
mod observer;
mod openers;
mod pending_requests;
mod query;
mod read;
mod readable;
mod records;
pub mod request;
mod respond;
mod sessions;
mod snapshot_scheduler;
mod snapshot_writer;
mod thread;
mod timers;
mod transactions;
mod transport;
mod validate;
mod view;
mod waits;

pub use access::{check as check_access, document as access_document};
pub use admission::Quotas;
pub use channel::{Core, CoreInbox, Event, NotTaken, SnapshotReply};
pub use credential::{NO_PRINCIPAL, Secret, session_id, session_proof};
pub use driver::{Batch, Driver, DriverParts};
pub use observer::Observer;
pub use pending_requests::not_leading;
pub use query::Query;
pub use read::{listing_of, weight_of_listing};
pub use request::Request;
pub use respond::{ConnectionId, Responder, Room, StreamReply};
pub use snapshot_scheduler::{SnapshotPolicy, SnapshotWriter};
pub use snapshot_writer::start as start_snapshot_writer;
pub use thread::start;
pub use timers::Timing;
pub use transport::Transport;
pub use view::{Reachability, SharedView, View, member_views};
