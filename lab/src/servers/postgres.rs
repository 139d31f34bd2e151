//! PostgreSQL: one server, as a user of its own when the lab runs as root, because it refuses to be root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::config;
use super::error::{Error, file};
use super::find::{self, User};
use super::options::{Kind, Options};
use super::plan::{NodePlan, Plan, node_dir, write_config};
use super::ports;
use super::process::{Launch, as_user, clean, tail};

const TEMPLATE: &str = include_str!("../../config/postgresql.conf");

pub(super) async fn plan(options: &Options, home: &Path) -> Result<Plan, Error> {
    let missing = |missing| Error::Missing(vec![missing]);
    let bin = find::postgres().map_err(missing)?;
    let user = find::postgres_user().map_err(missing)?;
    let mut ports = ports::reserve(1, options.first_port)?;
    let Some(port) = ports.pop() else { return Err(Error::Port("no port was reserved".to_owned())) };
    let name = "postgres-1".to_owned();
    let (dir, data) = node_dir(home, &name)?;
    if let Some(user) = &user {
        check_entry(&dir, user)?;
        std::os::unix::fs::chown(&data, Some(user.uid), Some(user.gid)).map_err(file("cannot give away", &data))?;
    }
    let (initdb, at, as_whom) = (bin.join("initdb"), data.clone(), user.clone());
    let made = tokio::task::spawn_blocking(move || make_database(&initdb, &at, as_whom.as_ref())).await;
    made.map_err(|error| Error::Setup { what: "initdb".to_owned(), output: error.to_string() })??;
    let number = port.number.to_string();
    let text = config::render("postgres", TEMPLATE, &[("port", number.as_str())], &options.settings, " = ")?;
    let file = write_config(&dir, "postgresql.conf", &text)?;
    let args =
        ["-D".to_owned(), data.display().to_string(), "-c".to_owned(), format!("config_file={}", file.display())];
    let mut launch = Launch::new(&bin.join("postgres"), args, options, Kind::Postgres, &dir)?;
    launch.user = user.map(|user| user.name);
    let address = port.address();
    let node = NodePlan { name, address: address.clone(), dir, data, launch, _ports: vec![port] };
    Ok(Plan { nodes: vec![node], endpoints: vec![address] })
}

/// The user must be able to enter all directories above its own.
fn check_entry(dir: &Path, user: &User) -> Result<(), Error> {
    for above in dir.ancestors() {
        let found = fs::metadata(above).map_err(file("cannot examine", above))?;
        let enters = found.mode() & 0o001 != 0
            || (found.uid() == user.uid && found.mode() & 0o100 != 0)
            || (found.gid() == user.gid && found.mode() & 0o010 != 0);
        if !enters {
            let reason = format!(
                "the user {}, as which PostgreSQL runs, cannot enter this directory; choose another with --dir",
                user.name
            );
            return Err(Error::Directory { path: above.to_owned(), reason });
        }
    }
    Ok(())
}

fn make_database(initdb: &Path, data: &Path, user: Option<&User>) -> Result<(), Error> {
    let mut command = match user {
        Some(user) => {
            let mut command = clean("setpriv");
            command.args(as_user(&user.name)).arg("--").arg(initdb);
            command
        }
        None => clean(&initdb.display().to_string()),
    };
    // No password: the server listens on the loopback only, and holds nothing but experiments.
    command.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]);
    command.arg("--pgdata").arg(data).current_dir(data);
    run(&mut command, "initdb, which makes the database of PostgreSQL,")
}

/// Runs a program that prepares a server.
pub(super) fn run(command: &mut Command, what: &str) -> Result<(), Error> {
    let failed = |output: String| Error::Setup { what: what.to_owned(), output };
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(failed(tail(&text, 15)))
}

/// A query.
pub(super) async fn probe(address: &str) -> Result<(), String> {
    version(address).await.map(drop)
}

/// What a client takes.
pub(super) fn url(addresses: &str) -> String {
    format!("postgres://postgres@{addresses}/postgres")
}

pub(super) async fn version(address: &str) -> Result<String, String> {
    let ask = async {
        let (client, connection) = tokio_postgres::connect(&url(address), tokio_postgres::NoTls).await?;
        let connection = tokio::spawn(connection);
        let row = client.query_one("SHOW server_version", &[]).await;
        drop(client);
        // The connection ends with its client; its own error would be the query's.
        drop(connection.await);
        row?.try_get::<_, String>(0)
    };
    let version = ask.await.map_err(|error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    })?;
    // Debian adds its own version in parentheses.
    Ok(format!("PostgreSQL {}", version.split(' ').next().unwrap_or(&version)))
}

/// Removes the segment of shared memory of a server that was killed: line 7 of its file is `KEY ID`.
pub(super) fn clean_up(data: &Path) {
    let file: PathBuf = data.join("postmaster.pid");
    let Ok(text) = fs::read_to_string(file) else { return };
    let Some(segment) = text.lines().nth(6).and_then(|line| line.split_ascii_whitespace().nth(1)) else { return };
    // Best effort: the segment has 56 bytes, and is gone if the server has ended by itself.
    drop(Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status());
}
