//! Other lock services, for the pages about the change from them.

use std::process::{Command, Stdio};

use super::shell::Shell;
use crate::support::process::{Running, output};
use crate::support::{eventually, ports};

/// A server that the machine may have.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `redis-server`, with `redis-cli`.
    Redis,
    /// `etcd`, with `etcdctl`.
    Etcd,
}

/// Starts it in the shell's directory, so that the shell's commands reach it; or says what is missing.
pub fn start(kind: Kind, shell: &mut Shell) -> Result<Running, String> {
    let needed = match kind {
        Kind::Redis => ["redis-server", "redis-cli"],
        Kind::Etcd => ["etcd", "etcdctl"],
    };
    for program in needed {
        // Redis says its version to `--version`, and etcd to that, too.
        let answer = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        answer.map_err(|error| format!("{program} cannot be run: {error}"))?;
    }
    let data = shell.directory.path().join("server");
    std::fs::create_dir(&data).unwrap();
    let [clients, peers] = ports::free(2)[..] else { unreachable!() };
    let mut server = Command::new(needed[0]);
    let mut probe = Command::new(needed[1]);
    match kind {
        Kind::Redis => {
            server.args(["--port", &clients.to_string(), "--bind", "127.0.0.1", "--save", ""]).arg("--dir").arg(&data);
            let client = output(Command::new("sh").args(["-c", "command -v redis-cli"]));
            let client = String::from_utf8(client.stdout).unwrap();
            shell.tool("redis-cli", &format!("exec {} -p {clients} \"$@\"", client.trim()));
            probe.args(["-p", &clients.to_string(), "ping"]);
        }
        Kind::Etcd => {
            let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
            server.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            server.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            server.args(["--initial-cluster", &format!("default={peers}")]).arg("--data-dir").arg(&data);
            shell.prelude += &format!("export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={clients}\n");
            probe.env("ETCDCTL_API", "3").args(["--endpoints", &clients, "endpoint", "health"]);
        }
    }
    let running = Running::start(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    eventually("the server answers", || output(&mut probe).status.success().then_some(()));
    Ok(running)
}
