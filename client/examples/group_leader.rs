//! Leader election: every process of a group runs this, one of them works at a time, and when it
//! dies the next one takes over. Run it three times at once and stop the one that works. Needs a
//! cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::{Client, Error, Guard, LockOptions, Options, endpoints_from_env};
use tokio::time::sleep;

async fn lead(term: &Guard) {
    loop {
        // Whatever it does to the outside world carries the token, see the example `fencing`.
        println!("leading with token {}, {:?} left without a renewal", term.token(), term.remaining());
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let name = format!("process {}", std::process::id());
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let candidacy = LockOptions::default().ttl(Duration::from_secs(3)).wait_forever().owner(&name);
    loop {
        println!("{name} waits to be the leader");
        let term = client.lock("examples/leader", candidacy.clone()).await?;
        tokio::select! {
            () = lead(&term) => {}
            () = term.lost() => println!("{name} cannot be sure any more that it leads: it steps back"),
            _ = tokio::signal::ctrl_c() => {
                println!("{name} resigns, so that the next one need not wait for the time-to-live");
                term.release().await?;
                client.close().await;
                return Ok(());
            }
        }
    }
}
