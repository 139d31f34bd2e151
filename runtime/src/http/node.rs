//! Requests about the node itself: status, health, metrics.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use palisade_client::wire::{Code, DiskView, Failure, LeaderView, MemberView, StatusView};
use palisade_spec::raft::Standing;

use super::App;
use crate::member_address::MemberAddress;
use crate::storage::SpaceView;

impl App {
    /// This node's own view of the cluster.
    pub(super) fn status(&self) -> StatusView {
        let view = self.core.view().get();
        let roster = self.peers.roster();
        let members = view.members.iter().map(|(id, member)| MemberView {
            id: id.number(),
            generation: id.generation(),
            voter: member.standing == Standing::Voter,
            returning: member.standing == Standing::Returning,
            peer_addr: MemberAddress::of(&member.address).peer_addr,
            client_addr: self.peers.client_addr(id),
            connected: self.peers.is_connected(id),
            matched: view.matched.iter().find(|(peer, _)| *peer == id).map(|&(_, matched)| matched),
        });
        StatusView {
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
            members: members.collect(),
            snapshot: self.snapshot(),
            disk: self.disk(),
        }
    }

    fn disk(&self) -> DiskView {
        let SpaceView { free, mark, is_low, obstacle } = self.space.view();
        DiskView { free_bytes: free, low_water_bytes: mark, low: is_low, obstacle }
    }
}

/// `GET /v1/status`
pub(super) async fn status(State(app): State<App>) -> Response {
    Json(app.status()).into_response()
}

/// `GET /healthz`: the process answers.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: ready while the node knows a leader, as it can then serve or redirect clients. A
/// node whose disk is nearly full reports that and stays ready: holders of locks must be able to
/// reach it.
pub(super) async fn ready(State(app): State<App>) -> Response {
    match app.core.view().leader() {
        Some(_) if app.space.is_low() => {
            let DiskView { free_bytes, low_water_bytes, obstacle, .. } = app.disk();
            let free = free_bytes.map_or_else(|| "unknown".into(), |free| free.to_string());
            let obstacle = obstacle.map(|obstacle| format!("; {obstacle}")).unwrap_or_default();
            format!(
                "ok\nno_space: the disk is nearly full: free_bytes={free} low_water_bytes={low_water_bytes}{obstacle}\n"
            )
            .into_response()
        }
        Some(_) => "ok\n".into_response(),
        None => {
            let failure = Failure::new(Code::NoLeader, "this node knows no leader at the moment");
            (StatusCode::SERVICE_UNAVAILABLE, Json(failure)).into_response()
        }
    }
}

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<App>) -> Response {
    let (view, newest) = (app.core.view().get(), app.peers.snapshots().newest());
    let page = app.metrics_page.text(&view, newest, &app.space, app.peers.roster().node);
    let page = page.expect("a String takes all that is written to it");
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content_type)], page).into_response()
}
