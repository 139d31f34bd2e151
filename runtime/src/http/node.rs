//! Requests about the node itself: status, health, metrics.

use std::panic::resume_unwind;

use axum::Json;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use palisade_client::wire::{Code, DiskView, Failure, LeaderView, StatusView};
use palisade_spec::raft::NodeId;
use serde::Deserialize;
use tokio::task::{JoinError, spawn_blocking};

use super::{App, Caller, body, not_taken, reply};
use crate::core::{NotTaken, Reachability, member_views};
use crate::peers::PROGRAM;
use crate::storage::SpaceView;

impl App {
    /// This node's own view of the cluster.
    pub(super) fn status(&self) -> StatusView {
        let view = self.core.view().get();
        let roster = self.peers.roster();
        let reachability =
            |id| Reachability { client_addr: self.peers.client_addr(id), connected: self.peers.is_connected(id) };
        let mut status = StatusView {
            node: roster.node.number(),
            generation: roster.node.generation(),
            cluster: format!("{:016x}", roster.cluster),
            role: view.role.to_string(),
            term: view.term,
            leader: view.leader.map(|id| LeaderView { id: id.number(), client_addr: self.peers.client_addr(id) }),
            commit: view.commit,
            applied: view.commit,
            cluster_time_ms: view.clock,
            sessions: view.sessions,
            locks: view.locks,
            members: member_views(&view.members, &view.matched, reachability),
            snapshot: self.snapshot(),
            disk: self.disk(),
            cluster_name: roster.cluster_name.clone(),
            waiting_for: view.waiting_for.iter().map(|id| id.number()).collect(),
            version: PROGRAM.to_owned(),
        };
        for member in &mut status.members {
            let program = self.peers.program(NodeId::new(member.id, member.generation));
            (member.version, member.protocol) =
                program.map(|ran| (ran.version, Some(ran.protocol))).unwrap_or_default();
            member.disk = (member.id == status.node).then(|| status.disk.clone());
        }
        self.readdress(&mut status.members, status.leader.as_mut());
        status
    }

    fn disk(&self) -> DiskView {
        let SpaceView { free, mark, is_low, obstacle } = self.space.view();
        DiskView { free_bytes: free, low_water_bytes: mark, low: is_low, obstacle }
    }
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct StatusQuery {
    /// With `members`, the node asks the other members for what it does not know, for at most a second: the free space of
    /// each, and the leader how far each of them is.
    #[serde(default)]
    ask: Option<Ask>,
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum Ask {
    Members,
}

/// `GET /v1/status`
pub(super) async fn status(Caller(app): Caller, uri: Uri) -> Response {
    if let Err((failure, seconds)) = app.within_rate(false) {
        return reply::too_soon(failure, seconds, &uri);
    }
    let asked: StatusQuery = match body::query(&uri) {
        Ok(asked) => asked,
        Err(failure) => return reply::response(Err(failure), &uri),
    };
    let mut status = app.status();
    if asked.ask.is_some() {
        app.said.add_to(&mut status, &app).await;
    }
    Json(status).into_response()
}

/// The same for another node, a client of which asks for all members. It asks no further node.
pub(super) async fn status_for_a_member(Caller(app): Caller) -> Response {
    Json(app.status()).into_response()
}

/// `GET /healthz`: the process answers.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: ready while the node knows a leader, as it can then serve clients or forward their
/// requests; with `?leader=1`, while it leads. A node whose disk is nearly full reports that and stays
/// ready: holders of locks must be able to reach it. With TLS a client without an identity, such as a
/// balancer, learns only whether the node is ready, or leads.
pub(super) async fn ready(Caller(app): Caller, uri: Uri) -> Response {
    let asked: Ready = match body::query(&uri) {
        Ok(asked) => asked,
        Err(failure) => return reply::response(Err(failure), &uri),
    };
    let is_stranger = app.peers.roster().tls.is_some() && app.principal.is_none();
    match app.readiness(asked.leader == 1) {
        Ok(_) if is_stranger => READY.into_response(),
        Ok(detail) => format!("{READY}{detail}").into_response(),
        Err(_) if is_stranger => {
            let message = if asked.leader == 1 { "this node does not lead" } else { "this node is not ready" };
            reply::response(Err(Failure::new(Code::NoLeader, message)), &uri)
        }
        Err(why) => reply::response(Err(Failure::new(Code::NoLeader, why)), &uri),
    }
}

const READY: &str = "ok\n";

impl App {
    /// Whether the node knows a leader, or leads: what operators should know beside that, or why it is not so.
    fn readiness(&self, must_lead: bool) -> Result<String, String> {
        match self.core.view().leader() {
            Some(leader) if must_lead && leader != self.peers.roster().node => {
                Err(format!("this node does not lead: node {leader} does"))
            }
            Some(_) if self.space.is_low() => {
                let DiskView { free_bytes, low_water_bytes, obstacle, .. } = self.disk();
                let free = free_bytes.map_or_else(|| "unknown".into(), |free| free.to_string());
                let obstacle = obstacle.map(|obstacle| format!("; {obstacle}")).unwrap_or_default();
                let space = format!("free_bytes={free} low_water_bytes={low_water_bytes}{obstacle}");
                Ok(format!("no_space: the disk is nearly full: {space}\n"))
            }
            Some(_) => Ok(String::new()),
            None => {
                let view = self.core.view().get();
                let waiting_for: Vec<String> = view.waiting_for.iter().map(NodeId::to_string).collect();
                if waiting_for.is_empty() {
                    return Err("this node knows no leader at the moment; try again".to_owned());
                }
                let nodes = waiting_for.join(", ");
                Err(format!("this founder takes no part until all founders have met; it has not met: {nodes}"))
            }
        }
    }
}

/// What `GET /readyz` is asked.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Ready {
    /// 1: whether the node leads; 0: whether it knows a leader.
    #[serde(default)]
    leader: u8,
}

/// `GET /metrics`
pub(super) async fn metrics(Caller(app): Caller, uri: Uri) -> Response {
    if let Err(refused) = app.accepts("requests for metrics") {
        app.log_denial(&refused);
        return reply::response(Err(refused), &uri);
    }
    let turn = app.metrics_page.turn().await;
    // The page reads `/proc`, and there an entry for each open connection: not where those are served.
    let written = spawn_blocking(move || {
        let (view, newest) = (app.core.view().get(), app.peers.snapshots().newest());
        let page = app.metrics_page.text(&view, newest, &app.space, &app.peers);
        drop(turn);
        page.expect("a String takes all that is written to it")
    });
    let page = match written.await.map_err(JoinError::try_into_panic) {
        Ok(page) => page,
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_)) => return reply::response(Err(not_taken(NotTaken::Ended)), &uri),
    };
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content_type)], page).into_response()
}
