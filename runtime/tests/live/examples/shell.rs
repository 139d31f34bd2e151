//! A terminal into which the blocks of one document are pasted.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::blocks::Block;
use crate::support::process::output;

/// A shell, in a directory of its own.
pub struct Shell {
    /// The working directory of its commands.
    pub directory: tempfile::TempDir,
    /// What a document says, and what the test has in its place.
    pub replacements: Vec<(String, String)>,
    /// Variables and functions that a document expects.
    pub prelude: String,
}

impl Shell {
    /// A shell that finds the tested `palisade`, and these nodes.
    pub fn new(endpoints: &[String]) -> Shell {
        let directory = tempfile::tempdir().unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_palisade")).parent().unwrap();
        let tools = directory.path().join("tools");
        fs::create_dir(&tools).unwrap();
        let prelude = format!(
            "export PATH='{}:{}':\"$PATH\" PALISADE_ENDPOINTS={}\n",
            tools.display(),
            programs.display(),
            endpoints.join(",")
        );
        let replacements = endpoints.first().map(|node| ("127.0.0.1:7401".to_owned(), node.clone()));
        Shell { directory, replacements: replacements.into_iter().collect(), prelude }
    }

    /// A script that the commands find by its name.
    pub fn tool(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.directory.path().join("tools").join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn adapted(&self, text: &str) -> String {
        self.replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Pastes the blocks into one shell, one after the other, and compares what each prints with what the document says.
    /// A comment on a line of its own is what the commands before it print; with `palisade: ` in front, what they
    /// report as an error.
    pub fn run(&self, blocks: &[Block]) {
        let mut script = format!("{}\n", self.prelude);
        for (number, block) in blocks.iter().enumerate() {
            let fails = promised(&block.text).iter().any(|line| is_error(line));
            let (mode, end) = if fails { ("set +e", "true") } else { ("set -e", "") };
            let text = self.adapted(&block.text);
            script += &format!("{mode}\n{{ {text}\n}} >.out-{number} 2>.err-{number}\n{end}\n");
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(self.directory.path()).stdin(Stdio::null());
        let ended = output(&mut shell);
        let read = |name: String| fs::read_to_string(self.directory.path().join(name)).ok();
        for (number, block) in blocks.iter().enumerate() {
            let at = format!("{}:{}\n{}", block.document, block.line, block.text);
            let (printed, reported) = (read(format!(".out-{number}")), read(format!(".err-{number}")));
            let (Some(printed), Some(reported)) = (printed, reported) else { panic!("not run: {at}\n{ended:?}") };
            let is_last = read(format!(".out-{}", number + 1)).is_none();
            assert!(ended.status.success() || !is_last, "{at}\n{ended:?}\n{printed}\n{reported}");
            let (errors, lines): (Vec<_>, Vec<_>) = promised(&block.text).into_iter().partition(|line| is_error(line));
            let promise = self.adapted(&lines.join("\n"));
            assert!(lines.is_empty() || agrees(&promise, &printed), "{at}\nprinted\n{printed}\n{reported}");
            assert!(agrees(&errors.join("\n"), &reported), "{at}\nreported\n{reported}");
        }
    }
}

/// What a block says that its commands print.
fn promised(block: &str) -> Vec<&str> {
    block.lines().filter_map(|line| line.strip_prefix("# ")).collect()
}

fn is_error(line: &str) -> bool {
    line.starts_with("palisade: ")
}

/// Whether the same was printed, apart from [what differs from run to run](without_numbers). A line of the promise that
/// ends with `…` is the beginning of a line.
pub fn agrees(promised: &str, printed: &str) -> bool {
    let (promised, printed): (Vec<&str>, Vec<&str>) =
        (promised.lines().collect(), printed.trim_end().lines().collect());
    promised.len() == printed.len()
        && promised.iter().zip(printed).all(|(promised, printed)| {
            let printed = without_numbers(printed.trim_end());
            match promised.strip_suffix('…') {
                Some(begins) => printed.starts_with(&without_numbers(begins)),
                None => printed == without_numbers(promised),
            }
        })
}

/// The text without what differs from run to run: numbers, sessions, public keys and their names.
fn without_numbers(text: &str) -> String {
    let mut pattern = String::new();
    let text = match text.split_once("fence1root.") {
        Some((before, key)) => {
            let end = key.find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).unwrap_or(key.len());
            format!("{before}fence1root#{}", &key[end..])
        }
        None => text.to_owned(),
    };
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
        let is_session = word.len() > 36 && word.chars().filter(|&c| c == '-').count() == 4;
        let end = word.chars().last().filter(|c| !c.is_ascii_alphanumeric());
        let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_key = bare.len() == 16 && bare.chars().all(|c| c.is_ascii_hexdigit());
        let is_number = is_key || word.starts_with(|c: char| c.is_ascii_digit());
        if is_session || is_number {
            pattern.push('#');
            pattern.extend(end);
        } else {
            pattern += word;
        }
    }
    pattern
}

#[test]
fn only_numbers_sessions_and_keys_may_differ() {
    assert!(agrees("token 1 of session 1: it is", "token 22 of session 9: it is\n"));
    assert!(!agrees("token 1", "session 1"));
    assert!(!agrees("", "a warning"));
    assert!(!agrees("one line", "one line\nanother"));
    assert!(agrees("palisade: refused; …", "palisade: refused; and why"));
    assert!(!agrees("palisade: refused; …", "palisade: accepted"));
    assert!(agrees("fence1root.uBWv_-x", "fence1root.zzz"));
    assert!(agrees("key ffedba8a1caeb0e4, of", "key 8ac368cae60cc2e5, of"));
    assert!(!agrees("key ffedba8a1caeb0e4, of", "key none, of"));
    assert!(agrees(
        r#"{"session":"00000000-0000-0001-a3d2-6ffe1fa85f94"}"#,
        r#"{"session":"00000000-0002-0001-ffff-aaaaaaaaaaaa"}"#
    ));
}
