//! One HTTP request: how servers are asked whether they serve.

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Sends a request without a body and returns the status and the body.
///
/// # Errors
/// The server could not be reached, or its answer could not be read.
pub(super) async fn request(method: &str, url: &str, headers: &[(&str, &str)]) -> Result<(u16, String), String> {
    // An object store refuses a put that does not state its length, which the client leaves out for 0.
    let mut builder = Request::builder().method(method).uri(url).header("content-length", "0");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let request = builder.body(Full::<Bytes>::default()).map_err(|error| format!("{url}: {error}"))?;
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(HttpConnector::new());
    let response = client.request(request).await.map_err(|error| reason(&error))?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
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

/// The error with its causes: the client's own text is only "client error (Connect)".
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
