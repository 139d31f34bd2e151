//! Hosts that vanish: without a word, because the power or the network went.
//!
//! TCP by itself does not notice while nothing is sent, and takes a quarter of an hour if something is. A client that
//! waits for a lock sends nothing, and its place in the queue would live as long as its wait.

use std::time::Duration;

use rustix::io::Result;
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// How long a connection is silent before the other host is asked whether it is still there.
const IDLE: Duration = Duration::from_secs(10);
/// How long it has for each answer.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many answers it may owe.
const PROBES: u32 = 2;
/// How long what was sent may go unacknowledged: as long as all that takes together.
const UNACKNOWLEDGED_MS: u32 = 20_000;

/// Has the system ask a silent host whether it is still there, and end the connection 20 s after it last was.
pub(crate) fn keep_alive(stream: &TcpStream) -> Result<()> {
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)
}

/// The same, whether or not something is on its way to it.
pub(crate) fn notice_silence(stream: &TcpStream) -> Result<()> {
    keep_alive(stream)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS)
}
