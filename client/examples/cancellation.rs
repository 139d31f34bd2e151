//! Dropping a future gives up what it stood for: a wait, by being dropped, leaves the queue.
//! Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::wire::Consistency;
use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};
use tokio::time::{sleep, timeout};

const KEY: &str = "examples/cancellation";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let guard = client.lock(KEY, LockOptions::default().owner("holder")).await?;

    // A second task of the same program contends for the lock like any other client. Its wait is
    // cut short by dropping it: here by a timeout, just as well by `select!`, by aborting a task,
    // or by an HTTP client that disconnects.
    let waiting = client.lock(KEY, LockOptions::default().wait_forever().owner("waiter"));
    assert!(timeout(Duration::from_millis(300), waiting).await.is_err());

    // The withdrawal is sent in the background.
    sleep(Duration::from_millis(200)).await;
    let lock = client.show_lock(KEY, Consistency::Linearizable).await?;
    println!("{} waiting after the future was dropped", lock.queue.len());

    drop(guard);
    sleep(Duration::from_millis(200)).await;
    let lock = client.show_lock(KEY, Consistency::Linearizable).await?;
    println!("held after the guard was dropped: {}", lock.held);

    client.close().await;
    Ok(())
}
