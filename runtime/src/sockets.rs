//! Detection of hosts that disappear without closing their connections, after a power or network
//! failure.
//!
//! TCP alone does not notice while a connection sends nothing, and takes a quarter of an hour when
//! it does send. A client that waits for a lock sends nothing, and without detection its waiter
//! would stay in the queue until the wait times out.

use std::time::Duration;

use rustix::io::Result;
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// Idle time of a connection before the first keepalive probe.
const IDLE: Duration = Duration::from_secs(10);
/// Time between two keepalive probes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered keepalive probes before the connection ends.
const PROBES: u32 = 2;
/// How long sent data may stay unacknowledged, in milliseconds: as long as all keepalive probes
/// take together.
const UNACKNOWLEDGED_MS: u32 = 20_000;

/// Enables TCP keepalive: the kernel probes a silent host, and ends the connection 20 s after the
/// host's last sign of life.
pub(crate) fn keep_alive(stream: &TcpStream) -> Result<()> {
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)
}

/// Enables keepalive, and limits how long sent data may stay unacknowledged: keepalive does not
/// probe while data is in flight.
pub(crate) fn notice_silence(stream: &TcpStream) -> Result<()> {
    keep_alive(stream)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS)
}
