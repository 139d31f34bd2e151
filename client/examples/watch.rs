//! Follows a group of locks: who holds what, without asking again and again. It goes on at another node
//! when its node stops. Run it beside `group_leader`. Needs a cluster: `cargo run -- dev`.

use std::collections::BTreeMap;

use palisade_client::wire::{Change, Watch, Watched};
use palisade_client::{Client, Error, Options, endpoints_from_env};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let mut watcher = client.watch(Watch::prefix("examples/"));
    // The holders of each lock, by their tokens.
    let mut holders: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    loop {
        match watcher.next().await? {
            Watched::Listing(listing) => {
                if listing.begins {
                    holders.clear();
                }
                for lock in listing.locks {
                    let held = lock.holders.into_iter().map(|holder| (holder.token, holder.owner));
                    holders.insert(lock.key, held.collect());
                }
            }
            Watched::Event(event) => {
                let of_key = holders.entry(event.key.clone()).or_default();
                match event.change {
                    Change::Granted { token, owner, .. } => drop(of_key.insert(token, owner)),
                    Change::Released { token, .. } => drop(of_key.remove(&token)),
                    _ => continue,
                }
                println!("{} at revision {}: {of_key:?}", event.key, event.id.revision);
                holders.retain(|_, of_key| !of_key.is_empty());
            }
            Watched::Compacted { .. } => println!("events were missed, and the present state follows"),
        }
    }
}
