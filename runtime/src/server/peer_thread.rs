//! A thread for the connections between nodes, apart from those for clients.
//!
//! A client may keep the threads that serve clients busy: it asks for long lists over many connections, or begins many
//! watches. If the leader's heartbeats waited behind that, the followers would elect another leader. So the connections
//! between nodes have a thread of their own, and the system divides the processors between it and the others
//! (docs/decisions/0039).

use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The event loop of the connections between nodes. It ends, and they with it, when this is dropped.
#[derive(Debug)]
pub(super) struct PeerThread {
    /// Where to spawn the tasks of these connections.
    pub(super) handle: Handle,
    _ends: oneshot::Sender<()>,
}

impl PeerThread {
    pub(super) fn start() -> io::Result<PeerThread> {
        let event_loop = Builder::new_current_thread().enable_all().build()?;
        let handle = event_loop.handle().clone();
        let (ends, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("peers".into()).spawn(move || {
            // The other half sends nothing; it is dropped.
            let _ = event_loop.block_on(ended);
            event_loop.shutdown_background();
        })?;
        Ok(PeerThread { handle, _ends: ends })
    }
}
