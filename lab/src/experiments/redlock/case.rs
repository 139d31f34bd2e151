//! One case: client A, client B, five instances, and the faults between them.

use std::time::{Duration, Instant};

use palisade_history::{Answer, Call, Client, Key, Recorder, Refusal, Session};

use super::{FAILURES, Fault, RedlockClient, Round, Tokens, Writes};
use crate::dlock::Backend;
use crate::event::micros;
use crate::experiments::processes::Resource;
use crate::experiments::scratch;
use crate::experiments::steps::{HELD, Order, Process, await_free, connect, now_us};
use crate::history::{DRIFT_PPM, Judgement};
use crate::metrics::Metrics;
use crate::servers::{Cluster, Error, Link};

/// How long to wait for what follows from the TTL, beyond the TTL.
const LATE: Duration = Duration::from_secs(20);

/// What a case runs with.
pub(super) struct FaultCase<'a> {
    pub(super) fault: Fault,
    pub(super) writes: Option<Writes>,
    pub(super) round: u64,
    pub(super) cluster: &'a Cluster,
    /// The address of the Redis that counts tokens.
    pub(super) counter: &'a str,
    pub(super) recorder: Recorder,
    pub(super) metrics: &'a Metrics,
}

/// A client with its links to the instances.
struct Reaching {
    name: &'static str,
    process: Process,
    links: Vec<Link>,
    result: RedlockClient,
}

impl Reaching {
    /// Cuts the client off from these instances, and from no others.
    fn cut_off(&self, instances: &[usize]) {
        for (instance, link) in self.links.iter().enumerate() {
            if instances.contains(&instance) { link.hold() } else { link.pass() }
        }
    }
}

impl FaultCase<'_> {
    pub(super) async fn run(self) -> Result<Round, String> {
        self.recorder.drift(DRIFT_PPM);
        let failed = |error: Error| error.to_string();
        let directory = scratch()?;
        let resource = match self.writes {
            Some(writes) => Some(Resource::start(directory.path(), writes.fence).await?),
            None => None,
        };
        let mut a = self.client("A", resource.as_ref()).await?;
        let mut b = self.client("B", resource.as_ref()).await?;
        let (start, mut stopped_us) = (Instant::now(), None);
        if self.writes.is_some() {
            // Attempts that fail use up numbers at the instances that they reach.
            a.cut_off(&[2, 3, 4]);
            for _ in 0..FAILURES {
                self.acquire(&mut a, start).await?;
            }
            a.result = RedlockClient::default();
        }
        a.cut_off(if self.fault == Fault::MajorityPartition { &[2, 3, 4] } else { &[3, 4] });
        self.acquire(&mut a, start).await?;
        match self.fault {
            Fault::MinorityPartition => self.acquire(&mut b, start).await?,
            Fault::MajorityPartition => {}
            Fault::Pause => {
                let from = micros(start.elapsed());
                a.process.stop().await?;
                stopped_us = Some((from, from));
                self.await_free(2).await?;
                b.cut_off(&[0, 1]);
            }
            Fault::SyncedCrash => {
                self.cluster.kill(2).await.map_err(failed)?;
                self.cluster.restart(2).await.map_err(failed)?;
                self.acquire(&mut b, start).await?;
            }
            Fault::Crash => {
                self.cluster.kill(2).await.map_err(failed)?;
                self.cluster.restart(2).await.map_err(failed)?;
            }
            Fault::DelayedRestart => {
                self.cluster.kill(2).await.map_err(failed)?;
                let crashed = now_us();
                self.acquire(&mut b, start).await?;
                let ttl_us = self.ttl_ms() * 1000;
                tokio::time::sleep(Duration::from_micros((crashed + ttl_us).saturating_sub(now_us()))).await;
                self.cluster.restart(2).await.map_err(failed)?;
                self.await_free(0).await?;
                self.await_free(1).await?;
            }
        }
        // A crash with sync, and a partition of a minority, end here: A holds the lock.
        if !matches!(self.fault, Fault::MinorityPartition | Fault::SyncedCrash) {
            self.acquire(&mut b, start).await?;
        }
        if self.writes.is_some() {
            self.write(&mut b, start).await?;
            if let Some((_, until)) = &mut stopped_us {
                *until = micros(start.elapsed());
            }
            // It is resumed for its write.
            self.write(&mut a, start).await?;
        }
        let (mut accepted, mut counts) = (Vec::new(), None);
        if let Some(resource) = &resource {
            let value = resource.client.read(&self.key()).await?.map(|value| value.value).unwrap_or_default();
            let owner = |line: &str| line.split(' ').nth(1).unwrap_or_default().to_owned();
            accepted = value.lines().map(owner).collect();
            counts = Some(resource.counts().await?);
        }
        let judged = Judgement::of(&self.recorder.history().map_err(|error| error.to_string())?);
        let (fault, writes, round, ttl_ms) = (self.fault, self.writes, self.round, self.ttl_ms());
        Ok(Round { fault, writes, round, ttl_ms, a: a.result, b: b.result, stopped_us, accepted, counts, judged })
    }

    fn key(&self) -> String {
        let writes = self.writes.map(|writes| format!("-{:?}-{:?}", writes.fence, writes.tokens));
        format!("{:?}{}-{}", self.fault, writes.unwrap_or_default(), self.round).to_lowercase()
    }

    /// Short where the case waits for its end.
    fn ttl_ms(&self) -> u64 {
        if matches!(self.fault, Fault::Pause | Fault::DelayedRestart) { 3_000 } else { 20_000 }
    }

    async fn client(&self, name: &'static str, resource: Option<&Resource>) -> Result<Reaching, String> {
        let mut links = Vec::new();
        for instance in 0..self.cluster.len() {
            links.push(Link::to(self.cluster.address(instance)).await.map_err(|error| error.to_string())?);
        }
        let servers: Vec<_> = links.iter().map(Link::address).collect();
        let (key, ttl, servers) = (self.key(), format!("{}ms", self.ttl_ms()), servers.join(","));
        let mut flags = vec!["--key", &key, "--ttl", &ttl, "--servers", &servers, "--counter", self.counter];
        flags.extend(["--backend", Backend::Redlock.name()]);
        if let Some(resource) = resource {
            flags.extend(["--resource", &resource.url]);
        }
        Ok(Reaching { name, process: Process::start(name, &flags)?, links, result: RedlockClient::default() })
    }

    /// Asks for the lock once; if it is granted, a token is fetched, unless Redlock's own number is the token.
    async fn acquire(&self, client: &mut Reaching, start: Instant) -> Result<(), String> {
        let key = Key::from(self.key().as_str());
        let call = Call::acquire_one(key, 0, Some(self.ttl_ms()));
        let pending = self.recorder.invoke(&Client::from(client.name), call);
        let origin = now_us().saturating_sub(micros(start.elapsed()));
        self.metrics.attempts.inc();
        let begun = Instant::now();
        let report = client.process.order(Order::Acquire).await?;
        if !report.success {
            // An acquire that finds no majority has failed, and did not wait in vain.
            self.metrics.timeouts.inc_by((report.did == HELD).into());
            pending.info(report.did);
            client.result.refused_us.get_or_insert(micros(start.elapsed()));
            return Ok(());
        }
        self.metrics.acquired.inc();
        self.metrics.acquire_seconds.observe(begun.elapsed().as_secs_f64());
        let number = report.token;
        let token = match self.writes {
            Some(Writes { tokens: Tokens::Own, .. }) => number,
            _ => client.process.order(Order::Look).await?.token,
        };
        let fence = token.ok_or("the client has no token")?;
        let session = Session::from(format!("{}/{fence}", client.name).as_str());
        pending.ok(Answer::Granted { session, token: fence });
        client.result.granted_us = Some(micros(start.elapsed()));
        client.result.lease_until_us = report.lease_until_us.map(|until| until.saturating_sub(origin));
        (client.result.number, client.result.token) = (number, token);
        Ok(())
    }

    async fn write(&self, client: &mut Reaching, start: Instant) -> Result<(), String> {
        // A client without the lock does not write: then a prediction fails.
        let Some(token) = client.result.token else { return Ok(()) };
        let call = Call::write(Key::from(self.key().as_str()), token);
        let pending = self.recorder.invoke(&Client::from(client.name), call);
        let report = client.process.order(Order::Write).await?;
        if report.success {
            self.metrics.writes.inc();
            pending.ok(Answer::Accepted);
        } else {
            self.metrics.stale_tokens.inc();
            pending.fail(Refusal::Refused);
        }
        client.result.written_us = Some(micros(start.elapsed()));
        Ok(())
    }

    /// Waits until an instance has no key.
    async fn await_free(&self, instance: usize) -> Result<(), String> {
        let mut link = connect(self.cluster.address(instance)).await?;
        let (key, limit) = (self.key(), Duration::from_millis(self.ttl_ms()) + LATE);
        let free = async || {
            let exists: bool =
                redis::cmd("EXISTS").arg(&key).query_async(&mut link).await.map_err(|error| error.to_string())?;
            Ok(!exists)
        };
        await_free(self.cluster.name(instance), limit, free).await
    }
}
