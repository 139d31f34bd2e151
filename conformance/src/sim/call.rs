//! Identifiers of clients and of their requests.

use palisade::core::ConnectionId;

/// A client's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientId(pub(super) u16);

/// One request on one connection. A repetition is another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallId {
    pub(super) client: ClientId,
    /// Counted by the client.
    pub(super) number: u64,
    pub(super) connection: ConnectionId,
}
