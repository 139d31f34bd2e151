//! The command line: output and exit codes.

use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-conformance"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    let Output { status, stdout, stderr } = command.args(arguments).current_dir(folder).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn correct_history_exits_with_0_and_reports_counts() {
    let (code, printed, _) = run(&["history", "good/paused_holder_is_fenced.jsonl"]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.starts_with("good/paused_holder_is_fenced.jsonl: 9 operations, read in "), "{printed}");
    assert!(printed.contains("\n  exclusion      holds     2 grants of 1 key, 2 with a known request\n"), "{printed}");
    assert!(printed.contains("\n  resource       holds     3 accesses to 1 resource\n"), "{printed}");
}

#[test]
fn violation_exits_with_1_and_names_expected_and_seen() {
    let (code, printed, _) = run(&["history", "good/expiry_in_time.jsonl", "bad/lost_lock.jsonl"]);
    assert_eq!(code, 1, "{printed}");
    let sentence = "    a key has one holder at a time, but token 2 of k was granted by 203 ms while token 1 could not have ended \
                    before 60002 ms: b's acquire of k for session s2 (operation 4, invoked at 200 ms, answered at 203 ms: granted to s2 \
                    with token 2); a's acquire of k for session s1 (operation 3, invoked at 2 ms, answered at 3 ms: granted to s1 with token 1)";
    assert!(printed.lines().any(|line| line == sentence), "{printed}");
    assert!(printed.contains("  fifo           holds     0 waiters, 0 pairs in queues"), "{printed}");
}

#[test]
fn unreadable_file_exits_with_64_and_is_named() {
    let (code, _, printed) = run(&["history", "good/no_such_file.jsonl"]);
    assert_eq!(code, 64);
    assert!(printed.contains("good/no_such_file.jsonl: the record cannot be read"), "{printed}");
}

#[test]
fn export_has_the_format_of_the_other_checker() {
    let (code, printed, _) = run(&["history", "--export", "knossos", "good/expiry_in_time.jsonl"]);
    assert_eq!(code, 0);
    assert!(printed.contains("{:process 0, :type :invoke, :f :acquire, :value [\"k\" "), "{printed}");
    let (_, printed, _) = run(&["history", "--export", "porcupine", "good/expiry_in_time.jsonl"]);
    assert!(printed.starts_with("{\"Version\":1,\"DriftPpm\":0}\n{\"ClientId\":0,"), "{printed}");
    assert!(printed.lines().skip(1).all(|line| line.starts_with("{\"ClientId\":")), "{printed}");
}
