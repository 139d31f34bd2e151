//! Watches: the events of locks, as clients follow them at any node.
//!
//! Every node applies the same entries, and so has the same events. The core hands those of each
//! iteration to the [`Hub`], which keeps the newest of them in order ([`history`]). A [`Watcher`] belongs
//! to a task of its connection, and reads the history at its own pace ([`Follower`]). The core neither knows the
//! watchers nor waits for them: it appends to the history and wakes one task, the [dispatcher](dispatch),
//! if there is a watcher at all. The dispatcher wakes the watchers whose keys are concerned.
//!
//! So a watcher costs nothing while nothing happens to its keys, one that reads slowly costs no other
//! one anything, and one that is too slow finds that the history no longer has what it needs, and ends.
//! An event is encoded when the first watcher needs it, and all watchers share the text.
//!
//! Nothing here can break the safety of the locks: events are read, after they have happened, and nothing
//! flows back.

mod directory;
mod dispatch;
mod filter;
mod follow;
mod history;
mod hub;
mod notice;
mod watcher;

pub use filter::Filter;
pub use follow::{Follower, Listed, Progress, Shown};
pub use hub::{Feed, Hub};
pub(crate) use notice::share;
pub use watcher::{Told, Watcher};

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod tests;
