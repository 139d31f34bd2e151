//! Dropping a future gives up what it stood for: a wait, by being dropped, leaves the queue.
//! Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::wire::{Consistency, LockView};
use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};
use tokio::time::{Instant, sleep, timeout};

const KEY: &str = "examples/cancellation";

/// Reads the lock until it is as expected, or for 10 s: the client gives up claims in the background.
async fn read_until(client: &Client, expected: fn(&LockView) -> bool) -> Result<LockView, Error> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let lock = client.show_lock(KEY, Consistency::Linearizable).await?;
        if expected(&lock) || Instant::now() >= deadline {
            return Ok(lock);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let guard = client.lock(KEY, LockOptions::default().owner("holder")).await?;

    // A second task of the same program contends for the lock like any other client. Its wait is
    // cut short by dropping it: here by a timeout, just as well by `select!`, by aborting a task,
    // or by an HTTP client that disconnects.
    let waiting = client.lock(KEY, LockOptions::default().wait_forever().owner("waiter"));
    assert!(timeout(Duration::from_millis(300), waiting).await.is_err());

    let lock = read_until(&client, |lock| lock.queue.is_empty()).await?;
    println!("{} waiting after the future was dropped", lock.queue.len());

    drop(guard);
    let lock = read_until(&client, |lock| !lock.held).await?;
    println!("held after the guard was dropped: {}", lock.held);

    client.close().await;
    Ok(())
}
