//! Compares `docs/gallery.md` with the checker's output. `UPDATE_GOLDENFILES=1` regenerates the
//! output in it.

use std::path::PathBuf;
use std::process::Command;

use palisade_model::check::Expected;
use palisade_model::gallery;

const PROMPT: &str = "$ cargo run --release -p palisade-model -- ";
const BEGIN: &str = "```console\n";
const END: &str = "\n```\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/gallery.md")
}

fn document() -> String {
    std::fs::read_to_string(path()).expect("docs/gallery.md can be read")
}

/// The output of a command line.
fn printed(command: &str) -> String {
    let arguments = command.split('"').enumerate().flat_map(|(index, part)| {
        let quoted = index % 2 == 1;
        if quoted { vec![part] } else { part.split_whitespace().collect() }
    });
    let output = Command::new(env!("CARGO_BIN_EXE_palisade-model")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The document with the present output of its commands.
fn renewed(document: &str) -> String {
    let mut blocks = document.split(BEGIN);
    let mut renewed = blocks.next().unwrap().to_string();
    for block in blocks {
        let (shown, rest) = block.split_once(END).expect("every block ends");
        let command = shown.lines().next().and_then(|line| line.strip_prefix(PROMPT)).expect("a block is a command");
        renewed.push_str(&format!("{BEGIN}{PROMPT}{command}\n{}{END}{rest}", printed(command).trim_end()));
    }
    renewed
}

#[test]
fn traces_match_the_checker() {
    let (shown, now) = (document(), renewed(&document()));
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::write(path(), &now).unwrap();
        return;
    }
    let differs = shown.lines().zip(now.lines()).find(|(shown, now)| shown != now);
    assert!(shown == now, "docs/gallery.md is not what the commands print now, first here: {differs:?}");
}

#[test]
fn every_flaw_has_a_trace() {
    let document = document();
    for named in gallery::models() {
        if let Expected::Violates(property) = named.expected {
            let command = format!("{PROMPT}trace {} --property \"{property}\"\n", named.name);
            assert!(document.contains(&command), "docs/gallery.md does not show {command}");
        }
    }
}

#[test]
fn table_matches_the_numbers_of_states() {
    let document = document();
    for named in gallery::models().into_iter().filter(|named| named.expected == Expected::Holds) {
        let flawed = named.name.strip_suffix("-repaired").expect("what holds is a repair");
        let row = document.lines().find(|line| line.starts_with("| [") && line.contains(&format!("`{flawed}`")));
        let row = row.unwrap_or_else(|| panic!("{flawed} is not in the table"));
        let digits = row.rsplit('|').nth(1).unwrap().trim().replace(',', "");
        assert_eq!(digits, named.model.check(1).states.1.to_string(), "{flawed}");
    }
}
