//! Stop working when the lock can no longer be trusted. Start it, and stop the cluster while it
//! works. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};
use tokio::time::sleep;

async fn work() {
    for step in 1..=30 {
        println!("step {step}");
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let options = LockOptions::default().ttl(Duration::from_secs(5)).owner("lost");
    let guard = client.lock("examples/lost", options).await?;

    // The branch that ends first wins; the other one is dropped, so the work stops at its next
    // await.
    tokio::select! {
        () = work() => {
            guard.release().await?;
            println!("done, and the lock was held all the time");
        }
        () = guard.lost() => println!("another client may get the lock in a moment: stopped in the middle"),
    }
    Ok(())
}
