//! A function that takes a lock, and is also called by code that holds it already: the guard of the caller holds again,
//! and the lock is free when both guards are gone. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::wire::Consistency;
use palisade_client::{Client, Error, Guard, LockOptions, Options, endpoints_from_env};

const KEY: &str = "examples/account";

/// Works under the lock: under that of its caller, if it is given one.
async fn charge(client: &Client, caller: Option<&Guard>) -> Result<(), Error> {
    let guard = match caller {
        Some(guard) => guard.hold_again().await?,
        None => client.lock(KEY, LockOptions::default().wait(Duration::from_secs(10)).owner("charge")).await?,
    };
    let lock = client.show_lock(KEY, Consistency::Linearizable).await?;
    println!("charged; holds: {}", lock.holder.map_or(0, |holder| holder.holds));
    // It gives back its own hold, and leaves those of its caller.
    guard.release().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    charge(&client, None).await?;

    let guard = client.lock(KEY, LockOptions::default().owner("transfer")).await?;
    charge(&client, Some(&guard)).await?;
    let lock = client.show_lock(KEY, Consistency::Linearizable).await?;
    println!("held by {} with token {}", lock.holder.map_or(String::new(), |holder| holder.owner), guard.token());
    guard.release().await?;
    println!("held after both: {}", client.show_lock(KEY, Consistency::Linearizable).await?.held);

    client.close().await;
    Ok(())
}
