//! ZooKeeper: three nodes, each a Java process with Debian's jars.

use std::fs;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::config;
use super::error::{Error, file};
use super::find;
use super::options::{Kind, Options};
use super::plan::{NodePlan, Plan, node_dir, write_config};
use super::ports;
use super::process::Launch;

const NODES: usize = 3;
pub(super) const PORTS: usize = 3 * NODES;
const TEMPLATE: &str = include_str!("../../config/zoo.cfg");
const JAVA_FLAGS: &str = include_str!("../../config/zookeeper.flags");
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

pub(super) fn plan(options: &Options, home: &Path) -> Result<Plan, Error> {
    let missing = |missing| Error::Missing(vec![missing]);
    let java = find::java().map_err(missing)?;
    let jars = find::zookeeper_jars().map_err(missing)?;
    let mut clients = ports::reserve(PORTS, options.first_port)?;
    let mut quorum = clients.split_off(NODES);
    let elections = quorum.split_off(NODES);
    let members = quorum.iter().zip(&elections).enumerate();
    let members = members.map(|(index, (quorum, election))| {
        (format!("server.{}", index + 1), format!("{}:{}", quorum.address(), election.number))
    });
    let members: Vec<(String, String)> = members.collect();
    let mut nodes = Vec::new();
    for (index, ((client, quorum), election)) in clients.into_iter().zip(quorum).zip(elections).enumerate() {
        let name = format!("zookeeper-{}", index + 1);
        let (dir, data) = node_dir(home, &name)?;
        let id = data.join("myid");
        fs::write(&id, format!("{}\n", index + 1)).map_err(file("cannot write", &id))?;
        let (number, data_text) = (client.number.to_string(), data.display().to_string());
        let values = [("data", data_text.as_str()), ("client", number.as_str())];
        let settings: Vec<(String, String)> = members.iter().chain(&options.settings).cloned().collect();
        let text = config::render("zookeeper", TEMPLATE, &values, &settings, "=")?;
        let file = write_config(&dir, "zoo.cfg", &text)?;
        let mut args = config::flags(JAVA_FLAGS);
        args.extend(["-cp".to_owned(), jars.clone(), MAIN.to_owned(), file.display().to_string()]);
        let launch = Launch::new(&java, args, options, Kind::Zookeeper, &dir)?;
        nodes.push(NodePlan {
            name,
            address: client.address(),
            dir,
            data,
            launch,
            _ports: vec![client, quorum, election],
        });
    }
    let endpoints = nodes.iter().map(|node| node.address.clone()).collect();
    Ok(Plan { nodes, endpoints })
}

/// The node is part of a quorum, and opens a session, which the leader must agree to. `ruok` would say
/// "imok" before both.
pub(super) async fn probe(address: &str) -> Result<(), String> {
    let state = four_letters(address, "srvr").await?;
    if !state.lines().any(|line| line.starts_with("Mode: ")) {
        return Err(format!("`srvr` answers: {}", state.trim()));
    }
    zookeeper_client::Client::connect(address).await.map(drop).map_err(|error| format!("no session: {error}"))
}

/// The node says that it is the leader.
pub(super) async fn leads(address: &str) -> Result<bool, String> {
    Ok(four_letters(address, "srvr").await?.lines().any(|line| line == "Mode: leader"))
}

pub(super) async fn version(address: &str) -> Result<String, String> {
    let state = four_letters(address, "srvr").await?;
    let version = state.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
    let version = version.and_then(|line| line.split(['-', ',']).next());
    version.map(|version| format!("ZooKeeper {version}")).ok_or_else(|| format!("states no version: {state}"))
}

/// What the node monitors: a name and a value in each line.
pub(crate) async fn state(address: &str) -> Result<String, String> {
    four_letters(address, "mntr").await
}

async fn four_letters(address: &str, word: &str) -> Result<String, String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    ask.await.map_err(|error| error.to_string())
}
