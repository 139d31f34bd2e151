//! All paths and their handlers. A path that is added here needs its description, too (`description/`).

use super::route_list::RouteList;
use super::{access, hold, kv, locks, members, node, published, sessions, snapshots, ui, watch, websocket};

/// The paths that the leader answers, or any node if a request asks for that.
pub(super) fn of_the_leader() -> RouteList {
    RouteList::default()
        .post("/v1/acquire", locks::acquire_several)
        .post("/v1/release", locks::release_several)
        .get("/v1/locks", locks::list)
        .get("/v1/locks/{key}", locks::show)
        .post("/v1/locks/{key}/acquire", locks::acquire)
        .post("/v1/locks/{key}/release", locks::release)
        .post("/v1/locks/{key}/proclaim", locks::proclaim)
        .post("/v1/locks/{key}/break", locks::break_grant)
        .get("/v1/kv", kv::list)
        .post("/v1/kv", kv::transact)
        .get("/v1/kv/{key}", kv::show)
        .put("/v1/kv/{key}", kv::put)
        .delete("/v1/kv/{key}", kv::delete)
        .post("/v1/kv/{key}/append", kv::append)
        .post("/v1/sessions", sessions::open)
        .get("/v1/sessions/{id}", sessions::show)
        .delete("/v1/sessions/{id}", sessions::close)
        .post("/v1/sessions/{id}/keepalive", sessions::keep_alive)
        .post("/v1/members", members::add)
        .delete("/v1/members/{id}", members::remove)
        .post("/v1/members/{id}/promote", members::promote)
        .post("/v1/members/{id}/replace", members::replace)
        .post("/v1/leader/transfer", members::transfer)
        .get("/v1/access", access::show)
        .put("/v1/access", access::set)
        .get("/v1/access/test", access::test)
        .any("/v1/ws", websocket::upgrade)
        .any("/v1/hold", hold::upgrade)
}

/// The paths that each node answers itself.
pub(super) fn of_each_node() -> RouteList {
    ui::add_to(RouteList::default())
        // An empty key matches none of the paths above: report an invalid key, not an unknown path.
        .any("/v1/locks/", locks::no_key)
        .any("/v1/locks//acquire", locks::no_key)
        .any("/v1/locks//release", locks::no_key)
        .any("/v1/locks//proclaim", locks::no_key)
        .any("/v1/locks//break", locks::no_key)
        .any("/v1/kv/", kv::no_key)
        .any("/v1/kv//append", kv::no_key)
        .get("/v1/members", members::list)
        .get("/v1/status", node::status)
        .get("/v1/snapshot", snapshots::read)
        .post("/v1/snapshot", snapshots::take)
        .get("/v1/watch", watch::watch)
        .get("/v1/openapi.json", published::openapi)
        .get("/v1/messages.json", published::messages)
        .get("/healthz", node::health)
        .get("/readyz", node::ready)
        .get("/metrics", node::metrics)
}
