//! Many writers of one key at the same time, each with a token and a connection of its own.
//!
//! The highest token must stay, in whatever order the writes arrive, and a stale write after them must
//! be refused. Without the fence the last write stays, whatever its token is.

use std::sync::Arc;

use palisade_history::{Answer as Ended, Call, Client, Key, Recorder, Refusal};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::history::Judgement;
use crate::resource::rule::Fence;
use crate::stores::{Answer, Kind, Store, StoreServer};

/// Number of writers of one key.
pub const WRITERS: u64 = 16;

/// What became of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Race {
    /// The store.
    pub store: Kind,
    /// Whether the writes had the condition.
    pub fence: Fence,
    /// Number of writes that were accepted.
    pub accepted: u64,
    /// Number of writes that were refused.
    pub refused: u64,
    /// Number of puts that found another object than the one that was read, and were made again or given up.
    pub lost_swaps: u64,
    /// The stored token at the end.
    pub stored: u64,
    /// Whether the stored value is the one that was written with the stored token.
    pub value_fits: bool,
    /// Whether the write with a low token after all others was refused.
    pub late_refused: bool,
    /// What the checkers say of all writes. They accuse an accepted write only if it began after the answer to one
    /// with a higher token: here, the late one.
    pub judged: Judgement,
}

impl Race {
    /// Whether the highest token stayed, with its value.
    #[must_use]
    pub fn highest_stays(&self) -> bool {
        self.stored == WRITERS && self.value_fits
    }
}

/// Races on `races` keys, one after the other.
///
/// # Errors
/// The store could not be reached, or has answered with an error.
pub async fn races(running: &StoreServer, fence: Fence, races: u64, seed: u64) -> Result<Vec<Race>, String> {
    let opened = (0..WRITERS).map(|_| running.open());
    let stores = futures_util::future::try_join_all(opened).await?;
    let mut rng = StdRng::seed_from_u64(seed);
    let run = rng.random::<u32>();
    let mut done = Vec::new();
    for number in 0..races {
        let mut tokens: Vec<u64> = (1..=WRITERS).collect();
        tokens.shuffle(&mut rng);
        done.push(race(&stores, &format!("race-{run:x}-{fence:?}-{number}").to_lowercase(), fence, &tokens).await?);
    }
    Ok(done)
}

async fn race(stores: &[Arc<dyn Store>], key: &str, fence: Fence, tokens: &[u64]) -> Result<Race, String> {
    let recorder = Recorder::in_memory();
    let writes = stores.iter().zip(tokens).map(|(store, &token)| {
        let (store, key, recorder) = (store.clone(), key.to_owned(), recorder.clone());
        tokio::spawn(async move { write(&*store, &key, fence, token, &recorder).await })
    });
    let mut answers = Vec::new();
    for write in writes.collect::<Vec<_>>() {
        answers.push(write.await.map_err(|error| format!("a writer of {key} has failed: {error}"))??);
    }
    let first = stores.first().ok_or("a race needs writers")?;
    let stored = first.read(key).await?.ok_or_else(|| format!("{key} is empty after {} writes", tokens.len()))?;
    let late = write(&**first, key, fence, 1, &recorder).await?;
    let history = recorder.history().map_err(|error| format!("the history of {key}: {error}"))?;
    let lost = |answer: &Answer| match answer {
        Answer::Accepted { attempts } => u64::from(attempts - 1),
        // PostgreSQL's one statement is no swap that was lost.
        Answer::Stale { attempts, .. } => u64::from(*attempts) * u64::from(first.kind() == Kind::Objects),
    };
    let accepted = answers.iter().filter(|answer| matches!(answer, Answer::Accepted { .. })).count() as u64;
    Ok(Race {
        store: first.kind(),
        fence,
        accepted,
        refused: answers.len() as u64 - accepted,
        lost_swaps: answers.iter().map(lost).sum(),
        stored: stored.fence,
        value_fits: stored.value == value(stored.fence),
        late_refused: matches!(late, Answer::Stale { .. }),
        judged: Judgement::of(&history),
    })
}

async fn write(store: &dyn Store, key: &str, fence: Fence, token: u64, recorder: &Recorder) -> Result<Answer, String> {
    let client = Client::from(format!("writer-{token}").as_str());
    let pending = recorder.invoke(&client, Call::write(Key::from(key), token));
    match store.write(key, &value(token), token, fence).await {
        Ok(answer) => {
            match answer {
                Answer::Accepted { .. } => pending.ok(Ended::Accepted),
                Answer::Stale { .. } => pending.fail(Refusal::Refused),
            }
            Ok(answer)
        }
        Err(error) => {
            pending.info(&error);
            Err(error)
        }
    }
}

fn value(token: u64) -> String {
    format!("written with token {token}\n")
}
