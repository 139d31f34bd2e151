//! The fenced resource as a process: its HTTP interface at every boundary, and what it remembers
//! after it was killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_lab::history::{Judgement, accesses, merge};
use palisade_lab::resource::client::{Answer, Client};
use palisade_lab::resource::log::Op;
use palisade_lab::worker::job::lines;

struct Resource {
    child: Child,
    addr: String,
}

impl Resource {
    fn start(flags: &[&str]) -> Resource {
        Resource::try_start(flags).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The resource, or what it printed instead of listening.
    fn try_start(flags: &[&str]) -> Result<Resource, String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_palisade-lab"))
            .arg("resource")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match serde_json::from_str::<serde_json::Value>(&line) {
            Ok(line) => Ok(Resource { child, addr: line["listening"].as_str().unwrap().to_owned() }),
            Err(_) => {
                let mut error = String::new();
                child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
                assert!(!child.wait().unwrap().success());
                Err(error)
            }
        }
    }

    fn client(&self) -> Client {
        Client::new(&format!("http://{}", self.addr), "test").unwrap()
    }

    /// Sends a request as it is written; returns the status and the body.
    fn raw(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n");
        stream.write_all(format!("{head}{headers}\r\n").as_bytes()).unwrap();
        // The resource may answer and close before it has read a body that is too long.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn put(&self, key: &str, token: u64) -> (u16, String) {
        self.raw("PUT", &format!("/r/{key}"), &format!("X-Fence-Token: {token}\r\n"), format!("by {token}").as_bytes())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn field(body: &str, name: &str) -> serde_json::Value {
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body:?}"));
    body[name].clone()
}

#[test]
fn tokens_must_rise() {
    let resource = Resource::start(&[]);
    assert_eq!(resource.put("k", 7).0, 200);
    let stale = |got| (409, format!(r#"{{"error":"stale fencing token","seen":7,"got":{got}}}"#));
    for got in [0, 6, 7] {
        assert_eq!(resource.put("k", got), stale(got));
        assert_eq!(resource.raw("POST", "/r/k/append", &format!("X-Fence-Token: {got}\r\n"), b"x"), stale(got));
    }
    assert_eq!(resource.raw("GET", "/r/k", "", b""), (200, r#"{"key":"k","value":"by 7","max_fence":7}"#.to_owned()));
    assert_eq!(resource.put("k", 8), (200, r#"{"max_fence":8}"#.to_owned()));
    assert_eq!(resource.put("k", u64::MAX).0, 200);
    assert_eq!(resource.put("k", u64::MAX).0, 409);
    assert_eq!(resource.put("another", 0).0, 200, "keys have tokens of their own");
    assert_eq!(resource.put("another", 0).0, 409);
}

#[test]
fn the_holder_may_write_again_if_that_is_allowed() {
    let resource = Resource::start(&["--same-token", "allow"]);
    for (token, status) in [(7, 200), (7, 200), (6, 409), (8, 200), (7, 409), (u64::MAX, 200), (u64::MAX, 200)] {
        assert_eq!(resource.put("k", token).0, status, "token {token}");
    }
    assert_eq!(resource.raw("POST", "/r/k/append", &format!("X-Fence-Token: {}\r\n", u64::MAX), b"!").0, 200);
    let (_, body) = resource.raw("GET", "/r/k", "", b"");
    assert_eq!(field(&body, "value"), format!("by {}!", u64::MAX));
}

#[tokio::test]
async fn without_the_fence_stale_writes_are_accepted_and_counted() {
    let resource = Resource::start(&["--fence", "off"]);
    for token in [7, 6, 7, 8] {
        assert_eq!(resource.put("k", token).0, 200);
    }
    let (_, body) = resource.raw("GET", "/r/k", "", b"");
    assert_eq!((field(&body, "value"), field(&body, "max_fence")), ("by 8".into(), 8.into()));
    let client = resource.client();
    assert_eq!(client.counter("resource_writes_total").await.unwrap(), 4);
    assert_eq!(client.counter("resource_stale_writes_accepted_total").await.unwrap(), 1);
    assert_eq!(client.counter("resource_stale_token_rejections_total").await.unwrap(), 0);
}

#[test]
fn a_request_that_is_not_understood_names_its_field() {
    let resource = Resource::start(&[]);
    let token = "X-Fence-Token";
    let beyond = format!("{token}: {}0\r\n", u64::MAX);
    /// Method, path, headers, body; status, and the field that is named.
    type Case<'a> = (&'a str, &'a str, &'a str, &'a [u8], u16, &'a str);
    let cases: [Case<'_>; 14] = [
        ("PUT", "/r/k", "", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token:\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: seven\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: 7.0\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: 0x7\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: -1\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: +1\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: 18446744073709551616\r\n", b"", 400, token),
        ("PUT", "/r/k", &beyond, b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: 1\r\nX-Fence-Token: 2\r\n", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: 1, 2\r\n", b"", 400, token),
        ("POST", "/r/k/append", "", b"", 400, token),
        ("PUT", "/r/k", "X-Fence-Token: 1\r\n", b"\xff", 400, "body"),
        ("PUT", "/r/%ff", "X-Fence-Token: 1\r\n", b"", 400, "key"),
    ];
    for (method, path, headers, body, status, name) in cases {
        let (seen, answer) = resource.raw(method, path, headers, body);
        assert_eq!((seen, field(&answer, "field")), (status, name.into()), "{headers:?} {answer}");
    }
    let long = format!("/r/{}", "k".repeat(1025));
    assert_eq!(resource.raw("PUT", &long, "X-Fence-Token: 1\r\n", b"").0, 400);
    assert_eq!(resource.raw("GET", "/r/k", "", b"").0, 404, "none of these has written anything");
}

#[test]
fn bodies_have_a_limit() {
    let resource = Resource::start(&[]);
    let (status, answer) = resource.raw("PUT", "/r/k", "X-Fence-Token: 1\r\n", &vec![b'x'; (1 << 20) + 1]);
    assert_eq!((status, field(&answer, "field")), (413, "body".into()));
    assert_eq!(resource.raw("PUT", "/r/k", "X-Fence-Token: 1\r\n", &vec![b'x'; 1 << 20]).0, 200);
    let (_, answer) = resource.raw("GET", "/r/k", "", b"");
    assert_eq!(field(&answer, "value").as_str().unwrap().len(), 1 << 20);
}

#[test]
fn unknown_routes_and_methods_answer_in_json() {
    let resource = Resource::start(&[]);
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/r", 404),
        ("GET", "/r/", 404),
        ("PUT", "/r/a/b", 404),
        ("GET", "/r/k", 404),
        ("DELETE", "/r/k", 405),
        ("PUT", "/r/k/append", 405),
    ] {
        let (seen, answer) = resource.raw(method, path, "", b"");
        assert!(seen == status && field(&answer, "error").is_string(), "{method} {path}: {seen} {answer}");
    }
}

#[test]
fn keys_are_any_text_in_one_segment() {
    let resource = Resource::start(&[]);
    assert_eq!(resource.put("a%2Fb%20%C3%A9", 1).0, 200);
    let (_, answer) = resource.raw("GET", "/r/a%2Fb%20%C3%A9", "", b"");
    assert_eq!(field(&answer, "key"), "a/b é");
}

#[test]
fn metrics_have_the_names_of_the_contract() {
    let resource = Resource::start(&[]);
    resource.put("k", 2);
    resource.put("k", 1);
    let (status, text) = resource.raw("GET", "/metrics", "", b"");
    assert_eq!(status, 200);
    for line in ["resource_writes_total 1", "resource_stale_token_rejections_total 1", "lock_acquire_attempts_total 0"]
    {
        assert!(text.lines().any(|seen| seen == line), "{line} is missing in\n{text}");
    }
    assert_eq!(text.matches("# EOF").count(), 1);
    assert!(text.ends_with("# EOF\n"));
}

/// Many clients at once, and each token twice, far out of order: the accepted writes have one order,
/// which is that of their tokens. Returns the accepted tokens in the order of the value.
async fn hammer(flags: &[&str]) -> Vec<u64> {
    let resource = Resource::start(flags);
    let client = resource.client();
    let tasks: Vec<_> = (0..400_u64)
        .map(|number| {
            // 89 and 200 have no common divisor.
            let (client, token) = (client.clone(), number * 89 % 200);
            tokio::spawn(async move {
                let answer = client.write("k", Op::Append, token, &format!("token {token}\n")).await.unwrap();
                matches!(answer, Answer::Accepted { .. }).then_some(token)
            })
        })
        .collect();
    let mut accepted = Vec::new();
    for task in tasks {
        accepted.extend(task.await.unwrap());
    }
    accepted.sort_unstable();
    let value = client.read("k").await.unwrap().unwrap();
    assert_eq!(lines(&value.value), accepted, "the value has the accepted writes in the order of their tokens");
    assert_eq!((accepted.last(), value.max_fence), (Some(&199), 199));
    assert_eq!(client.counter("resource_writes_total").await.unwrap(), accepted.len() as u64);
    assert_eq!(client.counter("resource_stale_token_rejections_total").await.unwrap(), 400 - accepted.len() as u64);
    accepted
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_have_one_order() {
    let directory = tempfile::tempdir().unwrap();
    let accepted = hammer(&["--data", text(directory.path())]).await;
    assert!(accepted.windows(2).all(|pair| pair[0] < pair[1]), "no token was accepted twice: {accepted:?}");
}

/// The checkers know the rule by which a token is good for several writes.
#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_concurrent_writes_is_accepted_by_the_checkers() {
    let directory = tempfile::tempdir().unwrap();
    let (data, history) = (directory.path().join("data"), directory.path().join("history"));
    let flags = ["--same-token", "allow", "--data", text(&data), "--history", text(&history)];
    let accepted = hammer(&flags).await;
    let history = merge(&[&history]).unwrap();
    assert_eq!(accesses(&history), (accepted.len(), 400 - accepted.len()));
    assert_eq!(Judgement::of(&history).resource, Vec::<String>::new());
}

/// The resource is killed under load, several times: every write that was answered is there, and no
/// token is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_resource_forgets_no_answered_write() {
    let directory = tempfile::tempdir().unwrap();
    kill_under_load(&["--data", text(directory.path())]).await;
}

/// The same while the log is compacted again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_is_killed_while_it_compacts_forgets_no_answered_write() {
    let directory = tempfile::tempdir().unwrap();
    let kept = kill_under_load(&["--data", text(directory.path()), "--compact-at", "100"]).await;
    let log = std::fs::metadata(directory.path().join("resource.log")).unwrap().len();
    assert!(log < 3 * kept + 4096, "the log has {log} bytes, for values of {kept} bytes");
}

#[test]
fn a_long_log_is_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--data", text(directory.path())];
    let mut resource = Resource::start(&flags);
    let body = vec![b'x'; 1 << 20];
    for token in 1..=12_u64 {
        let key = if token % 2 == 0 { "/r/even" } else { "/r/odd" };
        assert_eq!(resource.raw("PUT", key, &format!("X-Fence-Token: {token}\r\n"), &body).0, 200);
    }
    let log = std::fs::metadata(directory.path().join("resource.log")).unwrap().len();
    assert!(((2 << 20)..(7 << 20)).contains(&log), "{log} bytes");
    resource.kill();
    let resource = Resource::start(&flags);
    assert_eq!((resource.put("odd", 11).0, resource.put("even", 12).0), (409, 409));
    let (_, answer) = resource.raw("GET", "/r/even", "", b"");
    assert_eq!((field(&answer, "value").as_str().unwrap().len(), field(&answer, "max_fence")), (1 << 20, 12.into()));
    assert_eq!((resource.put("odd", 12).0, resource.put("even", 13).0), (200, 200));
}

/// Kills a resource with these flags under load, several times. Returns the length of all values.
async fn kill_under_load(flags: &[&str]) -> u64 {
    let next = Arc::new(AtomicU64::new(1));
    let mut answered: Vec<Vec<u64>> = vec![Vec::new(); 4];
    for _ in 0..5 {
        let mut resource = Resource::start(flags);
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (client, next) = (resource.client(), next.clone());
                tokio::spawn(async move {
                    let mut answered = Vec::new();
                    loop {
                        let token = next.fetch_add(1, Ordering::SeqCst);
                        let line = format!("token {token}\n");
                        match client.write(&format!("k{writer}"), Op::Append, token, &line).await {
                            Ok(Answer::Accepted { .. }) => answered.push(token),
                            Ok(refused) => panic!("token {token}: {refused:?}"),
                            Err(_) => return answered,
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        resource.kill();
        for (writer, task) in writers.into_iter().enumerate() {
            answered[writer].extend(task.await.unwrap());
        }
    }
    let resource = Resource::start(flags);
    let mut kept = 0;
    for (writer, answered) in answered.iter().enumerate() {
        assert!(answered.len() > 20, "writer {writer} got {} answers only", answered.len());
        let (client, key) = (resource.client(), format!("k{writer}"));
        let value = client.read(&key).await.unwrap().unwrap();
        kept += value.value.len() as u64;
        let tokens = lines(&value.value);
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "the order is kept");
        for token in answered {
            assert!(tokens.binary_search(token).is_ok(), "the answered write of token {token} to {key} is lost");
        }
        let (last, max) = (*answered.last().unwrap(), value.max_fence);
        assert!(max >= last);
        assert_eq!(client.write(&key, Op::Put, max, "").await.unwrap(), Answer::Stale { seen: max });
    }
    kept
}

#[test]
fn a_torn_last_write_is_cut_and_other_damage_refuses_to_start() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--data", directory.path().to_str().unwrap()];
    let log = directory.path().join("resource.log");
    let mut resource = Resource::start(&flags);
    assert_eq!((resource.put("k", 1).0, resource.put("k", 2).0), (200, 200));
    resource.kill();
    let whole = std::fs::read(&log).unwrap();

    std::fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    let mut resource = Resource::start(&flags);
    let (_, answer) = resource.raw("GET", "/r/k", "", b"");
    assert_eq!((field(&answer, "value"), field(&answer, "max_fence")), ("by 1".into(), 1.into()));
    assert_eq!((resource.put("k", 1).0, resource.put("k", 2).0), (409, 200));
    resource.kill();
    assert_eq!(std::fs::read(&log).unwrap(), whole, "the log continues where it was cut");

    for at in [0, 40, 100, whole.len() - 2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x01;
        std::fs::write(&log, &damaged).unwrap();
        let error = Resource::try_start(&flags).err().unwrap_or_else(|| panic!("started with byte {at} damaged"));
        assert!(error.contains("is damaged at offset") && error.contains(text(&log)), "{error}");
        assert_eq!(std::fs::read(&log).unwrap(), damaged, "a damaged log is left as it is");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Goal: a client that presents the greatest number there is locks out all later holders of a
/// resource that believes numbers, and no holder of a resource that requires signatures.
#[test]
fn made_up_token_gets_nowhere_where_signatures_are_required() {
    use palisade_fence::{RootKey, Terms, unix_time};
    let believes = Resource::start(&[]);
    assert_eq!((believes.put("k", u64::MAX).0, believes.put("k", 7).0), (200, 409), "the holder is locked out");

    let root = RootKey::from_seed([1; 32]);
    let now = unix_time();
    let signer = |epoch| {
        let terms = Terms { cluster: "billing".into(), epoch, not_before: now - 60, not_after: now + 600 };
        root.issue([2; 32], &terms).unwrap()
    };
    let public = root.root().unwrap().to_string();
    let resource = Resource::start(&["--require-signature", &public, "--cluster", "billing"]);
    let put = |key: &str, headers: String| resource.raw("PUT", &format!("/r/{key}"), &headers, b"value");
    let signed = |token| format!("X-Signed-Token: {}\r\n", signer(0).sign("k", token, 1));

    let (status, answer) = resource.put("k", u64::MAX);
    assert!(status == 403 && answer.contains("requires one header X-Signed-Token"), "{answer}");
    assert_eq!(put("k", signed(7)).0, 200);
    let stale = put("k", signed(6));
    assert_eq!((stale.0, field(&stale.1, "seen")), (409, 7.into()));
    assert_eq!(put("k", signed(8) + "X-Fence-Token: 8\r\n").0, 200);
    for (key, headers, sentence) in [
        ("k", format!("X-Signed-Token: {}\r\n", u64::MAX), "(malformed)"),
        ("other", signed(9), "(wrong_key)"),
        ("k", signed(9) + "X-Fence-Token: 18446744073709551615\r\n", "differs from the signed token, which is 9"),
        ("k", signed(9) + &signed(10), "requires one header X-Signed-Token"),
        ("k", format!("X-Signed-Token: {}\r\n", signer(1).sign("k", 9, 1)), "is of restore epoch 1"),
        (
            "k",
            format!(
                "X-Signed-Token: {}\r\n",
                RootKey::from_seed([3; 32])
                    .issue(
                        [2; 32],
                        &Terms { cluster: "billing".into(), epoch: 0, not_before: now - 60, not_after: now + 600 }
                    )
                    .unwrap()
                    .sign("k", 9, 1)
            ),
            "(unknown_root)",
        ),
    ] {
        let (status, answer) = put(key, headers);
        assert!(status == 403 && answer.contains(sentence), "{sentence}: {answer}");
    }
    assert_eq!(put("k", signed(9)).0, 200);
}
