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
fn a_sound_history_ends_with_0_and_says_how_much_was_checked() {
    let (code, told, _) = run(&["history", "good/paused_holder_is_fenced.jsonl"]);
    assert_eq!(code, 0, "{told}");
    assert!(told.starts_with("good/paused_holder_is_fenced.jsonl: 9 operations, read in "), "{told}");
    assert!(told.contains("\n  exclusion      holds     2 grants of 1 key, 2 with a known request\n"), "{told}");
    assert!(told.contains("\n  resource       holds     3 accesses to 1 resource\n"), "{told}");
}

#[test]
fn a_violation_ends_with_1_and_says_what_was_expected_and_seen() {
    let (code, told, _) = run(&["history", "good/expiry_in_time.jsonl", "bad/lost_lock.jsonl"]);
    assert_eq!(code, 1, "{told}");
    let sentence = "    a key has one holder at a time, but token 2 of k was granted by 203 ms while token 1 could not have ended \
                    before 60002 ms: b's acquire of k for session s2 (operation 4, asked at 200 ms, answered at 203 ms: granted to s2 \
                    with token 2); a's acquire of k for session s1 (operation 3, asked at 2 ms, answered at 3 ms: granted to s1 with token 1)";
    assert!(told.lines().any(|line| line == sentence), "{told}");
    assert!(told.contains("  fifo           holds     0 waiters, 0 pairs in queues"), "{told}");
}

#[test]
fn what_cannot_be_read_ends_with_64_and_names_the_file() {
    let (code, _, told) = run(&["history", "good/no_such_file.jsonl"]);
    assert_eq!(code, 64);
    assert!(told.contains("good/no_such_file.jsonl: the record cannot be read"), "{told}");
}

#[test]
fn an_export_is_what_the_other_checker_reads() {
    let (code, told, _) = run(&["history", "--export", "knossos", "good/expiry_in_time.jsonl"]);
    assert_eq!(code, 0);
    assert!(told.contains("{:process 0, :type :invoke, :f :acquire, :value [\"k\" "), "{told}");
    let (_, told, _) = run(&["history", "--export", "porcupine", "good/expiry_in_time.jsonl"]);
    assert!(told.starts_with("{\"Version\":1,\"DriftPpm\":0}\n{\"ClientId\":0,"), "{told}");
    assert!(told.lines().skip(1).all(|line| line.starts_with("{\"ClientId\":")), "{told}");
}
