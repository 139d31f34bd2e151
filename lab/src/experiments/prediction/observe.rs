//! Observes a story's servers, clients and resource, in the words of its model.

use palisade_client::wire::Consistency;
use palisade_client::{Client as Palisade, Options};

use super::action::Client;
use super::story::Servers;
use super::system::System;
use super::trace::{Field, State, field};
use crate::experiments::steps::{Stage, connect};
use crate::servers::Cluster;

impl System {
    /// The state of servers, clients and resource, in the words of the story's model.
    ///
    /// # Errors
    /// A server does not answer.
    pub(super) async fn observe(&self) -> Result<State, String> {
        let mut rows = Vec::new();
        match self.story.servers {
            Servers::Redlock => {
                for node in 0..self.cluster.len() {
                    rows.push((format!("instance {}", node + 1), vec![field("", self.holder(node).await?)]));
                }
            }
            Servers::Redis => rows.push(("key".to_owned(), vec![field("", self.holder(0).await?)])),
            Servers::Replicas => {
                for (node, role) in roles(&self.cluster).await?.into_iter().enumerate() {
                    let key = field("key", self.holder(node).await?);
                    rows.push((format!("server {}", node + 1), vec![field("", role), key]));
                }
            }
            Servers::Service => rows.push(("lock".to_owned(), vec![field("", self.holder(0).await?)])),
        }
        for client in Client::BOTH {
            let holder = rows.first().map(|(_, fields)| fields[0].1 == client.to_string());
            rows.push((format!("client {client}"), self.believes(client, holder.unwrap_or_default())?));
        }
        if let Some((resource, _)) = &self.resource {
            let value = resource.client.read(&self.key).await?;
            if self.story.signed {
                rows.push(("resource".to_owned(), vec![field("", self.seen(value.map(|value| value.max_fence))?)]));
                // Only the holder's token can be too low: the other client has the greatest, or none that counts.
                let refused = resource.counts().await?.stale_rejections > 0;
                rows.push(("refused".to_owned(), vec![field("", if refused { "the holder" } else { "-" })]));
                return Ok(State(rows));
            }
            let value = value.map(|value| value.value).unwrap_or_default();
            rows.push(("resource".to_owned(), vec![field("", self.written(&value)?)]));
        }
        Ok(State(rows))
    }

    /// The client whose lock a server has, or `free`, or `down`.
    pub(super) async fn holder(&self, node: usize) -> Result<String, String> {
        if self.story.servers == Servers::Service {
            let options = Options::default();
            let client =
                Palisade::connect(self.cluster.endpoints(), options).await.map_err(|error| error.to_string())?;
            let view = client.show_lock(self.key.as_str(), Consistency::Linearizable).await;
            let view = view.map_err(|error| error.to_string())?;
            return Ok(view.holder.map_or_else(|| "free".to_owned(), |holder| holder.owner));
        }
        if self.cluster.pid(node).is_none() {
            return Ok("down".to_owned());
        }
        let mut link = connect(self.cluster.address(node)).await?;
        let value: Option<String> =
            redis::cmd("GET").arg(&self.key).query_async(&mut link).await.map_err(|error| error.to_string())?;
        Ok(value.map_or_else(|| "free".to_owned(), |value| value.split(':').next().unwrap_or_default().to_owned()))
    }

    /// What a client believes; `holder`: whether the lock service says that it holds the lock.
    fn believes(&self, client: Client, holder: bool) -> Result<Vec<Field>, String> {
        let process = &self.clients[client.index()];
        let (report, over) = (&process.report, process.is_over());
        let majority = self.cluster.endpoints().len() / 2 + 1;
        let asks = || format!("{} of {}", report.keys, self.cluster.endpoints().len());
        let does = match (self.story.servers, report.stage) {
            (Servers::Redlock, Stage::Idle) => asks(),
            (_, Stage::Idle) => "idle".to_owned(),
            // In the story of a lock service that is never wrong, a client is idle after its write.
            (Servers::Service, Stage::Wrote | Stage::Refused | Stage::Untrusted) => "idle".to_owned(),
            (Servers::Service, _) => {
                let believed = if holder { "holds" } else { "believes in" };
                format!("{believed} grant {}", self.number(report.token.unwrap_or_default())?)
            }
            (_, Stage::Asks) if report.keys < majority => asks(),
            (Servers::Redlock, Stage::Asks) if self.story.resource => "has a majority".to_owned(),
            (Servers::Redlock, Stage::Asks) if over => "done".to_owned(),
            (_, Stage::Asks) if over => "late".to_owned(),
            (_, Stage::Asks) => "holds the lock".to_owned(),
            (_, Stage::AboutToWrite) => "about to write".to_owned(),
            (_, Stage::Wrote) => "has written".to_owned(),
            (_, Stage::Refused | Stage::Untrusted) => "was refused".to_owned(),
            (_, Stage::Deletes) => "deletes".to_owned(),
        };
        let mut fields = vec![field("", does)];
        if self.story.resource && self.story.servers == Servers::Redlock {
            fields.push(field("lease", if over { "over" } else { "runs" }));
        }
        Ok(fields)
    }

    /// A token's place among the grants, which must be in the order of their tokens.
    fn number(&self, token: u64) -> Result<usize, String> {
        if !self.grants.is_sorted_by(|one, next| one.1 < next.1) {
            return Err(format!("the tokens do not grow with the grants: {:?}", self.grants));
        }
        let index = self.grants.iter().position(|grant| grant.1 == token);
        index.map(|index| index + 1).ok_or_else(|| format!("no grant has token {token}"))
    }

    /// What the resource's greatest token says.
    fn seen(&self, max_fence: Option<u64>) -> Result<String, String> {
        Ok(match max_fence {
            None => "no token seen".to_owned(),
            Some(u64::MAX) => "has seen a token that no grant will reach".to_owned(),
            Some(token) => format!("has seen the token of grant {}", self.number(token)?),
        })
    }

    /// What the resource's value says about the order of the writers.
    fn written(&self, value: &str) -> Result<String, String> {
        let tokens = crate::worker::job::lines(value);
        let writers = tokens.into_iter().map(|token| self.number(token)).collect::<Result<Vec<_>, _>>()?;
        let service = self.story.servers == Servers::Service;
        let Some(&last) = writers.last() else { return Ok("untouched".to_owned()) };
        let latest = writers.iter().copied().max().unwrap_or(last);
        Ok(match (service, last < latest) {
            (false, false) => format!("written by holder {last}"),
            (false, true) => format!("written by holder {latest}, then by holder {last}"),
            (true, false) => format!("written under grant {last}"),
            (true, true) => "overwritten by an earlier holder".to_owned(),
        })
    }
}

/// The roles of Redis servers. A primary is an old one if another primary has continued its history: then that one's
/// second replication ID is the old one's.
async fn roles(cluster: &Cluster) -> Result<Vec<&'static str>, String> {
    let mut found = Vec::new();
    for node in 0..cluster.len() {
        let info = cluster.redis(node, &["INFO", "replication"]).await.map_err(|error| error.to_string())?;
        let value = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_default();
        found.push([value("role:"), value("master_replid:"), value("master_replid2:")].map(str::to_owned));
    }
    let role = |[role, id, _]: &[String; 3]| match role.as_str() {
        "master" if found.iter().any(|other| other[0] == "master" && other[2] == *id) => "old primary",
        "master" => "primary",
        _ => "replica",
    };
    Ok(found.iter().map(role).collect())
}
