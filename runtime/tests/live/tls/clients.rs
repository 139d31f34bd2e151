//! The port for clients: each request has a verified sender, or is refused with the reason.

use std::process::Output;
use std::time::Duration;

use palisade_client::tls::Stream;
use palisade_client::{Client, Error, LockOptions, Options, Security};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::support::certificates::{Certificates, EXPIRED, cert};
use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade, said};
use crate::support::{eventually, http, https};

/// A token for `name`: the file that has it, and the line for the nodes.
pub(crate) fn token(certificates: &Certificates, name: &str) -> (Security, String) {
    let printed = cert(&["token", "--name", name]);
    let [token, line] = printed.lines().collect::<Vec<_>>()[..] else { panic!("two lines: {printed}") };
    assert!(line.starts_with(&format!("{name}:")) && !line.contains(token), "{printed}");
    let file = certificates.beside(&format!("{name}.token"));
    std::fs::write(&file, format!("{token}\n")).unwrap();
    (certificates.anonymous().with_token_file(file), line.to_owned())
}

/// Runs `palisade` with this security at the node that serves clients at this address.
pub(crate) fn run(address: &str, security: &Security, arguments: &[&str]) -> Output {
    let mut command = palisade();
    let (options, rest) =
        arguments.split_at(arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len()));
    command.args(options).args(["--endpoints", &format!("https://{address}")]);
    output(command.args(Certificates::arguments(security)).args(rest))
}

/// Connects with the Rust client: why that fails.
fn refusal(cluster: &Cluster, security: &Security) -> palisade_client::Error {
    let options =
        Options { security: security.clone(), connect_timeout: Duration::from_secs(60), ..Options::default() };
    https::block_on(Client::connect(&cluster.endpoints(), options)).expect_err("no node lets it in")
}

/// Goal: a certificate of the CA, or a token of the file, opens the port; nothing else does, and the
/// refusal says which.
#[test]
fn client_without_a_valid_identity_is_refused_with_the_reason() {
    let (ours, others) = (Certificates::of("billing", 3), Certificates::of("other", 1));
    ours.trust(&others);
    ours.issue_client("late", &EXPIRED);
    let unknown = Certificates::of("billing", 1);
    let (worker, line) = token(&ours, "worker");
    let (gone, revoked) = token(&ours, "gone");
    let (never, _) = token(&ours, "never");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, format!("{line}\n{revoked}\n")).unwrap();
    let cluster = Cluster::start_secured(3, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let address = cluster.client_addr(1);
    let status = |security: &Security| https::get(&address, security, "/v1/status");

    for good in [ours.client("test"), worker.clone(), gone.clone(), ours.with(&ours, "node-2")] {
        status(&good).unwrap().ok();
    }
    let message =
        |security: &Security| status(security).unwrap().refused(401, "unauthenticated")["message"].to_string();
    let refused = [
        (ours.anonymous(), "the request proves no identity: present a client certificate"),
        (ours.with(&others, "client-test"), "the client's certificate is of cluster `other`, not of cluster `billing`"),
        (never.clone(), "the bearer token is unknown, or was revoked"),
    ];
    for (security, why) in &refused {
        let message = message(security);
        assert!(message.contains(why), "{message}");
        eventually("the operator reads it", || cluster.log(1).contains(why).then_some(()));
        // The Rust client and the command line say the same; the client does not try until its time is over.
        let error = refusal(&cluster, security);
        assert!(matches!(&error, Error::Unauthenticated { trouble } if trouble.contains(why)), "{error}");
        let asked = run(&address, security, &["status"]);
        assert!(asked.status.code() == Some(69) && said(&asked).contains(why), "{}", said(&asked));
    }
    let refused = [
        (ours.client("late"), "it refuses this side's certificate: it has expired", "its certificate has expired"),
        (
            ours.with(&unknown, "client-test"),
            "it refuses this side's certificate: another CA issued it",
            "its certificate was issued by another CA",
        ),
    ];
    for (security, why, logged) in &refused {
        let error = status(security).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        let error = refusal(&cluster, security);
        assert!(matches!(&error, Error::Unauthenticated { trouble } if trouble.contains(why)), "{error}");
        eventually("the operator reads it", || cluster.log(1).contains(logged).then_some(()));
        let asked = run(&address, security, &["status"]);
        assert!(asked.status.code() == Some(69) && said(&asked).contains(why), "{}", said(&asked));
    }

    // Without TLS the port says nothing; a client that trusts another CA does not speak to it.
    assert!(http::get(&address, "/v1/status").is_err());
    let plain = output(palisade().args(["status", "--endpoints", &address]));
    assert!(
        plain.status.code() == Some(69) && said(&plain).contains("name the CA's certificate (--ca FILE"),
        "{plain:?}"
    );
    let error = status(&others.client("test")).unwrap_err().to_string();
    assert!(error.contains("its certificate was issued by another CA"), "{error}");
    // Its refusals have what every answer has, and another host is refused first.
    let refused = https::get(&address, &ours.anonymous(), "/v1/status").unwrap();
    assert_eq!(refused.header("x-content-type-options"), Some("nosniff"), "{}", refused.head);
    let foreign = b"GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let foreign = https::exchange(&address, &ours.anonymous(), foreign).unwrap();
    http::parse(&foreign).unwrap().refused(421, "wrong_host");
    // What tells whether the process lives, and can serve clients, needs no identity, and tells no more.
    assert_eq!(https::get(&address, &ours.anonymous(), "/healthz").unwrap().status, 200);
    let leader = cluster.wait_ready();
    for id in cluster.ids() {
        let get = |path| https::get(&cluster.client_addr(id), &ours.anonymous(), path).unwrap();
        eventually("the node knows the leader", || (get("/readyz").status == 200).then_some(()));
        assert_eq!(get("/readyz").body, "ok\n");
        let leads = get("/readyz?leader=1");
        assert_eq!(leads.status, if id == leader { 200 } else { 503 });
        assert!(!leads.body.contains(&format!("node {leader}")), "{}", leads.body);
    }

    let file = ours.beside("refused.snapshot");
    let saved = run(&address, &ours.anonymous(), &["snapshot", "save", file.to_str().unwrap()]);
    assert!(saved.status.code() == Some(77) && said(&saved).contains("proves no identity"), "{}", said(&saved));
    let locked = run(&address, &ours.anonymous(), &["lock", "k", "--", "true"]);
    assert!(locked.status.code() == Some(77) && said(&locked).contains("proves no identity"), "{}", said(&locked));

    // Two clients hold locks over WebSockets; the token of one is removed.
    let held = https::block_on(async {
        let mut held = Vec::new();
        for (key, security) in [("kept", &worker), ("gone", &gone)] {
            let options = Options { security: security.clone(), ..Options::default() };
            let client = Client::connect(&cluster.endpoints(), options).await.unwrap();
            let lock = LockOptions::default().ttl(Duration::from_secs(2));
            held.push((client.lock(key, lock).await.unwrap(), client));
        }
        std::fs::write(&tokens, format!("{line}\n")).unwrap();
        // Its WebSocket is closed, and no node renews its lease any more.
        timeout(Duration::from_secs(60), held[1].0.lost()).await.expect("the lock of a revoked token is lost");
        held[0].0.is_valid()
    });
    assert!(held, "the other client goes on");
    eventually("the removed token is revoked", || {
        let refused = status(&gone).unwrap();
        (refused.status == 401).then(|| {
            let message = refused.refused(401, "unauthenticated")["message"].to_string();
            assert!(message.contains("the bearer token of `gone` was revoked"), "{message}");
        })
    });
    status(&worker).unwrap().ok();
}

/// Goal: the commands work over TLS through a node that is not the leader: a redirect and the name
/// of the leader keep TLS.
#[test]
fn commands_work_through_a_follower() {
    let ours = Certificates::of("billing", 3);
    let cluster = Cluster::start_secured(3, &[], &ours);
    let (leader, follower) = cluster.roles();
    let (client, address) = (ours.client("test"), cluster.client_addr(follower));
    let locked = run(&address, &client, &["lock", "k", "--", "sh", "-c", "echo token $PALISADE_TOKEN"]);
    assert!(said(&locked).contains("token 1"), "{}", said(&locked));
    for arguments in [&["status"][..], &["locks"], &["show", "k"], &["members", "list"]] {
        let shown = run(&address, &client, arguments);
        assert!(shown.status.success(), "{arguments:?}: {}", said(&shown));
    }
    let file = ours.beside("snapshot");
    let saved = run(&address, &client, &["snapshot", "save", file.to_str().unwrap()]);
    assert!(saved.status.success(), "{}", said(&saved));

    let redirect = https::get_unforwarded(&address, &client, "/v1/locks/k").unwrap();
    assert_eq!(redirect.status, 307, "{}", redirect.body);
    let location = format!("https://{}/v1/locks/k", cluster.client_addr(leader));
    assert_eq!(redirect.header("location"), Some(location.as_str()));
}

/// Goal: what is said without a CA, and of a file that cannot be used, is a sentence that names it.
#[test]
fn client_names_the_file_that_it_lacks() {
    let ours = Certificates::of("billing", 1);
    let asked = |arguments: &[&str]| {
        let result = output(palisade().args(["status", "--endpoints", "https://127.0.0.1:1"]).args(arguments));
        (result.status.code(), said(&result))
    };
    let (code, said) = asked(&[]);
    assert!(code == Some(64) && said.contains("https://127.0.0.1:1 demands TLS, and no CA is given"), "{said}");
    let (code, said) = asked(&["--ca", "/nowhere/ca.pem"]);
    assert!(code == Some(64) && said.contains("cannot read /nowhere/ca.pem"), "{said}");
    let ca = ours.ca().display().to_string();
    let ((cert, _), (_, key)) = (ours.pair("client-test"), ours.pair("node-1"));
    let (code, said) = asked(&["--ca", &ca, "--cert", cert.to_str().unwrap(), "--cert-key", key.to_str().unwrap()]);
    assert!(code == Some(64) && said.contains("does not belong to the certificate"), "{said}");
    let (code, said) = asked(&["--token-file", &ca]);
    assert!(code == Some(2) && said.contains("--ca <FILE>"), "a token never travels in plain text: {said}");
}

/// Goal: the server speaks TLS 1.3, and a stranger who says nothing keeps no connection.
#[test]
fn silent_stranger_is_disconnected() {
    let ours = Certificates::of("billing", 1);
    let cluster = Cluster::start_secured(1, &[], &ours);
    let dialled = https::block_on(ours.client("test").dial(&cluster.client_addr(1))).unwrap();
    let Stream::Tls(stream) = dialled else { panic!("it is encrypted") };
    let version = format!("{:?}", stream.get_ref().1.protocol_version().unwrap());
    assert_eq!(version, "TLSv1_3");
    for address in [cluster.client_addr(1), cluster.peer_addr(1)] {
        let mut silent = std::net::TcpStream::connect(address).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let ended = std::io::Read::read(&mut silent, &mut [0]);
        assert!(matches!(ended, Ok(0)), "{ended:?}");
    }
}

/// Goal: a node that stops does not wait for handshakes that are in progress. It waits 2 s for
/// connections that serve a request.
#[test]
fn node_stops_without_waiting_for_handshakes() {
    let ours = Certificates::of("billing", 1);
    let mut cluster = Cluster::start_secured(1, &[], &ours);
    let address = cluster.client_addr(1);
    let silent = std::net::TcpStream::connect(&address).unwrap();
    let mut half = std::net::TcpStream::connect(&address).unwrap();
    std::io::Write::write_all(&mut half, b"\x16\x03\x01").unwrap();
    // Both are accepted when a later connection is.
    https::get(&address, &ours.anonymous(), "/healthz").unwrap();
    cluster.stop(1);
    let log = cluster.log(1);
    assert!(!log.contains("had not finished"), "{log}");
    drop((silent, half));

    cluster.restart(1);
    cluster.wait_ready();
    let begin = format!("POST /v1/locks/k/acquire HTTP/1.1\r\nHost: {address}\r\nContent-Length: 2\r\n\r\n{{");
    let unfinished = https::block_on(async {
        let mut stream = ours.client("test").dial(&address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        stream
    });
    // The node reads it before another client's request is answered, or soon after.
    https::get(&address, &ours.anonymous(), "/healthz").unwrap();
    cluster.stop(1);
    let log = cluster.log(1);
    assert!(log.contains("closed connections that had not finished"), "{log}");
    drop(unfinished);
}

/// Goal: a browser may present its user's certificate with the request of a page of an allowed origin that may not read the
/// answer: the node refuses it, and changes nothing. With a bearer token the page may do what the token's client may.
#[test]
fn page_of_another_origin_needs_a_token() {
    let ours = Certificates::of("billing", 1);
    let (page, line) = token(&ours, "page");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, line).unwrap();
    let flags = ["--allow-origin", "https://app.example", "--client-tokens", tokens.to_str().unwrap()];
    let cluster = Cluster::start_secured(1, &flags, &ours);
    let address = cluster.client_addr(1);
    cluster.wait_ready();
    let ask = |security: &Security, request: &str| {
        let origin =
            format!("{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nOrigin: https://app.example\r\n");
        let bytes = format!("{origin}Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}");
        http::parse(&https::exchange(&address, security, bytes.as_bytes()).unwrap()).unwrap()
    };
    let user = ours.client("test");
    let refused = ask(&user, "POST /v1/locks/k/acquire").refused(401, "unauthenticated");
    assert!(refused["message"].as_str().unwrap().contains("by a bearer token"), "{refused}");
    let lock = https::get(&address, &user, "/v1/locks/k").unwrap().ok();
    assert_eq!(lock["held"], false, "it changed nothing");
    assert_eq!(ask(&user, "GET /readyz").status, 200);
    let bytes = format!(
        "POST /v1/locks/k/acquire HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nOrigin: https://app.example\r\n\
         Authorization: Bearer {}\r\nContent-Length: 2\r\n\r\n{{}}",
        page.token().unwrap().expect("it has one")
    );
    http::parse(&https::exchange(&address, &ours.anonymous(), bytes.as_bytes()).unwrap()).unwrap().ok();

    // Without TLS a client has no identity, and sends no token: while clients change over to TLS, pages go on.
    let flags = ["--allow-origin", "https://app.example", "--tls-optional"];
    let cluster = Cluster::start_secured(1, &flags, &ours);
    let address = cluster.client_addr(cluster.wait_ready());
    let headers = "Origin: https://app.example\r\n";
    http::send_with(&address, "POST", "/v1/locks/k/acquire", headers, "{}").unwrap().ok();
}
