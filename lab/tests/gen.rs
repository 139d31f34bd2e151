//! `palisade-lab gen` against a real Redis.

use std::process::{Command, Output};

use palisade_lab::servers::{self, Kind, Options};

use self::support::is_missing;

mod support;

async fn fill(endpoint: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-lab"));
    command.args(["gen", "--backend", "redis", "--endpoints", endpoint, "--keys", "3000"]).args(flags);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn locks_come_from_the_seed_and_end_with_their_ttl() {
    if is_missing("gen", &[Kind::Redis]) {
        return;
    }
    let redis = servers::start(Kind::Redis, &Options::default()).await.unwrap();
    let endpoint = redis.endpoints()[0].clone();
    let client = redis::Client::open(format!("redis://{endpoint}/")).unwrap();
    let patience = Some(std::time::Duration::from_secs(60));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();

    let filled = fill(&endpoint, &["--ttl", "600s", "--rate", "6000"]).await;
    assert!(filled.status.success(), "{filled:?}");
    let report = String::from_utf8_lossy(&filled.stdout).into_owned();
    assert!(report.starts_with("redis: 3000 of 3000 locks in "), "{report}");
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, 3000);
    // The first output of SplitMix64 for seed 1.
    let ttl: i64 = redis::cmd("PTTL").arg("gen/910a2dec89025cc1").query_async(&mut connection).await.unwrap();
    assert!((1..=600_000).contains(&ttl), "the first key of seed 1 has a TTL of {ttl} ms");

    let again = fill(&endpoint, &["--ttl", "600s"]).await;
    assert!(!again.status.success(), "all keys of the seed are held: {again:?}");
    let report = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(report.starts_with("redis: 0 of 3000 locks in ") && report.contains("were held already"), "{report}");

    let other = fill(&endpoint, &["--ttl", "2s", "--seed", "2"]).await;
    assert!(other.status.success(), "another seed has other keys: {other:?}");
    // KEYS leaves out a key whose TTL has passed. DBSIZE counts it until Redis comes across it and removes it, which may take
    // a minute: Redis looks at 20 keys ten times a second when few of them have ended.
    let mut held = 0;
    for _ in 0..300 {
        let keys: Vec<String> = redis::cmd("KEYS").arg("gen/*").query_async(&mut connection).await.unwrap();
        held = keys.len();
        if held == 3000 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{held} locks are held: those of seed 2 did not end with their TTL");
}
