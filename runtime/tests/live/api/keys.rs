//! Keys in paths: any UTF-8 of 1 to 512 bytes, percent-encoded.

use serde_json::json;

use super::calm;
use crate::support::http;

fn encoded(key: &str) -> String {
    key.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Every key comes back as it went in, whatever its characters mean to a URL.
#[test]
fn a_percent_encoded_key_is_that_key() {
    let (_cluster, node) = calm();
    let long = "k".repeat(512);
    let keys = ["plain", "a/b", "/", "..", ".", "a b", "a+b", "100%", "?x=1", "#", "äöü", "🔒", "\0", "\"\\\n", &long];
    for key in keys {
        let path = encoded(key);
        let grant = node.acquire(&path, &json!({})).ok();
        assert_eq!(grant["key"], key);
        let view = node.lock(&path);
        assert_eq!((&view["key"], &view["holder"]["token"]), (&json!(key), &grant["token"]));
        node.release(&path, &grant["session"], &grant["token"]).ok();
    }
    // What needs no encoding is the same with and without it, and a plus in a path is a plus.
    let grant = node.acquire("a+b", &json!({})).ok();
    assert_eq!(grant["key"], "a+b");
    assert_eq!(node.lock("%61%2bb")["holder"]["token"], grant["token"], "hexadecimal digits of either case");
}

/// Keys out of bounds are refused with a sentence that says so, wherever they appear.
#[test]
fn a_key_that_is_none_is_refused() {
    let (_cluster, node) = calm();
    // 513 bytes, also where they are fewer characters; none; and bytes that are no UTF-8.
    let bad =
        ["k".repeat(513), encoded(&"ä".repeat(257)), String::new(), "%FF".into(), "a%C3".into(), "%ED%A0%80".into()];
    for key in bad {
        let grant = json!({ "session": "00000000-0000-0000-0000-000000000000", "token": 1 });
        node.post(&format!("/v1/locks/{key}/acquire"), &json!({})).refused(400, "invalid");
        node.post(&format!("/v1/locks/{key}/release"), &grant).refused(400, "invalid");
        node.get(&format!("/v1/locks/{key}")).refused(400, "invalid");
    }
    // Raw bytes that belong in no URL are refused too; the connection is still in order.
    let mut request = b"GET /v1/locks/\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec();
    assert_eq!(http::raw(&node.0, &request).unwrap().status, 400);
    request.retain(|byte| byte.is_ascii());
    http::raw(&node.0, &request).unwrap().refused(400, "invalid");
    assert_eq!(node.get("/v1/locks").ok()["locks"], json!([]), "none of them took anything");
}
