//! etcd: a lease for each lock, many locks on a lease, and the quota of its database.

use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, DeleteOptions, PutOptions, Txn, TxnOp,
};

use super::cases::Plan;
use super::redis::{held, one, sound};
use super::{Context, Figures, Found, KEYS, Note, fill_limit, text};
use crate::report::Prediction;
use crate::servers::{self, Cluster, Kind, Options};

/// The quota of the cluster that is filled by acquires and releases, in bytes; and etcd's default.
const SMALL_QUOTA: u64 = 32 << 20;
const QUOTA: u64 = 2 << 30;
/// Locks on a lease.
const SHARE: u64 = 1_000;
/// How long the fills may take.
pub(super) const EACH_LIMIT: Duration = Duration::from_secs(60);
pub(super) const SHARED_LIMIT: Duration = Duration::from_secs(1_200);
/// How long the leases of a fill may take to end: leases of their own, and shared ones.
const EACH_ENDS: Duration = Duration::from_secs(180);
const SHARED_ENDS: Duration = Duration::from_secs(900);
/// Keys of a transaction.
const TXN: u64 = 128;
/// Transactions after which the quota must have been reached.
const MOST: u64 = 50_000;
/// etcd looks for ended leases twice a second, and revokes 500 at most each time.
const REVOKES_PER_SECOND: u64 = 1_000;

pub(super) async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let keys = context.keys.unwrap_or(KEYS);
    let plan = Plan {
        name: "lease-each",
        backend: context.backend,
        cluster: &context.cluster,
        keys: (keys / 200).max(1_000),
        share: 1,
        fill_limit: fill_limit(context, EACH_LIMIT),
        margin: 2.0,
        expiry_limit: EACH_ENDS,
        seed: context.seed,
        metrics: &context.metrics,
    };
    let each = plan.run().await?;
    let share = (keys / 10).clamp(100, SHARE);
    let fill_limit = fill_limit(context, SHARED_LIMIT);
    // Each case has a cluster of its own: what the one before has left in the database does not count.
    let cluster = servers::start(Kind::Etcd, &Options::default()).await.map_err(text)?;
    let shared = Plan { name: "lease-shared", cluster: &cluster, keys, share, fill_limit, margin: 3.0, ..plan };
    let shared = Plan { expiry_limit: SHARED_ENDS, ..shared }.run().await?;
    let each_takes = shared.per_lock(|sample| sample.used.unwrap_or(0)).unwrap_or(0).max(1);
    let mut notes = vec![Note::new(
        "computed from the bytes of a lock on a shared lease, for the default quota of 2 GiB",
        format!("{:.1} million locks, if none of them was ever released", QUOTA as f64 / each_takes as f64 / 1e6),
    )];
    notes.extend(compact(&cluster).await?);
    let (quota, quota_predictions) = quota().await?;
    notes.extend(quota);
    let gone = |case: &super::Case| case.gone_ms.is_some();
    let seconds = each.reclaim_ms().unwrap_or(0) as f64 / 1e3;
    // Samples and revocations are late by different times, above all in short runs; hence half of the time.
    let least = each.taken as f64 / REVOKES_PER_SECOND as f64 / 2.0;
    let mut predictions = vec![
        one(
            "all leases end, and their keys with them",
            format!("{} and {} locks", each.taken, shared.taken),
            gone(&each) && gone(&shared),
        ),
        one(
            "a lease for each lock: etcd revokes 1,000 a second, so they take at least half a second for each 1,000",
            format!("{} leases in {seconds:.1} s after their TTL", each.taken),
            gone(&each) && seconds >= least,
        ),
    ];
    predictions.extend([held(&[&each, &shared]), sound(&[&each, &shared])]);
    predictions.extend(quota_predictions);
    Ok((Figures { keys, cases: vec![each, shared], notes }, predictions))
}

/// Sizes of the database: all of it, and the part in use.
async fn sizes(client: &mut Client) -> Result<String, String> {
    let status = client.status().await.map_err(text)?;
    Ok(format!("{} MiB on the disk, {} MiB of it in use", status.db_size() >> 20, status.raft_used_db_size() >> 20))
}

async fn connect(cluster: &Cluster) -> Result<Client, String> {
    let leader = cluster.leader().await.map_err(text)?;
    Client::connect([cluster.address(leader)], None).await.map_err(text)
}

async fn compact_now(client: &mut Client) -> Result<(), String> {
    let revision = client.get("none", None).await.map_err(text)?.header().map_or(0, |header| header.revision());
    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(revision, physical).await.map(drop).map_err(text)
}

async fn defragment(cluster: &Cluster) -> Result<(), String> {
    for endpoint in cluster.endpoints() {
        let mut client = Client::connect([endpoint], None).await.map_err(text)?;
        client.defragment().await.map_err(text)?;
    }
    Ok(())
}

/// Each member has raised an alarm of its own.
async fn disarm(client: &mut Client) -> Result<(), String> {
    let raised = client.alarm(AlarmAction::Get, AlarmType::None, None).await.map_err(text)?;
    for alarm in raised.alarms() {
        let mut options = AlarmOptions::new();
        options.with_member(alarm.member_id());
        client.alarm(AlarmAction::Deactivate, alarm.alarm(), Some(options)).await.map_err(text)?;
    }
    Ok(())
}

/// What the revisions of locks that are gone take, before and after compaction.
async fn compact(cluster: &Cluster) -> Result<Vec<Note>, String> {
    let mut client = connect(cluster).await?;
    let mut notes = vec![Note::new("all locks are gone", sizes(&mut client).await?)];
    compact_now(&mut client).await?;
    notes.push(Note::new("after compaction", sizes(&mut client).await?));
    defragment(cluster).await?;
    notes.push(Note::new("after defragmentation", sizes(&mut client).await?));
    Ok(notes)
}

/// Puts and deletes keys until a small quota is reached, and what is needed to go on.
async fn quota() -> Result<(Vec<Note>, Vec<Prediction>), String> {
    let settings = vec![("quota-backend-bytes".to_owned(), SMALL_QUOTA.to_string())];
    let options = Options { settings, ..Options::default() };
    let cluster = servers::start(Kind::Etcd, &options).await.map_err(text)?;
    let mut client = connect(&cluster).await?;
    let (mut pairs, mut refusal) = (0, None);
    for _ in 0..MOST {
        let puts: Vec<TxnOp> = (0..TXN).map(|key| TxnOp::put(format!("churn/{key:016x}"), "gen", None)).collect();
        if let Err(error) = client.txn(Txn::new().and_then(puts)).await {
            refusal = Some(error.to_string());
            break;
        }
        client.delete("churn/", Some(DeleteOptions::new().with_prefix())).await.map_err(text)?;
        pairs += TXN;
    }
    let full = refusal.clone().unwrap_or_else(|| "it was not reached".to_owned());
    let mut notes = vec![
        Note::new(
            format!(
                "a quota of {} MiB: 128 keys are put in one transaction and deleted by one range delete, without leases, again and again",
                SMALL_QUOTA >> 20
            ),
            format!("after {pairs} puts and deletes: {full}; {}", sizes(&mut client).await?),
        ),
        Note::new(
            "computed for the default quota of 2 GiB, without compaction",
            format!(
                "{:.1} million such puts and deletes, on however few keys",
                (pairs * (QUOTA / SMALL_QUOTA)) as f64 / 1e6
            ),
        ),
    ];
    let mut refused = Vec::new();
    for step in
        ["at the quota", "after compaction", "after defragmentation of all members", "after the alarm was disarmed"]
    {
        match step {
            "after compaction" => compact_now(&mut client).await?,
            "after defragmentation of all members" => defragment(&cluster).await?,
            "after the alarm was disarmed" => {
                disarm(&mut client).await?;
            }
            _ => {}
        }
        let acquire = client.put("churn/again", "gen", Some(PutOptions::new())).await;
        refused.push(acquire.is_err());
        let found = acquire.map_or_else(|error| error.to_string(), |_| "accepted".to_owned());
        notes.push(Note::new(format!("a put {step}"), format!("{found}; {}", sizes(&mut client).await?)));
    }
    let release = client.delete("churn/again", None).await.is_ok();
    let named = refusal.is_some_and(|error| error.contains("database space exceeded"));
    let predictions = vec![
        one(
            "puts and deletes of 128 keys reach the quota, and etcd names it",
            format!("after {pairs} puts and deletes: {full}"),
            named && pairs > 0,
        ),
        one(
            "compaction and defragmentation do not lift the refusal; disarming the alarm does",
            format!("refused at the quota and after each step: {refused:?}"),
            refused == [true, true, true, false] && release,
        ),
    ];
    Ok((notes, predictions))
}
