//! An election whose winner says where it can be reached: the others learn that, and follow it as it
//! changes. `group_leader` shows the life of a candidate. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::recipes::Observer;
use palisade_client::wire::Consistency;
use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};

const GROUP: &str = "examples/group";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let mut observer = Observer::new(&client, GROUP);
    println!("before: {:?}", observer.next().await?);

    let candidacy = LockOptions::default().wait(Duration::from_secs(10)).owner("host-1").value("10.0.0.1:8080");
    let mut term = client.lock(GROUP, candidacy).await?;
    // Every client may ask once who leads.
    let lock = client.show_lock(GROUP, Consistency::Linearizable).await?;
    if let Some(leader) = lock.holder {
        println!("{} leads, at {}", leader.owner, leader.value.unwrap_or_default());
    }
    // The leader has moved, and is the leader still: the same grant says another address.
    term.proclaim("10.0.0.2:8080").await?;
    term.release().await?;

    // Or follow what happens, in order, from any node and through its failure.
    while let Some(leader) = observer.next().await? {
        println!("{} leads with token {}, at {}", leader.owner, leader.token, leader.value.unwrap_or_default());
    }
    println!("it has resigned");
    client.close().await;
    Ok(())
}
