//! A report that only the holder of its lock can change: it is a record in the cluster, written under
//! the lock's fencing token. The cluster itself checks the token: it refuses a writer that has lost the
//! lock, because lock and record lie in one log. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::wire::{Code, Condition, Consistency, Content, RecordChange, Transaction};
use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};

const REPORT: &str = "examples/report";

fn put(content: &str) -> Transaction {
    change(RecordChange::Put { key: REPORT.to_owned(), value: Content(content.into()) })
}

fn append(content: &str) -> Transaction {
    change(RecordChange::Append { key: REPORT.to_owned(), value: Content(content.into()) })
}

fn change(change: RecordChange) -> Transaction {
    Transaction { changes: vec![change], ..Transaction::default() }
}

/// The same, if this condition is met as well.
fn only_if(condition: Condition, mut transaction: Transaction) -> Transaction {
    transaction.conditions.push(condition);
    transaction
}

/// What the cluster says to a change that it refuses.
fn refusal(result: Result<u64, Error>) -> Code {
    match result {
        Err(Error::Refused(failure)) => failure.error,
        other => panic!("this change is to be refused: {other:?}"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let lock = || client.lock(REPORT, LockOptions::default().wait(Duration::from_secs(10)));

    // The guard sends its token with each change, and makes it once, however often the request is sent.
    let mut first = lock().await?;
    first.transact(put("page 1")).await?;
    let first_token = first.token();
    first.release().await?;

    // What a holder has written, only holders change.
    println!("without a lock: {:?}", refusal(client.transact(put("garbage")).await));

    let mut second = lock().await?;
    let version = second.transact(append(", page 2")).await?;

    // A request of the first holder that was delayed until now: the lock has another token.
    let late = Condition::Held { lock: REPORT.to_owned(), token: first_token };
    println!("too late: {:?}", refusal(client.transact(only_if(late, put("page 1 again"))).await));

    // A condition on the version, which each change makes greater, notices a change in between.
    let unchanged = Condition::Version { key: REPORT.to_owned(), version: version - 1 };
    println!("changed since: {:?}", refusal(second.transact(only_if(unchanged, append(", page 3"))).await));

    let record = client.record(REPORT, Consistency::Linearizable).await?.expect("it is written");
    println!("the report: {}", String::from_utf8_lossy(&record.value.0));

    second.transact(change(RecordChange::Delete { key: REPORT.to_owned() })).await?;
    second.release().await?;
    client.close().await;
    Ok(())
}
