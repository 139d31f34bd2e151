//! One HTTP request: how servers are asked whether they serve.

use hyper::Request;

use crate::http::Http;

/// Sends a request without a body and returns the status and the body.
///
/// # Errors
/// The server could not be reached, or its answer could not be read.
pub(super) async fn request(method: &str, url: &str, headers: &[(&str, &str)]) -> Result<(u16, String), String> {
    // An object store refuses a put that does not state its length, which the client leaves out for 0.
    let mut request = Request::builder().method(method).uri(url).header("content-length", "0");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let reply = Http::closing_connections().send(request, "").await?;
    Ok((reply.status.as_u16(), reply.text()))
}

/// `GET http://ADDRESS/PATH`, whose status must be 200.
///
/// # Errors
/// As [`request`], and the status and body of another answer.
pub(super) async fn get(address: &str, path: &str) -> Result<String, String> {
    match request("GET", &format!("http://{address}{path}"), &[]).await? {
        (200, body) => Ok(body),
        (status, body) => Err(format!("GET {path} answers {status}: {}", body.trim())),
    }
}
