//! Requests about this node's snapshots: take one now, read the newest. They need no leader.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use palisade_client::wire::{Code, Failure, SnapshotView};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::snapshot_limits::{Download, ReadPermit};
use super::{App, Caller, not_taken, reply};
use crate::audit::Act;
use crate::core::{Event, NotTaken};
use crate::limits::{self, SNAPSHOT_PIECE};
use crate::storage::{DiskFile, SnapshotInfo};

impl App {
    /// The node's newest snapshot, if it has one.
    pub(super) fn snapshot(&self) -> Option<SnapshotView> {
        self.peers.snapshots().newest().map(|newest| self.show(newest))
    }

    fn show(&self, snapshot: SnapshotInfo) -> SnapshotView {
        let SnapshotInfo { last, stamp, bytes, hash } = snapshot;
        // In cluster time, the only clock that survives a restart.
        let age_ms = self.core.view().get().clock.saturating_sub(stamp.0);
        SnapshotView { index: last.index.0, term: last.term.0, bytes, hash: hash.to_string(), age_ms }
    }

    async fn take_snapshot(&self) -> Result<SnapshotView, Failure> {
        let (reply, taken) = oneshot::channel();
        self.core.send(Event::TakeSnapshot(reply)).map_err(not_taken)?;
        let snapshot = taken.await.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended)))?;
        self.snapshot_requests.taken(self.account_name(), Instant::now());
        Ok(self.show(snapshot))
    }

    async fn open_snapshot(&self) -> Result<(SnapshotInfo, Box<dyn DiskFile>), Failure> {
        let snapshots = Arc::clone(self.peers.snapshots());
        let opened = spawn_blocking(move || snapshots.open_newest()).await.unwrap_or_else(|error| Err(error.into()));
        let opened = opened.map_err(|error| {
            Failure::new(Code::Overloaded, format!("the newest snapshot cannot be opened: {error}"))
        })?;
        opened.ok_or_else(|| Failure::new(Code::NotFound, "this node has no snapshot yet; POST /v1/snapshot takes one"))
    }

    /// Permission to read a snapshot, if neither this client nor all of them read as many as they may.
    fn may_read_snapshot(&self) -> Result<ReadPermit, Failure> {
        let of_client = self.account.as_ref().map(|account| {
            Arc::clone(&account.snapshot_reads).try_acquire_owned().map_err(|_| {
                let (limit, client) = (limits::CLIENT_SNAPSHOT_READS, account.name());
                self.report_limit("snapshot_reads", Some(limit as u64), client);
                let message = format!(
                    "the limit of {limit} snapshots that one client reads at a time is reached by {client}: try again when \
                     one has been read"
                );
                Failure::new(Code::Limit, message)
            })
        });
        let of_client = of_client.transpose()?;
        let of_all = Arc::clone(&self.snapshot_reads).try_acquire_owned().map_err(|_| {
            let message =
                format!("{} snapshots are being read by clients already; try again later", limits::SNAPSHOT_READS);
            Failure::new(Code::Overloaded, message)
        });
        Ok(ReadPermit { _of_all: of_all?, _of_client: of_client })
    }

    /// Whether the newest snapshot includes every applied entry: then a request writes nothing.
    fn has_current_snapshot(&self, newest: Option<SnapshotInfo>) -> bool {
        newest.is_some_and(|newest| newest.last.index.0 >= self.core.view().get().commit)
    }
}

/// `POST /v1/snapshot`: takes a snapshot, and answers when it is durable.
pub(super) async fn take(Caller(app): Caller, uri: Uri) -> Response {
    if let Err((failure, seconds)) = app.within_rate(false) {
        return reply::too_soon(failure, seconds, &uri);
    }
    if let Err(denied) = app.may_administer("requests for snapshots") {
        return reply::response(Err(denied), &uri);
    }
    let newest = app.peers.snapshots().newest();
    let (bytes, log_bytes) = (newest.map_or(0, |newest| newest.bytes), app.core.view().get().log_bytes);
    let permit = match app.snapshot_requests.begin(&app.account_name(), bytes, log_bytes, Instant::now()) {
        Ok(permit) => Some(permit),
        Err(_) if app.has_current_snapshot(newest) => None,
        Err((failure, seconds)) => return reply::too_soon(failure, seconds, &uri),
    };
    // A client that hangs up ends neither the request nor the pause after it.
    let taken = tokio::spawn(async move {
        let taken = app.administer(Act::TakeSnapshot, app.take_snapshot()).await;
        drop(permit);
        taken
    });
    match taken.await.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended))) {
        Ok(snapshot) => Json(snapshot).into_response(),
        Err(failure) => reply::response(Err(failure), &uri),
    }
}

/// `GET /v1/snapshot`: the file of the newest snapshot.
pub(super) async fn read(Caller(app): Caller, uri: Uri) -> Response {
    if let Err((failure, seconds)) = app.within_rate(false) {
        return reply::too_soon(failure, seconds, &uri);
    }
    if let Err(denied) = app.may_administer("requests for snapshots") {
        return reply::response(Err(denied), &uri);
    }
    let permit = match app.may_read_snapshot() {
        Ok(permit) => permit,
        Err(failure) => return reply::response(Err(failure), &uri),
    };
    match app.administer(Act::ReadSnapshot, app.open_snapshot()).await {
        Ok((info, file)) => send(info, file, permit),
        Err(failure) => reply::response(Err(failure), &uri),
    }
}

fn send(info: SnapshotInfo, file: Box<dyn DiskFile>, permit: ReadPermit) -> Response {
    let name = format!("attachment; filename=\"snapshot-{:020}-{}.snap\"", info.last.index.0, info.last.term.0);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, info.bytes.into());
    if let Ok(name) = HeaderValue::try_from(name) {
        headers.insert(CONTENT_DISPOSITION, name);
    }
    (headers, Body::from_stream(pieces(file, info.bytes, permit))).into_response()
}

/// The file as a stream of pieces: at most one piece is in memory, however slowly the client reads.
fn pieces(file: Box<dyn DiskFile>, bytes: u64, permit: ReadPermit) -> impl Stream<Item = io::Result<Bytes>> {
    let download = Arc::new(Download::begin(file, bytes, permit));
    stream::try_unfold(0, move |at| {
        let download = Arc::clone(&download);
        async move {
            let length = usize::try_from(bytes - at).unwrap_or(SNAPSHOT_PIECE).min(SNAPSHOT_PIECE);
            if length == 0 {
                return Ok(None);
            }
            let mut piece = vec![0; length];
            let read = spawn_blocking(move || download.read_at(&mut piece, at).map(|()| piece));
            let piece = read.await??;
            Ok(Some((Bytes::from(piece), at + length as u64)))
        }
    })
}
