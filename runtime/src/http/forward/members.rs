//! What the other members know and this node does not: each the space on its disk, and the leader how far all are.

use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use palisade_client::wire::StatusView;
use palisade_spec::raft::NodeId;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{App, Origin, lines};

/// How long a member may take to answer: one that hangs must not keep the others from being shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the answers count. So clients that ask make a node ask the members once in that time, however many they are.
const COUNTS_FOR: Duration = Duration::from_millis(500);
/// Bytes of an answer, at most: 31 members and their addresses stay far below it.
const LARGEST_ANSWER: usize = 1 << 20;

/// What the members have said, and when.
#[derive(Debug, Default)]
pub(in crate::http) struct Said(Mutex<Option<(Instant, Vec<StatusView>)>>);

impl Said {
    /// Adds to a node's status what the other members say, each if it answers in time. They are asked by one request of a
    /// client at a time; the others wait for that one.
    pub(in crate::http) async fn add_to(&self, status: &mut StatusView, app: &App) {
        let mut said = self.0.lock().await;
        if said.as_ref().is_none_or(|(at, _)| at.elapsed() >= COUNTS_FOR) {
            let answers = ask_all(app, status).await;
            // From their arrival on: those that have waited while a member hung do not ask it again, one after the other.
            *said = Some((Instant::now(), answers));
        }
        for other in said.iter().flat_map(|(_, said)| said) {
            add(status, other);
        }
    }
}

fn add(status: &mut StatusView, said: &StatusView) {
    let is_leader = status.leader.as_ref().is_some_and(|leader| leader.id == said.node);
    for member in &mut status.members {
        if member.id == said.node {
            member.disk = Some(said.disk.clone());
        }
        if is_leader {
            let known = said.members.iter().find(|known| known.id == member.id);
            member.matched = known.and_then(|known| known.matched);
        }
    }
}

/// Asks the members that this node has a connection from, all at once.
async fn ask_all(app: &App, status: &StatusView) -> Vec<StatusView> {
    let mut answers = JoinSet::new();
    for member in status.members.iter().filter(|member| member.connected && member.id != status.node) {
        let (app, node) = (app.clone(), NodeId::new(member.id, member.generation));
        answers.spawn(async move { timeout(PATIENCE, ask(&app, node)).await.ok().flatten() });
    }
    answers.join_all().await.into_iter().flatten().collect()
}

/// What a node says of itself, if it answers. One of an earlier version does not.
async fn ask(app: &App, node: NodeId) -> Option<StatusView> {
    let (parts, ()) = Request::get("/v1/status").body(()).ok()?.into_parts();
    let asks = Origin::of_this_node();
    let response = lines::exchange(app, node, &parts, Bytes::new(), &asks).await.ok()?;
    let body = to_bytes(response.into_body(), LARGEST_ANSWER).await.ok()?;
    let said: StatusView = serde_json::from_slice(&body).ok()?;
    (said.node == node.number()).then_some(said)
}
