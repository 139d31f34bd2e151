//! Workers that start when the schema is migrated, by whichever process does that: a latch is closed until a client
//! opens it, and open from then on, also for workers that come later. `barrier` waits for several. Needs a cluster:
//! `cargo run -- dev`.

use std::time::Duration;

use palisade_client::recipes::Latch;
use palisade_client::{Client, Error, Options, endpoints_from_env};
use tokio::time::timeout;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let migrated = Latch::new(&client, "examples/schema/7");
    println!("open at first: {}", migrated.is_open().await?);

    let worker = tokio::spawn({
        let migrated = migrated.clone();
        async move { timeout(Duration::from_secs(60), migrated.wait()).await }
    });
    println!("the schema is migrated now");
    migrated.open().await?;
    match worker.await {
        Ok(Ok(passed)) => {
            passed?;
            println!("the worker starts");
        }
        _ => println!("the worker does not wait any longer"),
    }

    // A latch is a record, which stays until a client removes it.
    migrated.remove().await?;
    client.close().await;
    Ok(())
}
