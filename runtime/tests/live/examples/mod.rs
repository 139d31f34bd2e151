//! The commands of the documents run as they are printed, and print what the documents say.
//!
//! Each fenced block in a language that a reader can run is run by a test of this folder, or stands in [`elsewhere`] with
//! the reason, and with the file that runs it instead. The blocks of one document are pasted into one shell, in their
//! order. The examples name the ports of `palisade dev`; here they run against clusters on free ports.

#![allow(unreachable_pub, reason = "nothing outside this program can reach it")]

mod blocks;
mod change_over;
mod elsewhere;
mod programs;
mod servers;
mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use blocks::{Block, all, root};
use elsewhere::{ELSEWHERE, elsewhere};
use shell::Shell;

use crate::support::cluster::Cluster;
use crate::support::process::{Running, output, palisade};
use crate::support::{eventually, http, ports};

/// The documents whose shell commands need a cluster and nothing else; those that need a server besides say which.
const PLAIN: [(&str, &[servers::Kind]); 8] = [
    ("README.md", &[]),
    ("docs/api.md", &[]),
    ("docs/install.md", &[]),
    ("docs/lock-command.md", &[]),
    ("docs/coming-from/redis.md", &[servers::Kind::Redis]),
    ("docs/coming-from/etcd.md", &[servers::Kind::Etcd]),
    ("docs/coming-from/consul.md", &[]),
    ("docs/coming-from/zookeeper.md", &[]),
];
const SIGNED: &str = "docs/fencing.md";
/// Has a fourth server.
const MEMBERS: &str = "docs/operations.md";
/// Certificates, and then access rules.
const SECURED: &str = "docs/security.md";
const RULES: &str = "docs/access.md";

fn is_shell(block: &Block) -> bool {
    ["sh", "bash", "shell", "console"].contains(&block.language.as_str())
}

/// The blocks of a document in this language that are to be run here.
fn blocks_of(document: &str, language: &str) -> Vec<Block> {
    let blocks = all().into_iter().filter(|block| block.document == document && block.language == language);
    let blocks: Vec<_> = blocks.filter(|block| elsewhere(block).is_empty()).collect();
    assert!(!blocks.is_empty(), "{document} has no block of {language} that is run here");
    blocks
}

/// Whether a test of this folder runs the block, if nothing else does.
fn is_run_here(block: &Block) -> bool {
    let shells = PLAIN.iter().map(|(document, _)| *document).chain([SIGNED, MEMBERS, SECURED, RULES]);
    let mut programs = programs::DOCUMENTS.iter();
    match block.language.as_str() {
        "sh" if block.document == programs::GO_MODULE => true,
        "sh" => shells.into_iter().any(|document| document == block.document),
        language => programs.any(|known| *known == (block.document.as_str(), language)),
    }
}

#[test]
fn every_block_is_run_or_has_a_reason() {
    let blocks = all();
    let mut wrong = Vec::new();
    for block in &blocks {
        let at = format!("{}:{} ({})", block.document, block.line, block.language);
        match elsewhere(block)[..] {
            [] if !is_run_here(block) => wrong.push(format!("{at} is run by no test, and elsewhere.rs has no reason")),
            [_, _, ..] => wrong.push(format!("{at} has several entries in elsewhere.rs")),
            _ => {}
        }
    }
    for entry in ELSEWHERE {
        if !blocks.iter().any(|block| entry.covers(block)) {
            wrong.push(format!("{}: no block begins with {:?} any more: {}", entry.document, entry.begins, entry.why));
        }
        wrong.extend(elsewhere::missing(entry));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let run = blocks.iter().filter(|block| elsewhere(block).is_empty()).count();
    assert!(run > 25 && blocks.len() > 100, "only {run} of {} blocks are run", blocks.len());
}

#[test]
fn commands_run_as_printed() {
    let cluster = Cluster::start_calm(3);
    for (document, kinds) in PLAIN {
        let mut shell = Shell::new(&cluster.endpoints());
        let started: Result<Vec<_>, _> = kinds.iter().map(|kind| servers::start(*kind, &mut shell)).collect();
        let _running = match started {
            Ok(running) => running,
            Err(missing) => {
                eprintln!("SKIPPED the commands of {document}: {missing}");
                continue;
            }
        };
        // Two commands of a script that docs/lock-command.md leaves open.
        shell.tool("first", "test -n \"$PALISADE_TOKEN\"");
        shell.tool("second", "test -n \"$PALISADE_TOKEN\"");
        for folder in ["/etc/bash_completion.d", "/usr/local/share/man/man1"] {
            let here = format!("{}{folder}", shell.directory.path().display());
            fs::create_dir_all(&here).unwrap();
            shell.replacements.push((folder.to_owned(), here));
        }
        shell.run(&blocks_of(document, "sh"));
    }
}

#[test]
fn commands_that_change_members_run_as_printed() {
    let cluster = Cluster::start_calm(3);
    let [clients, peers] = ports::free(2)[..] else { unreachable!() };
    let (clients, peers) = (format!("127.0.0.1:{clients}"), format!("127.0.0.1:{peers}"));
    let mut shell = Shell::new(&cluster.endpoints());
    shell.replacements.push(("10.0.0.4:7500".to_owned(), peers.clone()));
    let blocks = blocks_of(MEMBERS, "sh");
    let member = cluster.client_addr(2);
    // The last command makes node 2 the leader, and is refused if it is that already.
    if cluster.wait_ready() != 3 {
        let transfer = output(palisade().args(["transfer", "--to", "3", "--endpoints", &member]));
        assert!(transfer.status.success(), "{transfer:?}");
    }
    let mut serve = palisade();
    serve.args(["serve", "--id", "4", "--join", &member, "--client-addr", &clients, "--peer-addr", &peers]);
    serve.arg("--data").arg(shell.directory.path().join("node-4")).stderr(Stdio::null());
    std::thread::scope(|scope| {
        let commands = scope.spawn(|| shell.run(&blocks));
        // The operator adds the server, and starts it then.
        eventually("the commands have added the server", || {
            let members = http::get(&member, "/v1/members").ok()?.body;
            members.contains(&peers).then_some(())
        });
        let _server = Running::start(&mut serve);
        commands.join().unwrap();
    });
}

/// docs/fencing.md: the first block makes the keys, with which the nodes are started then.
#[test]
fn commands_of_signed_tokens_run_as_printed() {
    let blocks = blocks_of(SIGNED, "sh");
    let (keys, resource) = blocks.split_at(1);
    let mut shell = Shell::new(&[]);
    shell.run(keys);
    let made = fs::read_to_string(shell.directory.path().join(".out-0")).unwrap();
    let root = made.split_whitespace().find(|word| word.starts_with("fence1root.")).unwrap();
    let directory = shell.directory.path().to_owned();
    let flags = ["--election-timeout", "750ms", "--cluster", "billing"];
    let cluster = Cluster::start_adjusted(3, &flags, move |id, command| {
        command.arg("--sign-grants").arg(directory.join(format!("node-{id}.key")));
    });
    let named = keys[0].text.lines().find_map(|line| line.strip_prefix("# fence1root.")).expect("the root is shown");
    shell.replacements.push((format!("fence1root.{named}"), root.to_owned()));
    shell.prelude += &format!("export PALISADE_ENDPOINTS={}\n", cluster.endpoints().join(","));
    shell.prelude += "token_of_an_earlier_grant=$(palisade lock report -- sh -c 'echo $PALISADE_SIGNED_TOKEN')\n";
    shell.run(resource);
}

/// The certificates of docs/security.md, for nodes on loopback addresses, and the access rules of docs/access.md.
#[test]
fn commands_of_security_run_as_printed() {
    let blocks = [SECURED, RULES].into_iter().flat_map(|document| blocks_of(document, "sh"));
    let is_issue = |block: &Block| block.text.starts_with("palisade cert") && !block.text.contains("acl");
    let (issue, connect): (Vec<_>, Vec<_>) = blocks.partition(is_issue);
    let mut shell = Shell::new(&[]);
    shell.replacements = (1..=3).map(|id| (format!("--host 10.0.0.{id}"), "--host 127.0.0.1".to_owned())).collect();
    shell.run(&issue);
    let ca = shell.directory.path().join("ca");
    let stem = ca.display().to_string();
    let security = palisade_client::Security::tls(ca.join("ca.pem"))
        .with_certificate(ca.join("client-worker.pem"), ca.join("client-worker-key.pem"));
    let adjust = move |id: u16, command: &mut Command| {
        command.args(["--cluster", "billing", "--tls-ca", &format!("{stem}/ca.pem")]);
        command.args([
            "--tls-cert",
            &format!("{stem}/node-{id}.pem"),
            "--tls-key",
            &format!("{stem}/node-{id}-key.pem"),
        ]);
    };
    let cluster = Cluster::start_adjusted_secured(3, adjust, security);
    for name in ["ca.pem", "client-worker.pem", "client-worker-key.pem"] {
        fs::copy(ca.join(name), shell.directory.path().join(name)).unwrap();
    }
    let rules = blocks::fenced(RULES, &fs::read_to_string(root().join(RULES)).unwrap());
    let rules: Vec<_> = rules.iter().filter(|block| block.language == "json").collect();
    fs::write(shell.directory.path().join("rules.json"), &rules[0].text).unwrap();
    shell.tool("nightly.sh", "test -n \"$PALISADE_TOKEN\"");
    fs::rename(shell.directory.path().join("tools/nightly.sh"), shell.directory.path().join("nightly.sh")).unwrap();
    let endpoints = cluster.endpoints();
    shell.replacements = (1..=2).map(|id| (format!("10.0.0.{id}:7400"), endpoints[id - 1].clone())).collect();
    let secured = endpoints.iter().map(|endpoint| format!("https://{endpoint}")).collect::<Vec<_>>();
    shell.prelude += &format!("export PALISADE_ENDPOINTS={}\n", secured.join(","));
    shell.run(&connect);
}

/// The words after `program`, up to `--`, a comment or the next command, wherever a command line begins with it or calls
/// it: a lower-case word follows.
fn commands_of(text: &str, program: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for line in text.replace("\\\n", " ").lines().filter(|line| !line.starts_with('#')) {
        let bare = |word: &str| word.trim_matches(|c: char| "\"'`$();|&".contains(c)).to_owned();
        let words: Vec<String> = line.split_whitespace().map(bare).collect();
        for at in 0..words.len() {
            let last = words[at].rsplit(['(', '\'', '"']).next().unwrap_or_default();
            let calls = words.get(at + 1).is_some_and(|next| next.starts_with(|c: char| c.is_ascii_lowercase()));
            if last == program && calls {
                let end = |word: &&String| *word != "--" && *word != program && !word.starts_with('#');
                commands.push(words[at + 1..].iter().take_while(end).cloned().collect());
            }
        }
    }
    commands
}

/// Options that `--help` does not show, on purpose.
const HIDDEN: [&str; 1] = ["--record"];

#[test]
fn commands_have_options_and_recipes_that_exist() {
    let justfile = fs::read_to_string(root().join("justfile")).unwrap();
    let (mut options, mut recipes, mut wrong) = (BTreeSet::new(), 0, Vec::new());
    for block in all().iter().filter(|block| is_shell(block)) {
        let at = format!("{}:{}", block.document, block.line);
        for arguments in commands_of(&block.text, "palisade") {
            let flags =
                arguments.iter().filter(|word| word.starts_with("--")).filter_map(|word| word.split('=').next());
            let names =
                arguments.iter().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-')).take(2);
            let names: Vec<_> = names.filter(|word| !word.starts_with('-')).collect();
            // The second word is a subcommand or an argument: the help of the longest command that there is counts.
            let help = (1..=names.len()).rev().find_map(|count| {
                let help = output(palisade().args(&names[..count]).arg("--help"));
                let text = String::from_utf8_lossy(&help.stdout).into_owned();
                let is_whole = count == 1 || text.contains(&format!("palisade {} {}", names[0], names[1]));
                (help.status.success() && is_whole).then_some(text)
            });
            let Some(help) = help else {
                wrong.push(format!("{at}: there is no command palisade {arguments:?}"));
                continue;
            };
            for flag in flags.filter(|flag| !HIDDEN.contains(flag)) {
                options.insert(flag.to_owned());
                let known = help.split(|c: char| c.is_whitespace() || ",=[]".contains(c)).any(|word| word == flag);
                if !known {
                    wrong.push(format!("{at}: palisade {names:?} has no option {flag}"));
                }
            }
        }
        for arguments in commands_of(&block.text, "just").iter().filter(|arguments| !arguments.is_empty()) {
            recipes += 1;
            let name = &arguments[0];
            let is_recipe = |line: &str| line.split([' ', ':']).next() == Some(name);
            if !justfile.lines().any(is_recipe) {
                wrong.push(format!("{at}: the justfile has no {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(options.len() > 20 && recipes > 5, "only {options:?} and {recipes} recipes: this would check nothing");
}
