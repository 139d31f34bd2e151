//! A group that goes on when all of it are ready: run this three times, each with a name of its own, for instance
//! `cargo run --example barrier -- red`. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::recipes::Barrier;
use palisade_client::{Client, Error, Options, endpoints_from_env};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| format!("process-{}", std::process::id()));
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let ready = Barrier::new(&client, "examples/ready", 3);
    ready.arrive(&name).await?;
    println!("{name} is ready, as are {:?}", ready.arrived().await?);
    match tokio::time::timeout(Duration::from_secs(60), ready.wait()).await {
        Ok(passed) => {
            passed?;
            println!("all three are ready: {name} goes on");
        }
        Err(_) => println!("{name} does not wait any longer"),
    }
    client.close().await;
    Ok(())
}
