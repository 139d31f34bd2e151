//! Bounds the handshakes of TLS that are in progress at a port: each may have 64 KiB in memory before the node
//! knows anything of the other side, and takes time of the port's thread. Those above the bound wait for their turn,
//! and those of an address above its part wait for one another, so that many at one address delay none elsewhere.

use tokio::sync::Semaphore;

use crate::addresses::ClientAddress;
use crate::per_address::{PerAddress, part};

/// The handshakes at a port.
#[derive(Debug)]
pub(crate) struct Handshakes {
    limit: usize,
    all: Semaphore,
    by_address: PerAddress<Semaphore>,
}

impl Handshakes {
    /// At most `limit` at once.
    pub(crate) fn new(limit: usize) -> Handshakes {
        Handshakes { limit, all: Semaphore::new(limit), by_address: PerAddress::default() }
    }

    /// Runs a handshake when it is its turn.
    pub(crate) async fn run<T>(&self, address: ClientAddress, handshake: impl Future<Output = T>) -> T {
        let of_address = self.by_address.enter(address, || Semaphore::new(part(self.limit, address)));
        // No semaphore is ever closed.
        let _turn_of_address = of_address.acquire().await;
        let _turn = self.all.acquire().await;
        handshake.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    /// Goal: an address whose handshakes never end has its eighth of them in progress, and no client
    /// at another address waits; the handshakes of all addresses have one bound.
    #[tokio::test]
    async fn handshakes_in_progress_are_bounded() {
        let (handshakes, begun) = (Arc::new(Handshakes::new(16)), Arc::new(AtomicUsize::new(0)));
        let address = |network, host| ClientAddress::of([10, 0, network, host].into());
        let flood = async |host| {
            for _ in 0..100 {
                let (handshakes, begun) = (Arc::clone(&handshakes), Arc::clone(&begun));
                tokio::spawn(async move {
                    let endless = async {
                        begun.fetch_add(1, Ordering::Relaxed);
                        pending::<()>().await
                    };
                    handshakes.run(address(0, host), endless).await
                });
            }
            sleep(Duration::from_millis(20)).await;
            begun.load(Ordering::Relaxed)
        };
        let honest =
            async |host| timeout(Duration::from_millis(200), handshakes.run(address(1, host), async {})).await.is_ok();
        assert_eq!(flood(1).await, 2);
        assert!(honest(1).await);
        for host in 2..=8 {
            assert_eq!(flood(host).await, 2 * usize::from(host));
        }
        assert!(!honest(2).await, "sixteen are in progress");
        assert_eq!(flood(9).await, 16);
    }
}
