//! Take a lock, do something, release it. Needs a cluster: `cargo run -- dev`.

use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;

    let guard = client.lock("examples/simple", LockOptions::default().owner("lock_and_release")).await?;
    println!("{} is mine, with token {}", guard.key(), guard.token());

    // `release` reports whether the lock was held to the end; dropping the guard would release it,
    // too.
    guard.release().await?;
    client.close().await;
    Ok(())
}
