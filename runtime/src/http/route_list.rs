//! A router that can say which routes it has: a test compares them with the description of the interface.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodRouter, any, delete, get, post, put};

use super::App;

/// Paths and their handlers.
#[derive(Default)]
pub(super) struct RouteList {
    router: Router<App>,
    /// The method and the path of each; `*` for every method.
    #[cfg(test)]
    listed: Vec<(&'static str, &'static str)>,
}

impl RouteList {
    pub(super) fn get<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H) -> RouteList {
        self.add("get", path, get(handler))
    }

    pub(super) fn post<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H) -> RouteList {
        self.add("post", path, post(handler))
    }

    pub(super) fn put<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H) -> RouteList {
        self.add("put", path, put(handler))
    }

    pub(super) fn delete<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H) -> RouteList {
        self.add("delete", path, delete(handler))
    }

    pub(super) fn any<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H) -> RouteList {
        self.add("*", path, any(handler))
    }

    #[cfg_attr(not(test), allow(unused_variables, reason = "only a test asks for the list"))]
    fn add(mut self, method: &'static str, path: &'static str, handler: MethodRouter<App>) -> RouteList {
        #[cfg(test)]
        self.listed.push((method, path));
        self.router = self.router.route(path, handler);
        self
    }

    pub(super) fn into_router(self) -> Router<App> {
        self.router
    }

    /// The method and the path of each route; `*` for every method.
    #[cfg(test)]
    pub(super) fn listed(&self) -> &[(&'static str, &'static str)] {
        &self.listed
    }
}
