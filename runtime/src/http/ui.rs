//! The web page for operators, at `/ui/`: what the cluster does, its locks and its records.
//!
//! The page is part of the program and needs nothing from elsewhere, so it works where operators have no
//! way to the internet. It reads and changes what a client can, through the same interface: the files
//! themselves tell nothing, so they are served without an identity. A page that could be made to run
//! another site's script would act for its operator, so its policy permits this node's own files only.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::route_list::RouteList;

/// Where the page is.
const PAGE: &str = "/ui/";

/// What the page may do in a browser: load the files of this node, and send requests to this node. No
/// other page may frame it, to have its buttons pressed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
pub(super) struct File {
    pub(super) path: &'static str,
    pub(super) kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

pub(super) const FILES: [File; 7] = [
    File { path: PAGE, kind: HTML, text: include_str!("ui/index.html") },
    File { path: "/ui/style.css", kind: CSS, text: include_str!("ui/style.css") },
    File { path: "/ui/page.js", kind: SCRIPT, text: include_str!("ui/page.js") },
    File { path: "/ui/views.js", kind: SCRIPT, text: include_str!("ui/views.js") },
    File { path: "/ui/elements.js", kind: SCRIPT, text: include_str!("ui/elements.js") },
    File { path: "/ui/table.js", kind: SCRIPT, text: include_str!("ui/table.js") },
    File { path: "/ui/node.js", kind: SCRIPT, text: include_str!("ui/node.js") },
];

/// The paths that lead to the page.
pub(super) const SHORT: [&str; 2] = ["/", "/ui"];

/// Whether the path is one of the page's files, or leads there.
pub(super) fn has(path: &str) -> bool {
    SHORT.contains(&path) || FILES.iter().any(|file| file.path == path)
}

/// Adds the page's files.
pub(super) fn add_to(routes: RouteList) -> RouteList {
    let routes = SHORT.iter().fold(routes, |routes, path| routes.get(path, to_page));
    FILES.iter().fold(routes, |routes, file| routes.get(file.path, async || file.response()))
}

async fn to_page() -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, PAGE)]).into_response()
}

impl File {
    fn response(&self) -> Response {
        let headers: [(HeaderName, &str); 5] = [
            (CONTENT_TYPE, self.kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            // The page belongs to the node's version: a browser must not show that of an earlier one.
            (CACHE_CONTROL, "no-store"),
            // A link to another node's page must not tell it the key that is looked at.
            (REFERRER_POLICY, "same-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_str(value).expect("a constant of letters")));
        (headers, Body::from(self.text)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the page loads nothing from elsewhere, and no file has code that the policy would refuse:
    /// scripts and styles inside the HTML, and texts that are made into HTML.
    #[test]
    fn page_has_only_files_of_its_own() {
        for File { path, text, .. } in FILES {
            for forbidden in ["http://", "https://", "@import", "innerHTML", "outerHTML", "insertAdjacent", "eval("] {
                // The name of the language of drawings is no address.
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(forbidden), "{path} has {forbidden}");
            }
        }
        let html = FILES[0].text;
        for forbidden in ["style=", "<style", "onclick", "onload", "javascript:"] {
            assert!(!html.contains(forbidden), "the page has {forbidden}");
        }
        assert_eq!(html.matches("<script").count(), html.matches("<script type=\"module\" src=\"").count());
    }

    #[test]
    fn only_paths_of_the_page_are_its() {
        for path in ["/", "/ui", "/ui/", "/ui/page.js", "/ui/style.css"] {
            assert!(has(path), "{path}");
        }
        for path in ["", "/ui/other.js", "/ui/../v1/status", "/v1/status", "/metrics", "/UI/", "//"] {
            assert!(!has(path), "{path}");
        }
    }
}
