//! Rules about the text of the source: in these folders, only these files may have these texts.

use super::code::{Source, code, code_below, has, workspace};

struct Rule {
    /// The invariant that the rule keeps.
    invariant: &'static str,
    folders: &'static [&'static str],
    texts: &'static [&'static str],
    /// The files that may have the texts; each has one.
    only: &'static [&'static str],
}

/// The source of every package.
const ALL: &[&str] = &["spec/src", "client/src", "fence/src", "runtime/src", "model/src", "conformance/src"];

/// Ways to a file.
const FILES: &[&str] = &["std::fs", "tokio::fs", "fs::", "File::", "OpenOptions"];

const RULES: [Rule; 19] = [
    Rule {
        invariant: "only client/src/codec.rs uses bincode",
        folders: ALL,
        texts: &["bincode"],
        only: &["client/src/codec.rs"],
    },
    Rule {
        // A fault of the torture is a clock at another rate: the torture asks the system whether it is.
        // A certificate says until when it is valid, and its verifier compares that with the wall clock. Records
        // of an audit log are compared with those of other systems.
        invariant: "there is no wall clock, but for the validity of certificates and the times of audit records",
        folders: ALL,
        texts: &[
            "SystemTime",
            "UNIX_EPOCH",
            "CLOCK_REALTIME",
            "ClockId::Realtime",
            "disallowed_methods",
            "now_utc",
            "UnixTime",
        ],
        only: &[
            "conformance/src/torture/certificates.rs",
            "conformance/src/torture/clock.rs",
            "fence/src/clock.rs",
            "runtime/src/audit/clock.rs",
            "runtime/src/tls/issue.rs",
            "runtime/src/tls/material.rs",
        ],
    },
    Rule {
        invariant: "no code catches the panic of an assertion and continues",
        folders: &["spec/src", "client/src", "runtime/src"],
        texts: &["catch_unwind"],
        only: &[],
    },
    Rule {
        // Debug builds also check a node's state after each step.
        invariant: "assertions that guard safety are on in release builds",
        folders: &["spec/src", "client/src", "runtime/src"],
        texts: &["debug_assert", "debug_assert_eq", "debug_assert_ne", "debug_assertions"],
        only: &["runtime/src/storage/preallocate.rs", "spec/src/raft/node.rs"],
    },
    Rule {
        invariant: "one thread owns the node: only the driver makes one, and only the core's thread makes a driver",
        folders: &["runtime/src"],
        texts: &["Node::recover", "Driver::new"],
        only: &["runtime/src/core/driver.rs", "runtime/src/core/thread.rs"],
    },
    Rule {
        // Other threads see the status view, which the core replaces.
        invariant: "the node needs no mutex, because no other thread has a reference to it",
        folders: &["runtime/src/core"],
        texts: &["Mutex", "RwLock"],
        only: &["runtime/src/core/view.rs"],
    },
    Rule {
        invariant: "the core thread never waits for a socket",
        folders: &["runtime/src/core"],
        texts: &[".await", "block_on", "tokio::net", "std::net", "thread::sleep"],
        only: &[],
    },
    Rule {
        // The channels have a call for programs that step a node by hand.
        invariant: "the core waits for its inputs and for its own sync, and for nothing else",
        folders: &["runtime/src/core"],
        texts: &[".recv()", ".recv_timeout", ".join()", ".wait()", "Condvar", "select!", "park"],
        only: &["runtime/src/core/channel.rs", "runtime/src/core/thread.rs"],
    },
    Rule {
        invariant: "no socket task waits for the log",
        folders: &["runtime/src/http", "runtime/src/peers"],
        texts: &["Wal", "DataDir"],
        only: &[],
    },
    Rule {
        // The description is a test, and `/proc` is on no disk.
        invariant: "a task that reads or writes a file leaves the event loop, and asks the storage for it",
        folders: &["runtime/src/http", "runtime/src/peers"],
        texts: FILES,
        only: &["runtime/src/http/description.rs", "runtime/src/http/metrics_page/process.rs"],
    },
    Rule {
        invariant: "only the server starts tasks on the thread of the connections between nodes",
        folders: &["runtime/src"],
        texts: &["peer_thread", "PeerThread"],
        only: &["runtime/src/server.rs", "runtime/src/server/peer_thread.rs"],
    },
    Rule {
        invariant: "`peers/` and `http/` get a stream and an identity from `tls/`",
        folders: &["runtime/src/http", "runtime/src/peers"],
        texts: &["tokio_rustls", "rustls", "TlsAcceptor", "TlsConnector"],
        only: &[],
    },
    Rule {
        invariant: "grants are signed where answers are encoded, never on the core's thread",
        folders: &["runtime/src/core"],
        texts: &["grant_signer", "GrantSigner"],
        only: &[],
    },
    Rule {
        invariant: "a handler of HTTP holds no state of the protocol",
        folders: &["runtime/src/http"],
        texts: &["LockTable", "Node<", "Durable"],
        only: &[],
    },
    Rule {
        // The verifier of an audit log reads any file, on any machine.
        invariant: "the driver, the storage and the audit log reach the disk only through `storage::Disk`",
        folders: &["runtime/src/audit", "runtime/src/core", "runtime/src/storage"],
        texts: FILES,
        only: &["runtime/src/audit/verify.rs", "runtime/src/storage/disk.rs"],
    },
    Rule {
        // The secret of a session is drawn when its request is decoded, before the driver gets it.
        invariant: "the driver and the storage get their randomness as values",
        folders: &["runtime/src/core", "runtime/src/storage"],
        texts: &["rand::random", "rand::rng", "OsRng", "from_os_rng", "getrandom", "RandomState"],
        only: &["runtime/src/core/credential.rs"],
    },
    Rule {
        // In the core only the thread around the driver reads the clock; the log reads it for the
        // durations that it reports to the metrics.
        invariant: "the driver and the storage get the time as a value",
        folders: &["runtime/src/core", "runtime/src/storage"],
        texts: &["Instant::now", ".elapsed()"],
        only: &["runtime/src/core/thread.rs", "runtime/src/storage/wal.rs"],
    },
    Rule {
        // The others pause between attempts.
        invariant: "a client's lease ends by the clock that goes on while the machine sleeps, `client/src/clock.rs`",
        folders: &["client/src"],
        texts: &["Instant::now"],
        only: &["client/src/clock.rs", "client/src/task.rs", "client/src/watch.rs"],
    },
    Rule {
        invariant: "bounds are the model's, never the spec's",
        folders: &["spec/src"],
        texts: &["Bounds", "bounds"],
        only: &[],
    },
];

impl Rule {
    /// The files that have one of the texts.
    fn files_with_texts<'a>(&self, files: &'a [Source]) -> Vec<&'a str> {
        let found = files.iter().filter(|(_, code)| self.texts.iter().any(|text| has(code, text)));
        let mut found: Vec<&str> = found.map(|(path, _)| path.as_str()).collect();
        found.sort_unstable();
        found
    }
}

/// Goal: every rule holds, and no exception is left over.
#[test]
fn every_rule_holds() {
    for rule in RULES {
        let files: Vec<Source> = rule.folders.iter().flat_map(|folder| code_below(folder)).collect();
        assert_eq!(rule.files_with_texts(&files), rule.only, "{}", rule.invariant);
    }
}

/// Goal: no rule is blind. Each text is put into a file, and is seen there.
#[test]
fn every_forbidden_text_is_seen() {
    for rule in RULES {
        for text in rule.texts {
            let file = ("new.rs".to_owned(), code(&format!("fn f() {{\n    x = {text};\n}}")));
            assert_eq!(rule.files_with_texts(&[file]), ["new.rs"], "{text}");
            let comment = ("new.rs".to_owned(), code(&format!("// {text}\nfn f() {{}}")));
            assert_eq!(rule.files_with_texts(&[comment]), Vec::<&str>::new(), "a comment with {text}");
        }
    }
}

/// Goal: only the spec decides what a message means. The runtime knows a message's kind at three
/// places: the leader's commit index tells how old a stale read may be, a snapshot replaces a table
/// whose memory is then freed, and a snapshot travels in a stream of its own.
#[test]
fn runtime_does_not_read_messages() {
    let kinds = message_kinds(&std::fs::read_to_string(workspace().join("spec/src/raft/message.rs")).unwrap());
    assert!(kinds.len() >= 9 && kinds.contains(&"Body::AppendEntries".to_owned()), "{kinds:?}");
    assert_eq!(
        message_kinds("pub enum Body {\n    Vote {\n        term: Term,\n    },\n    Now,\n}"),
        ["Body::Vote", "Body::Now"]
    );
    let reads = |code: &str| kinds.iter().any(|kind| has(code, kind));
    assert!(reads("match body { Body::RequestVote { .. } => {} }") && !reads("Body::from_stream(pieces)"));
    let files = code_below("runtime/src");
    let mut readers: Vec<&str> = files.iter().filter(|(_, code)| reads(code)).map(|(path, _)| path.as_str()).collect();
    readers.sort_unstable();
    let known = ["core/driver/iteration.rs", "peers/inbound.rs", "peers/snapshots.rs"];
    assert_eq!(readers, known.map(|file| format!("runtime/src/{file}")));
}

/// The variants of the enum of messages.
fn message_kinds(source: &str) -> Vec<String> {
    let code = code(source);
    let body = code.split("pub enum Body").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default();
    let variants =
        body.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with(char::is_uppercase));
    variants.map(|line| format!("Body::{}", line.trim_end_matches([' ', '{', ',', '}']))).collect()
}

/// Goal: clippy refuses the wall clock in tests, too.
#[test]
fn clippy_forbids_the_wall_clock() {
    let rules = std::fs::read_to_string(workspace().join("clippy.toml")).unwrap();
    assert!(rules.contains("path = \"std::time::SystemTime::now\""));
}
