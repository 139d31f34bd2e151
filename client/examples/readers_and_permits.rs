//! Locks with several holders: readers share one, and a semaphore has as many workers at once as it
//! has permits. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let patient = LockOptions::default().wait(Duration::from_secs(10));

    // Readers hold the lock together; a writer, which asks as for any lock, holds it alone.
    let index = "examples/index";
    let reader = client.lock(index, patient.clone().shared().owner("reader-1")).await?;
    let other_reader = client.lock(index, patient.clone().shared().owner("reader-2")).await?;
    match client.lock(index, LockOptions::default().owner("writer")).await {
        Err(Error::Held { .. }) => println!("two readers hold {index}: a writer would have to wait"),
        outcome => println!("{outcome:?}"),
    }
    reader.release().await?;
    other_reader.release().await?;
    // Later readers wait behind a writer that waits.
    let writer = client.lock(index, patient.clone().owner("writer")).await?;
    println!("the writer holds {index} alone, and its token is the highest");
    writer.release().await?;

    // Three exports at once. One that needs more of the machine takes two permits.
    let exports = "examples/exports";
    let small = client.lock(exports, patient.clone().permits(1, 3).owner("small")).await?;
    let large = client.lock(exports, patient.permits(2, 3).owner("large")).await?;
    match client.lock(exports, LockOptions::default().permits(1, 3).owner("late")).await {
        Err(Error::Held { .. }) => println!("all three permits of {exports} are taken"),
        outcome => println!("{outcome:?}"),
    }
    small.release().await?;
    large.release().await?;
    client.close().await;
    Ok(())
}
