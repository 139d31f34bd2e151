//! Moves an amount between two accounts, whose records lie beside their locks. Both locks are taken
//! together, under one token, so that two transfers never wait for each other in a circle. The records
//! change while both are held, or not at all, and once. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::wire::{Consistency, Content, RecordChange, Transaction};
use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};

const FROM: &str = "examples/account/anna";
const TO: &str = "examples/account/bert";

/// What is in an account; a new one has 100.
async fn balance(client: &Client, account: &str) -> Result<i64, Error> {
    let record = client.record(account, Consistency::Linearizable).await?;
    Ok(record.and_then(|record| String::from_utf8(record.value.0).ok()?.parse().ok()).unwrap_or(100))
}

fn put(account: &str, balance: i64) -> RecordChange {
    RecordChange::Put { key: account.to_owned(), value: Content(balance.to_string().into_bytes()) }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;

    let options = LockOptions::default().wait(Duration::from_secs(10)).owner("transfer");
    let mut both = client.lock([FROM, TO], options).await?;
    let (from, to) = (balance(&client, FROM).await?, balance(&client, TO).await?);
    let changes = vec![put(FROM, from - 10), put(TO, to + 10)];
    // A holder that has lost its locks changes nothing here, however long it was paused.
    both.transact(Transaction { changes, ..Transaction::default() }).await?;
    println!("10 of {from} are moved: {} and {} are left", from - 10, to + 10);

    both.release().await?;
    client.close().await;
    Ok(())
}
