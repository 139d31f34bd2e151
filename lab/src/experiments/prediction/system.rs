//! The real servers, the resource and the clients of a story: what is done to them.

use std::sync::Arc;
use std::time::Duration;

use palisade_history::{Answer, Call, Client as Named, Key, Pending, Recorder, Refusal, Session};

use super::action::{Action, Client};
use super::story::{Servers, Story};
use crate::dlock::Backend;
use crate::experiments::processes::{Counts, Resource};
use crate::experiments::scratch;
use crate::experiments::steps::{Order, Process, Report, Stage, await_free, now_us};
use crate::history::{self, Judgement};
use crate::resource::rule::Fence;
use crate::servers::{self, Cluster, Home, Kind, Link, Options, Signing};

/// How long to wait for what follows from the TTL, beyond the TTL.
const LATE: Duration = Duration::from_secs(20);

/// A story's servers and clients.
pub(super) struct System {
    pub(super) story: &'static Story,
    repaired: bool,
    pub(super) cluster: Arc<Cluster>,
    pub(super) key: String,
    /// A's link to the Redis, or the replicas' to their primary.
    link: Option<Link>,
    pub(super) clients: [Process; 2],
    pub(super) resource: Option<(Resource, Home)>,
    _counter: Option<Cluster>,
    recorder: Recorder,
    acquiring: [Option<Pending>; 2],
    releasing: Option<Pending>,
    /// The grants in their order, with their tokens.
    pub(super) grants: Vec<(Client, u64)>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ending {
    /// What the resource counted.
    pub counts: Option<Counts>,
    /// What the checkers say of the history.
    pub judged: Judgement,
}

impl System {
    /// Starts what the story needs beside its servers. `repaired`: with its repair.
    ///
    /// # Errors
    /// A process does not start.
    pub(super) async fn start(
        story: &'static Story,
        repaired: bool,
        signing: Option<&Signing>,
        cluster: Arc<Cluster>,
    ) -> Result<System, String> {
        let key = format!("{}{}", story.model, if repaired { "-repaired" } else { "" });
        let failed = |error: servers::Error| error.to_string();
        let link = match story.servers {
            Servers::Redis | Servers::Replicas => {
                Some(Link::to(cluster.address(0)).await.map_err(|error| error.to_string())?)
            }
            Servers::Redlock | Servers::Service => None,
        };
        if let (Servers::Replicas, Some(link)) = (story.servers, &link) {
            for replica in 1..cluster.len() {
                cluster.replicate(replica, &link.address()).await.map_err(failed)?;
            }
            link.hold();
        }
        let resource = if story.resource {
            let directory = scratch()?;
            let fence = if repaired || story.signed { Fence::On } else { Fence::Off };
            let flags = signing.filter(|_| repaired).map(Signing::resource_flags);
            let flags = flags.as_ref().map_or(&[][..], |flags| &flags[..]);
            Some((Resource::start_with(directory.path(), fence, flags).await?, directory))
        } else {
            None
        };
        let counter = match (story.resource, story.servers) {
            (true, Servers::Redlock) => Some(servers::start(Kind::Redis, &Options::default()).await.map_err(failed)?),
            _ => None,
        };
        let start = |client: Client| {
            let mut servers: Vec<_> = (0..cluster.len()).map(|node| cluster.address(node).to_owned()).collect();
            if let (Servers::Redis, Client::A, Some(link)) = (story.servers, client, &link) {
                servers = vec![link.address()];
            }
            let (ttl, servers) = (format!("{}ms", story.ttl_ms), servers.join(","));
            let mut flags = vec!["--key", &key, "--ttl", &ttl, "--servers", &servers];
            if story.servers == Servers::Service {
                flags.extend(["--backend", Backend::Palisade.name()]);
            }
            if let Some(counter) = &counter {
                flags.extend(["--counter", counter.address(0)]);
            }
            if let Some((resource, _)) = &resource {
                flags.extend(["--resource", &resource.url]);
            }
            Process::start(&client.to_string(), &flags)
        };
        let clients = [start(Client::A)?, start(Client::B)?];
        let recorder = history::in_memory();
        Ok(System {
            story,
            repaired,
            cluster,
            key,
            link,
            clients,
            resource,
            _counter: counter,
            recorder,
            acquiring: [None, None],
            releasing: None,
            grants: Vec::new(),
        })
    }

    /// Does one step; returns what was done, with the answers.
    ///
    /// # Errors
    /// A server or a client fails, or what the step waits for does not come.
    pub(super) async fn act(&mut self, action: Action) -> Result<String, String> {
        let failed = |error: servers::Error| error.to_string();
        Ok(match action {
            Action::Set(client, server) => self.set(client, server).await?,
            Action::Acquire(client) if self.story.servers == Servers::Redis => self.set(client, 0).await?,
            Action::Acquire(client) => {
                self.begin(client);
                let report = self.order(client, Order::Acquire).await?;
                if let (true, Some(token)) = (report.success, report.token) {
                    self.granted(client, token);
                }
                format!("client {client}: {}", report.did)
            }
            Action::Look(client) => {
                let report = self.order(client, Order::Look).await?;
                if let Some(token) = report.token {
                    self.granted(client, token);
                }
                format!("client {client}: {}", report.did)
            }
            Action::Stop(client) => self.stop(client).await?,
            Action::Lapse(_) => self.await_free(0).await?,
            Action::Expire(server) => self.await_free(server).await?,
            Action::Write(client) => self.write(client).await?,
            Action::WriteGreatest(client) => self.access(client, u64::MAX, Order::WriteGreatest).await?,
            Action::WriteAndRelease(client) => {
                let wrote = self.write(client).await?;
                let pending = self.release(client);
                let report = self.order(client, Order::Release).await?;
                released(pending, report.success);
                format!("{wrote}; {}", report.did)
            }
            Action::SendDel(client) => {
                let read = self.order(client, Order::Get).await?.did;
                self.link.as_ref().ok_or("the story has no link")?.hold();
                self.releasing = Some(self.release(client));
                let sent = self.order(client, Order::SendDelete { compare: self.repaired }).await?.did;
                format!("client {client}: {read}; {sent}: its link to the server is held")
            }
            Action::DelArrives(client) => {
                self.link.as_ref().ok_or("the story has no link")?.pass();
                let report = self.order(client, Order::AwaitDelete).await?;
                released(self.releasing.take().ok_or("no deletion was sent")?, report.success);
                format!("client {client}'s link passes; {}", report.did)
            }
            Action::Jump(server) => {
                let jump = format!("+{}s", self.story.ttl_ms.div_ceil(1000));
                self.cluster.set_clock(server, &jump).map_err(failed)?;
                format!("{}: wall clock set to {jump}", self.cluster.name(server))
            }
            Action::Crash(server) => {
                self.cluster.kill(server).await.map_err(failed)?;
                format!("{}: SIGKILL", self.cluster.name(server))
            }
            Action::Restart(server) => {
                self.cluster.restart(server).await.map_err(failed)?;
                format!("{}: started again", self.cluster.name(server))
            }
            Action::Promote(server) => {
                let answer = self.cluster.redis(server, &["REPLICAOF", "NO", "ONE"]).await.map_err(failed)?;
                format!("{}: `REPLICAOF NO ONE`: {answer}; the primary's link to it is held", self.cluster.name(server))
            }
        })
    }

    /// Ends the processes.
    ///
    /// # Errors
    /// The resource does not answer.
    pub(super) async fn end(mut self) -> Result<Ending, String> {
        // What was not granted is unknown to the client.
        self.acquiring.iter_mut().filter_map(Option::take).for_each(|pending| pending.info("the lock is held"));
        let counts = match &self.resource {
            Some((resource, _)) => Some(resource.counts().await?),
            None => None,
        };
        let history = self.recorder.history().map_err(|error| error.to_string())?;
        Ok(Ending { counts, judged: Judgement::of(&history) })
    }

    async fn order(&mut self, client: Client, order: Order) -> Result<Report, String> {
        self.clients[client.index()].order(order).await
    }

    async fn set(&mut self, client: Client, server: usize) -> Result<String, String> {
        if self.acquiring[client.index()].is_none() {
            self.begin(client);
        }
        let after_ms = if client == Client::A { self.story.gap_ms } else { 0 };
        let report = self.order(client, Order::Set { server, after_ms }).await?;
        // With a resource, the client fetches its token after this.
        if report.success && report.keys > self.cluster.endpoints().len() / 2 && !self.story.resource {
            self.granted(client, self.grants.len() as u64 + 1);
        }
        Ok(format!("client {client} at {}: {}", self.cluster.name(server), report.did))
    }

    async fn stop(&mut self, client: Client) -> Result<String, String> {
        let process = &mut self.clients[client.index()];
        process.stop().await?;
        let stopped = now_us();
        let until = process.report.lease_until_us.ok_or_else(|| format!("client {client} has no lease"))?;
        tokio::time::sleep(Duration::from_micros(until.saturating_sub(stopped))).await;
        let mut report =
            format!("client {client}: SIGSTOP; its lease is over {} ms later", (now_us() - stopped) / 1000);
        if self.story.servers == Servers::Service {
            report = format!("{report}; {}", self.await_free(0).await?);
        }
        Ok(report)
    }

    /// Waits until a server has no holder.
    async fn await_free(&self, node: usize) -> Result<String, String> {
        let began = now_us();
        let limit = Duration::from_millis(self.story.ttl_ms) + LATE;
        let free = async || Ok(self.holder(node).await? == "free");
        await_free(self.cluster.name(node), limit, free).await?;
        let by = if self.story.servers == Servers::Service { "the service" } else { self.cluster.name(node) };
        Ok(format!("{by} has no holder any more, {} ms later", (now_us() - began) / 1000))
    }

    async fn write(&mut self, client: Client) -> Result<String, String> {
        let resumed = if self.clients[client.index()].is_stopped() { "SIGCONT; " } else { "" };
        let token = self.clients[client.index()].report.token.ok_or("the client has no token")?;
        Ok(format!("{resumed}{}", self.access(client, token, Order::Write).await?))
    }

    async fn access(&mut self, client: Client, token: u64, order: Order) -> Result<String, String> {
        let call = Call::write(Key::from(self.key.as_str()), token);
        let pending = self.recorder.invoke(&named(client), call);
        let report = self.order(client, order).await?;
        match report.stage {
            _ if report.success => pending.ok(Answer::Accepted),
            // In the history, a refusal means that the token is too low.
            Stage::Untrusted => pending.info("the resource does not trust the token"),
            _ => pending.fail(Refusal::Refused),
        }
        Ok(format!("client {client}: {}", report.did))
    }

    fn begin(&mut self, client: Client) {
        let (key, ttl_ms) = (Key::from(self.key.as_str()), Some(self.story.ttl_ms));
        let call = Call::acquire_one(key, 0, ttl_ms);
        self.acquiring[client.index()] = Some(self.recorder.invoke(&named(client), call));
    }

    fn granted(&mut self, client: Client, token: u64) {
        self.grants.push((client, token));
        if let Some(pending) = self.acquiring[client.index()].take() {
            pending.ok(Answer::Granted { session: session(client, token), token });
        }
    }

    fn release(&self, client: Client) -> Pending {
        let token = self.grants.iter().rev().find(|(other, _)| *other == client).map_or(0, |(_, token)| *token);
        let (key, session) = (Key::from(self.key.as_str()), session(client, token));
        self.recorder.invoke(&named(client), Call::Release { keys: key.into(), session, token, number: None })
    }
}

fn named(client: Client) -> Named {
    Named::from(client.to_string().as_str())
}

fn session(client: Client, token: u64) -> Session {
    Session::from(format!("{client}/{token}").as_str())
}

fn released(pending: Pending, done: bool) {
    if done { pending.ok(Answer::Released) } else { pending.fail(Refusal::NotHolder) }
}
