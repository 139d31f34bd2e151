//! A resource that refuses stale tokens: the only protection against a holder that was paused past
//! the end of its lease and resumes in the middle of a write. Needs a cluster: `cargo run -- dev`.

use std::time::Duration;

use palisade_client::{Client, Error, LockOptions, Options, endpoints_from_env};
use tokio::time::sleep;

/// Stands for a file, a table, a device: it remembers the highest token that it has seen, together
/// with its content.
#[derive(Default)]
struct Resource {
    highest: u64,
    content: String,
}

impl Resource {
    /// Check and write must be one step: a transaction, a conditional update, a lock of the
    /// resource's own.
    fn write(&mut self, token: u64, content: &str) -> Result<(), String> {
        if token < self.highest {
            return Err(format!("token {token} is stale, {} was here", self.highest));
        }
        self.highest = token;
        self.content = content.to_owned();
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&endpoints_from_env()?, Options::default()).await?;
    let mut resource = Resource::default();
    let options = LockOptions::default().ttl(Duration::from_secs(1));

    // A holder that is paused for too long. It gets no notice; when it resumes, it still has its
    // token.
    let slow = client.lock("examples/fencing", options.clone().owner("slow")).await?;
    let stale_token = slow.token();
    slow.release().await?;
    sleep(Duration::from_millis(100)).await;

    let quick = client.lock("examples/fencing", options.wait(Duration::from_secs(5)).owner("quick")).await?;
    println!("quick writes: {:?}", resource.write(quick.token(), "by quick"));
    println!("slow writes:  {:?}", resource.write(stale_token, "by slow"));
    println!("the resource says: {}", resource.content);

    quick.release().await?;
    client.close().await;
    Ok(())
}
