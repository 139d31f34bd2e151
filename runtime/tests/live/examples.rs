//! The shell examples of the documents run as they are printed, and print what the documents say.
//!
//! Each block of shell commands is given to a shell of its own, as a reader pastes it into a
//! terminal. A comment that stands on a line of its own is what the commands before it print. The
//! examples name the ports of `palisade dev`; here they run against a cluster on free ports.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::cluster::Cluster;
use crate::support::process::output;

/// Blocks that build and start everything: `.ci/run` runs these commands.
const CARGO: &str = "cargo ";

/// The blocks of shell commands in a document.
fn shell_blocks(document: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            assert_ne!(language, "console", "a prompt cannot be pasted: {block:?}");
            if language == "sh" {
                blocks.push(block.join("\n"));
            }
        }
    }
    blocks
}

/// The text without what differs from run to run: sessions and tokens.
fn without_digits(text: &str) -> String {
    let mut pattern = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
        let is_session = word.len() > 36 && word.chars().filter(|&c| c == '-').count() == 4;
        let is_token = word.starts_with(|c: char| c.is_ascii_digit());
        let end = word.chars().last().unwrap_or_default();
        if is_session || is_token { pattern.extend(['#', end]) } else { pattern += word }
    }
    pattern
}

#[test]
fn examples_run_as_printed() {
    let cluster = Cluster::start_calm(3);
    let directory = tempfile::tempdir().unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_palisade")).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut run = Vec::new();
    for (name, document) in
        [("README.md", include_str!("../../../README.md")), ("docs/api.md", include_str!("../../../docs/api.md"))]
    {
        for block in shell_blocks(document).into_iter().filter(|block| !block.starts_with(CARGO)) {
            let script = block.replace("127.0.0.1:7401", &cluster.client_addr(1));
            let mut shell = Command::new("sh");
            shell.args(["-e", "-c", &script]).current_dir(directory.path()).stdin(Stdio::null());
            shell.env("PATH", &path).env("PALISADE_ENDPOINTS", cluster.endpoints().join(","));
            let output = output(&mut shell);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && output.stderr.is_empty(), "{name}:\n{block}\n{output:?}");
            let promised: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("# ")).collect();
            if !promised.is_empty() {
                assert_eq!(without_digits(printed.trim()), without_digits(&promised.join("\n")), "{name}:\n{block}");
            }
            run.push(block);
        }
    }
    for command in ["/release", "palisade lock ", "palisade status", "palisade show", "palisade transfer"] {
        assert!(run.iter().any(|block| block.contains(command)), "no example has {command}");
    }
}
