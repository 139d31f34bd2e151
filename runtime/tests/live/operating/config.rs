//! `palisade serve --config`, its environment, and `palisade config check`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::process::{Running, palisade, printed, refusal};
use crate::support::{eventually, http, ports};

/// A directory with a configuration file, and the addresses in it.
struct Configured {
    directory: tempfile::TempDir,
    clients: String,
}

impl Configured {
    fn new(more: &str) -> Configured {
        let [clients, nodes] = ports::free(2)[..] else { unreachable!() };
        let directory = tempfile::tempdir().unwrap();
        let (data, clients) = (directory.path().join("node"), format!("127.0.0.1:{clients}"));
        let text = format!(
            "id = 1\ndata = {data:?}\nclient-addr = \"{clients}\"\npeer-addr = \"127.0.0.1:{nodes}\"\n{more}\n[peers]\n1 = \
             \"127.0.0.1:{nodes}\"\n"
        );
        std::fs::write(directory.path().join("palisade.toml"), text).unwrap();
        Configured { directory, clients }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("palisade.toml")
    }

    fn serve(&self) -> Command {
        let mut command = palisade();
        command.arg("serve").arg("--config").arg(self.file()).stderr(Stdio::null());
        command
    }

    fn check(&self) -> Command {
        let mut command = palisade();
        command.args(["config", "check"]).arg(self.file());
        command
    }

    fn has_data(&self) -> bool {
        self.directory.path().join("node").exists()
    }
}

fn line<'a>(text: &'a str, option: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(&format!("{option} = "))).unwrap_or_else(|| panic!("{option}: {text}"))
}

/// Goal: a node starts with a file alone; the environment and the command line change what the file
/// says; what `--print-config` prints starts the same node.
#[test]
fn node_starts_with_file_environment_and_command_line() {
    let node = Configured::new("cluster = \"of-the-file\"");
    let said = printed(node.serve().env("PALISADE_CLUSTER", "billing").args(["--max-sessions", "7", "--print-config"]));
    assert_eq!(line(&said, "cluster"), "cluster = \"billing\"  # PALISADE_CLUSTER");
    assert_eq!(line(&said, "max-sessions"), "max-sessions = 7  # command line");
    assert_eq!(line(&said, "id"), format!("id = 1  # {}:1", node.file().display()));
    assert!(!node.has_data(), "--print-config runs no node");
    std::fs::write(node.file(), said).unwrap();
    let running = Running::start(&mut node.serve());
    eventually("the node leads", || (http::get(&node.clients, "/readyz").ok()?.status == 200).then_some(()));
    assert_eq!(http::get(&node.clients, "/v1/status").unwrap().ok()["cluster_name"], "billing");
    drop(running);
    // The file may be named by the environment, too.
    let mut command = palisade();
    let said = printed(command.args(["serve", "--print-config"]).env("PALISADE_CONFIG", node.file()));
    let written = std::fs::read_to_string(node.file()).unwrap();
    let number = written.lines().position(|line| line.starts_with("cluster = ")).expect("it has the option") + 1;
    assert_eq!(line(&said, "cluster"), format!("cluster = \"billing\"  # {}:{number}", node.file().display()));
}

/// Goal: `config check` accepts what `serve` accepts, and touches neither the data directory nor the
/// ports, which a running node may use.
#[test]
fn check_touches_neither_data_nor_ports() {
    let node = Configured::new("");
    let taken = TcpListener::bind(&node.clients).unwrap();
    let said = printed(&mut node.check());
    assert!(said.contains(&node.file().display().to_string()), "{said}");
    assert!(!node.has_data());
    drop(taken);
}

/// Goal: `serve` and `config check` refuse the same files with the same sentences: each names the
/// file, the line and the key.
#[test]
fn refused_file_is_named_with_line_and_key() {
    for (more, reason) in [
        ("segment-byte = 5", ":5: segment-byte: `palisade serve` has no option --segment-byte\n"),
        (
            "min-free-byte = 5",
            ":5: min-free-byte: `palisade serve` has no option --min-free-byte; is it `min-free-bytes`?",
        ),
        ("log-format = \"xml\"", ":5: log-format: invalid value 'xml'"),
        ("max-sessions = [1, 2]", ":5: max-sessions: give one value, not a list"),
        ("log = ", ":5: this is not TOML"),
    ] {
        let node = Configured::new(more);
        for mut command in [node.serve(), node.check()] {
            let said = refusal(command.stderr(Stdio::piped()), 78);
            assert!(said.contains(&format!("{}{reason}", node.file().display())), "{said}");
        }
        assert!(!node.has_data());
    }
    let said = refusal(palisade().args(["config", "check"]).arg(Path::new("/nowhere/palisade.toml")), 78);
    assert!(said.contains("cannot read the configuration file /nowhere/palisade.toml"), "{said}");
    // Rules between options, which a command line breaks with exit code 2.
    let node = Configured::new("join = \"127.0.0.1:7400\"");
    for (mut command, code) in [(node.serve(), 2), (node.check(), 78)] {
        let said = refusal(command.stderr(Stdio::piped()), code);
        assert!(said.contains(&format!("--join is given by {}:5", node.file().display())), "{said}");
    }
}
