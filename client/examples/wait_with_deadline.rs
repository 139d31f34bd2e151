//! Wait for a lock, with a limit for the time and one for the queue. Run it three times at once. Needs a cluster:
//! `cargo run -- dev`.

use std::time::Duration;

use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let options = LockOptions::default().wait(Duration::from_secs(5)).max_queue(1).owner("wait_with_deadline");

    match client.lock("examples/waiting", options).await {
        Ok(guard) => {
            println!("granted; working for 8 s with token {}", guard.token());
            sleep(Duration::from_secs(8)).await;
            guard.release().await?;
        }
        // The queue position is given up: a later attempt starts at the end of the queue.
        Err(Error::TimedOut { after }) => println!("not granted within {after:?}, doing something else instead"),
        Err(Error::Held { queue, .. }) => println!("{queue} waiting already, not waiting behind that"),
        Err(other) => return Err(other),
    }
    client.close().await;
    Ok(())
}
