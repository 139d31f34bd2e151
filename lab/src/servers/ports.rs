//! Free ports that two labs at once do not choose both.
//!
//! Ports are taken from a range below the one from which the system takes ports for outgoing
//! connections. A chosen port is reserved by an abstract Unix socket of its name: no two processes
//! can bind it, it leaves no file, the system frees it when the process ends, and it belongs to the
//! network namespace, as the port does. The reservation bridges the time until the server listens,
//! and the time in which a stopped server does not.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rand::Rng;

use super::error::Error;

/// Below 32768, where Linux begins with ports for outgoing connections.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A port that no other lab chooses while this value lives.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) number: u16,
    _reservation: UnixListener,
}

impl Port {
    /// The address on which a server listens.
    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

/// Reserves ports: consecutive ones from `first` on, or any that are free.
///
/// # Errors
/// [`Error::Port`] if one of the consecutive ports is in use, or if no port is free.
pub(super) fn reserve(count: usize, first: Option<u16>) -> Result<Vec<Port>, Error> {
    match first {
        Some(first) => (0..count).map(|offset| reserve_exactly(first, offset)).collect(),
        None => reserve_any(count),
    }
}

fn reserve_exactly(first: u16, offset: usize) -> Result<Port, Error> {
    let number = u16::try_from(offset)
        .ok()
        .and_then(|offset| first.checked_add(offset))
        .ok_or_else(|| Error::Port(format!("there are not enough ports after {first}; choose a lower first port")))?;
    try_port(number)?.ok_or_else(|| {
        Error::Port(format!(
            "127.0.0.1:{number} is in use; choose another first port, or none, which selects free ports"
        ))
    })
}

fn reserve_any(count: usize) -> Result<Vec<Port>, Error> {
    let size = RANGE.end - RANGE.start;
    let start = rand::rng().random_range(0..size);
    let mut ports = Vec::with_capacity(count);
    for step in 0..size {
        if ports.len() == count {
            break;
        }
        let number = RANGE.start + (start + step) % size;
        ports.extend(try_port(number)?);
    }
    if ports.len() < count {
        return Err(Error::Port(format!(
            "fewer than {count} ports from {} to {} are free; end the servers that use them",
            RANGE.start,
            RANGE.end - 1
        )));
    }
    Ok(ports)
}

/// Reserves the port; none if it is in use or reserved.
fn try_port(number: u16) -> Result<Option<Port>, Error> {
    let failed = |what: &str, error: std::io::Error| Error::Port(format!("cannot {what} port {number}: {error}"));
    let name = SocketAddr::from_abstract_name(format!("palisade-lab/port/{number}"))
        .map_err(|error| failed("name the reservation of", error))?;
    let reservation = match UnixListener::bind_addr(&name) {
        Ok(reservation) => reservation,
        Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
        Err(error) => return Err(failed("reserve", error)),
    };
    // The listener is closed at once, and no connection was made: the server can bind the port.
    match TcpListener::bind(("127.0.0.1", number)) {
        Ok(_) => Ok(Some(Port { number, _reservation: reservation })),
        Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => Ok(None),
        Err(error) => Err(failed("bind", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_port_is_not_given_twice() {
        let first = reserve(20, None).unwrap();
        let second = reserve(20, None).unwrap();
        for port in &second {
            assert!(first.iter().all(|other| other.number != port.number), "port {} was given twice", port.number);
        }
        let error = reserve(1, Some(first[0].number)).unwrap_err().to_string();
        assert!(error.contains("is in use"), "{error}");
    }

    #[test]
    fn dropped_reservation_frees_the_port() {
        let number = reserve(1, None).unwrap()[0].number;
        reserve(1, Some(number)).unwrap();
    }

    #[test]
    fn port_in_use_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = listener.local_addr().unwrap().port();
        let error = reserve(1, Some(number)).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{number} is in use")), "{error}");
    }
}
