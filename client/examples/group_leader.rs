//! Leader election: every process of a group runs this, one of them works at a time, and when it
//! dies the next one takes over. Run it three times at once and stop the one that works. Needs a
//! cluster: `cargo run -- dev`.

use std::pin::pin;
use std::time::Duration;

use palisade_client::{Client, Error, Guard, LockOptions, Options, endpoints_from_env};
use tokio::signal::ctrl_c;
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
    // The process catches the signal from the first poll on, so both branches poll it first.
    let mut stop = pin!(ctrl_c());
    loop {
        println!("{name} waits to be the leader");
        let term = tokio::select! {
            biased;
            _ = &mut stop => break,
            term = client.lock("examples/leader", candidacy.clone()) => term?,
        };
        tokio::select! {
            biased;
            _ = &mut stop => {
                println!("{name} resigns, so that the next one need not wait for the time-to-live");
                term.release().await?;
                break;
            }
            () = term.lost() => println!("{name} cannot be sure any more that it leads: it steps back"),
            () = lead(&term) => {}
        }
    }
    client.close().await;
    Ok(())
}
