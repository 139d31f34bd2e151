//! `GET /v1/watch`: the events of a key or a prefix, as a stream of server-sent events.
//!
//! A [`ClientWatch`] gives the parts of a watch one after the other, to this stream or to a WebSocket. It makes
//! the next part when the one before was taken, so a client that does not read keeps one part in memory: some events, or
//! a part of a listing, which counts towards the memory for large answers (`unread.rs`).

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use palisade_client::wire::{Answer, Code, Consistency, Failure, Listing, Watch, Watched};
use palisade_spec::lock::{Key, Right};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::listen::ConnectionPermit;
use super::{App, Caller, body, not_taken, reply};
use crate::addresses::ClientAddress;
use crate::budget::{Exhausted, Share};
use crate::core::{NotTaken, Query, Request, check_access, weight_of_listing};
use crate::limits;
use crate::tls::Access;
use crate::watch::{Filter, Shown, Told, Watcher};

/// With what a browser resumes a stream of events.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A watch of a client, within its limits.
pub(super) struct ClientWatch {
    app: App,
    watcher: Watcher,
    /// When the client is told that the watch lives, if nothing else is told before.
    keepalive: Instant,
    has_ended: bool,
    /// What the next listing takes of the memory for answers that are not read.
    unread: Option<Box<Share>>,
    _of_node: OwnedSemaphorePermit,
    _of_client: Option<OwnedSemaphorePermit>,
}

/// A part of a watch.
pub(super) enum Part {
    Events(Vec<Shown>),
    /// A part of a listing, and what it takes of the memory for answers that are not read until then.
    Listing(Listing, Option<Box<Share>>),
    /// What the client lacks is gone: the history begins behind this entry. A listing follows.
    Compacted(u64),
    /// Nothing has happened for a while; the node has applied this entry.
    Quiet(u64),
    /// The last part.
    End(Failure),
}

impl App {
    /// Begins a watch.
    pub(super) fn begin_watch(&self, watch: Watch) -> Result<ClientWatch, Failure> {
        let filter = filter(&watch)?;
        if self.core.view().leader().is_none() {
            return Err(no_leader());
        }
        if let Filter::Key(key) = &filter {
            check_access(&self.core.view().access(), &self.principal, Right::Read, key)?;
        }
        let of_client = self.account.as_ref().map(|account| {
            account.watch().map_err(|limit| {
                self.report_limit("watches", Some(limit as u64), account.name());
                let name = account.name();
                let message = format!(
                    "the limit of {limit} watches of one client is reached by {name}: end some of them, or let the operator \
                     raise --max-watches-per-client"
                );
                Failure::new(Code::Limit, message)
            })
        });
        let of_client = of_client.transpose()?;
        let of_node = Arc::clone(&self.watches).try_acquire_owned().map_err(|_| {
            let message =
                format!("the limit of {} watches at this node is reached: watch at another node", limits::WATCHES);
            Failure::new(Code::Limit, message)
        })?;
        let watcher = Watcher::new(&self.hub, filter, self.principal.clone(), watch.after);
        let (app, keepalive) = (self.clone(), Instant::now() + limits::WATCH_KEEPALIVE);
        Ok(ClientWatch {
            app,
            watcher,
            keepalive,
            has_ended: false,
            unread: None,
            _of_node: of_node,
            _of_client: of_client,
        })
    }
}

fn filter(watch: &Watch) -> Result<Filter, Failure> {
    let most = limits::KEY_BYTES;
    match (watch.key.as_deref(), watch.prefix.as_deref()) {
        (Some(key), None) if (1..=most).contains(&key.len()) => Ok(Filter::Key(key.into())),
        (Some(key), None) => Err(body::invalid(format!("the key has {} bytes; it may have 1 to {most}", key.len()))),
        (None, Some(prefix)) if prefix.len() <= most => Ok(Filter::Prefix(prefix.into())),
        (None, Some(prefix)) => {
            Err(body::invalid(format!("the prefix has {} bytes; it may have {most}", prefix.len())))
        }
        (None, None) => Err(body::invalid("a watch needs `key` or `prefix`: what to follow".into())),
        (Some(_), Some(_)) => {
            Err(body::invalid("a watch has `key` and `prefix`: give one of them, or begin two watches".into()))
        }
    }
}

fn no_leader() -> Failure {
    Failure::new(
        Code::NoLeader,
        "this node knows no leader at the moment, and may lack what happens: watch at another node",
    )
}

/// There is no memory for a part of a listing until it is read.
fn overloaded(exhausted: Exhausted) -> Failure {
    Failure::new(Code::Overloaded, format!("{exhausted}; read what was requested, and watch again"))
}

impl ClientWatch {
    /// Whether the next part may be one of a listing.
    pub(super) fn is_listing(&self) -> bool {
        !self.has_ended && self.watcher.is_listing()
    }

    /// The next part; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Part> {
        if self.has_ended {
            return None;
        }
        let part = self.part().await;
        self.keepalive = Instant::now() + limits::WATCH_KEEPALIVE;
        match &part {
            Part::Events(events) => drop(self.app.metrics.watch_events.inc_by(events.len() as u64)),
            Part::End(_) => self.has_ended = true,
            Part::Listing(..) | Part::Compacted(_) | Part::Quiet(_) => {}
        }
        Some(part)
    }

    async fn part(&mut self) -> Part {
        if let Some(after) = self.watcher.lacks() {
            match self.app.list(self.watcher.filter(), after).await {
                Ok(listing) => match self.app.hold_unread(&listing) {
                    Ok(unread) => {
                        self.unread = unread;
                        self.watcher.take_listing(listing);
                    }
                    Err(exhausted) => return Part::End(overloaded(exhausted)),
                },
                Err(failure) => return Part::End(failure),
            }
        }
        let Ok(told) = timeout_at(self.keepalive, self.watcher.told()).await else {
            return match self.app.core.view().leader() {
                Some(_) => Part::Quiet(self.app.hub.reached()),
                None => Part::End(no_leader()),
            };
        };
        match told {
            Told::Events(events) => Part::Events(events),
            Told::Listing(listing) => Part::Listing(listing, self.unread.take()),
            Told::Compacted(floor) => Part::Compacted(floor),
            Told::TooSlow => Part::End(self.too_slow()),
            Told::Denied => Part::End(self.denied()),
            Told::Closed => Part::End(not_taken(NotTaken::Ended)),
        }
    }

    fn too_slow(&self) -> Failure {
        self.app.metrics.watchers_cut_off.inc();
        let message = "the client reads too slowly: events that it has not read had to make room for newer ones. Watch again, \
                       after the last event that was read: that begins with a new listing";
        Failure::new(Code::TooSlow, message)
    }

    /// Why the reader is shown no more of the key.
    fn denied(&self) -> Failure {
        let key = match self.watcher.filter() {
            Filter::Key(key) => key,
            Filter::Prefix(prefix) => prefix,
        };
        let checked = check_access(&self.app.core.view().access(), self.watcher.reader(), Right::Read, key);
        checked.err().unwrap_or_else(|| {
            Failure::new(Code::Denied, "the access rules have just been changed, and did not permit it: watch again")
        })
    }
}

impl App {
    /// What a listing takes of the memory for answers that are not read.
    fn hold_unread(&self, listing: &Listing) -> Result<Option<Box<Share>>, Exhausted> {
        let Some(remote) = self.remote else { return Ok(None) };
        let share = self.unread_bytes.share(ClientAddress::from(remote));
        share.hold(weight_of_listing(listing))?;
        Ok(Some(Box::new(share)))
    }

    /// Reads a part of the state that this node has applied.
    async fn list(&self, filter: &Filter, after: Option<&str>) -> Result<Listing, Failure> {
        let query = match filter {
            Filter::Key(key) => Query::Listing(Key::from(&**key)),
            Filter::Prefix(prefix) => Query::ListingOf { prefix: prefix.to_string(), after: after.map(Key::from) },
        };
        let request = Request::Read(query, Consistency::Stale, self.principal.clone());
        match self.send_request(request).await? {
            Answer::Watched(Watched::Listing(listing)) => Ok(listing),
            other => unreachable!("a listing was asked for, and this is the answer: {other:?}"),
        }
    }
}

/// The data of an event `compacted`: what the client lacks is not all there any more. A listing follows.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Compacted {
    /// The node has all events of entries after this one.
    floor: u64,
    /// A sentence for people.
    message: &'static str,
}

impl Part {
    /// The part as a stream of server-sent events shows it, and what it takes of the memory for answers that are not read:
    /// as JSON a listing may be several times as long.
    fn into_event(self) -> Result<(Bytes, Option<Box<Share>>), Exhausted> {
        let text = self.text();
        let Part::Listing(_, unread) = self else { return Ok((text, None)) };
        unread.as_ref().map_or(Ok(()), |unread| unread.hold(text.len()))?;
        Ok((text, unread))
    }

    /// The part as a stream of server-sent events shows it.
    fn text(&self) -> Bytes {
        match self {
            Part::Events(events) => match &events[..] {
                [event] => event.text(),
                events => events.iter().map(Shown::text).collect::<Vec<_>>().concat().into(),
            },
            Part::Listing(listing, _) => {
                let json = serde_json::to_string(listing).expect("a listing has a JSON form");
                // A client that reconnects in the middle of a listing begins anew.
                let id = if listing.complete { format!("id: {}\n", listing.revision) } else { String::new() };
                format!("{id}event: listing\ndata: {json}\n\n").into()
            }
            Part::Compacted(floor) => {
                let message = "events after the one that was named are not there any more; a listing follows";
                let compacted = Compacted { floor: *floor, message };
                let json = serde_json::to_string(&compacted).expect("it has a JSON form");
                // A client that reconnects before the listing is complete resumes at no earlier event.
                format!("id:\nevent: compacted\ndata: {json}\n\n").into()
            }
            Part::Quiet(reached) => format!(": {reached}\n\n").into(),
            Part::End(failure) => {
                let json = serde_json::to_string(failure).expect("a failure has a JSON form");
                format!("event: end\ndata: {json}\n\n").into()
            }
        }
    }
}

/// `GET /v1/watch`
pub(super) async fn watch(
    Caller(app): Caller,
    permit: Option<Extension<Arc<ConnectionPermit>>>,
    access: Option<Extension<Access>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    if let Err((failure, seconds)) = app.within_rate(false) {
        return reply::too_soon(failure, seconds, &uri);
    }
    let (authorization, principal) = (headers.get(AUTHORIZATION).cloned(), app.principal.clone());
    let begun = query(&uri, &headers).and_then(|watch| app.begin_watch(watch));
    let watcher = match begun {
        Ok(watcher) => watcher,
        Err(failure) => {
            app.log_denial(&failure);
            if failure.error == Code::Invalid {
                app.metrics.frames_rejected.inc();
            }
            return reply::response(Err(failure), &uri);
        }
    };
    if let Some(Extension(permit)) = permit {
        permit.watches.store(true, Ordering::Relaxed);
    }
    let ended = Box::pin(async move {
        let Some(Extension(access)) = access else { return pending().await };
        access.ended(authorization.as_ref().map(HeaderValue::as_bytes), principal.as_str()).await
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Body::from_stream(events(watcher, ended))).into_response()
}

/// The watch as a stream of server-sent events, until its client no longer proves its identity. What a part takes of the
/// memory for answers that are not read is free when the next one is asked for: the part has been written by then.
fn events(
    watcher: ClientWatch,
    ended: impl Future<Output = String> + Send + Unpin,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(Some((watcher, ended, None)), async |state| {
        let (mut watcher, mut ended, _) = state?;
        let part = tokio::select! {
            part = watcher.next() => part?,
            why = &mut ended => {
                let end = Part::End(Failure::new(Code::Unauthenticated, why));
                return Some((Ok(end.text()), None));
            }
        };
        if let Part::End(failure) = &part {
            watcher.app.log_denial(failure);
        }
        Some(match part.into_event() {
            Ok((text, unread)) => (Ok(text), Some((watcher, ended, unread))),
            Err(exhausted) => (Ok(Part::End(overloaded(exhausted)).text()), None),
        })
    })
}

/// The watch of a query. A browser that reconnects repeats the query, and says in a header what it has
/// seen since.
fn query(uri: &Uri, headers: &HeaderMap) -> Result<Watch, Failure> {
    let mut watch: Watch = body::query(uri)?;
    if let Some(last) = headers.get(LAST_EVENT_ID) {
        let last =
            last.to_str().map_err(|_| body::invalid("the header Last-Event-ID is not the ID of an event".into()))?;
        watch.after = Some(last.parse().map_err(|error| body::invalid(format!("the header Last-Event-ID: {error}")))?);
    }
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::pin::pin;

    use futures_util::{FutureExt, StreamExt};
    use palisade_client::wire::{LockView, WaiterView};
    use palisade_spec::lock::Principal;

    use super::*;
    use crate::budget::{Budget, UNREAD};
    use crate::core::{Core, Event};
    use crate::http::admin::tests::app;

    /// As JSON it is longer than as text.
    fn listing() -> Listing {
        let waiter = || WaiterView { owner: "o\u{1}".repeat(50), ..WaiterView::default() };
        let lock = LockView { key: "k".into(), queue: (0..20).map(|_| waiter()).collect(), ..LockView::default() };
        Listing { revision: 1, begins: true, locks: vec![lock], records: Vec::new(), complete: true }
    }

    /// Goal: what an event takes until it is written is its text, and one that the memory has no room for is refused.
    #[test]
    fn event_counts_with_its_text() {
        let weight = weight_of_listing(&listing());
        let part = |limit| {
            let share = Budget::new(&UNREAD, limit).whole_share(SocketAddr::from(([10, 0, 0, 1], 1)).into());
            share.hold(weight).unwrap();
            Part::Listing(listing(), Some(Box::new(share)))
        };
        let length = part(weight).text().len();
        assert!(length > weight);
        assert!(part(length).into_event().is_ok());
        assert!(part(length - 1).into_event().is_err());
    }

    /// Goal: the listings that the clients at one address do not read, in however many watches, take no more than its
    /// part of the memory.
    #[tokio::test]
    async fn unread_listings_are_bounded() {
        let listing = listing();
        let (core, inbox) = Core::channel();
        let listed = listing.clone();
        std::thread::spawn(move || {
            while let Some(event) = inbox.next_event() {
                let Event::Request(Request::Read(..), responder) = event else { continue };
                responder.answer(Ok(Answer::Watched(Watched::Listing(listed.clone()))));
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let app = App {
            remote: Some(([10, 0, 0, 1], 1).into()),
            unread_bytes: Budget::new(&UNREAD, 80_000),
            ..app(directory.path(), core)
        };
        let watch = || ClientWatch {
            watcher: Watcher::new(&app.hub, Filter::Key("k".into()), Principal::default(), None),
            app: app.clone(),
            keepalive: Instant::now() + limits::WATCH_KEEPALIVE,
            has_ended: false,
            unread: None,
            _of_node: Arc::clone(&app.watches).try_acquire_owned().unwrap(),
            _of_client: None,
        };
        let first_part = async || watch().next().await.unwrap();
        let first = first_part().await;
        assert!(matches!(&first, Part::Listing(shown, Some(_)) if *shown == listing));
        assert!(matches!(first_part().await, Part::End(Failure { error: Code::Overloaded, .. })));
        drop(first);
        assert!(matches!(first_part().await, Part::Listing(..)), "the first one was read");

        // As events, a listing counts until the next event is asked for.
        let mut events = pin!(events(watch(), Box::pin(pending())));
        assert!(events.next().await.unwrap().unwrap().starts_with(b"id: 1\nevent: listing\n"));
        assert!(matches!(first_part().await, Part::End(Failure { error: Code::Overloaded, .. })));
        assert!(events.next().now_or_never().is_none(), "nothing has happened");
        assert!(matches!(first_part().await, Part::Listing(..)));
    }
}
