//! The object store: moto's server, in a virtual environment of Python under the lab's cache directory.
//!
//! It keeps objects in memory, so that a restart begins with nothing: it stands for a store whose
//! conditional put is atomic, not for a durable one.
//!
//! moto tests the condition of a put and replaces the object in two steps, and answers each request
//! in a thread of its own. Between the steps another thread's put can be accepted, and both are
//! answered with 200: a compare-and-swap would rest on nothing. Python seldom changes threads there,
//! so tests alone do not show it. With an interval of 1 µs between changes
//! (`sys.setswitchinterval`), 5 of 100 rounds of 16 conditional puts on one ETag had more than one
//! winner; with one thread, none had. So the lab starts it with one thread, which makes the two steps
//! one, as they are in S3. Python runs the file `sitecustomize.py` of its path at the start; the
//! lab's is [`ONE_THREAD`].

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use tokio::process::Command;

use super::config;
use super::error::{Error, file};
use super::find;
use super::http;
use super::options::{Kind, Options};
use super::plan::{NodePlan, Plan, node_dir, write_config};
use super::ports;
use super::postgres::run;
use super::process::{Launch, clean};

const TEMPLATE: &str = include_str!("../../config/objects.flags");
/// Makes the development server of Python's `werkzeug`, in which moto runs, answer one request at a time.
const ONE_THREAD: &str = include_str!("../../config/objects-one-thread.py");
const REQUIREMENTS: &str = include_str!("../../config/objects-requirements.txt");

/// The bucket that is made at the start.
pub const BUCKET: &str = "lab";
/// The region that the store states.
pub const REGION: &str = "us-east-1";
/// The access key; the store accepts any.
pub const ACCESS_KEY: &str = "lab";
/// The secret key; the store accepts any.
pub const SECRET_KEY: &str = "palisade-lab";

pub(super) async fn plan(options: &Options, home: &Path) -> Result<Plan, Error> {
    let python = find::python().map_err(|missing| Error::Missing(vec![missing]))?;
    let environment = tokio::task::spawn_blocking(move || environment(&python)).await;
    let environment =
        environment.map_err(|error| Error::Setup { what: "python3".to_owned(), output: error.to_string() })??;
    let mut ports = ports::reserve(1, options.first_port)?;
    let Some(port) = ports.pop() else { return Err(Error::Port("no port was reserved".to_owned())) };
    let name = "objects-1".to_owned();
    let (dir, data) = node_dir(home, &name)?;
    let number = port.number.to_string();
    let text = config::render("objects", TEMPLATE, &[("port", number.as_str())], &options.settings, " ")?;
    write_config(&dir, "objects.flags", &text)?;
    let args = ["-m", "moto.server"].map(str::to_owned).into_iter().chain(config::flags(&text));
    let mut launch = Launch::new(&environment.join("bin/python"), args, options, Kind::Objects, &dir)?;
    write_config(&dir, "sitecustomize.py", ONE_THREAD)?;
    launch.env.push(("PYTHONPATH".to_owned(), dir.display().to_string()));
    // Its log is seen at once, not when a buffer is full.
    launch.env.push(("PYTHONUNBUFFERED".to_owned(), "1".to_owned()));
    let address = port.address();
    let node = NodePlan { name, address: address.clone(), dir, data, launch, _ports: vec![port] };
    Ok(Plan { nodes: vec![node], endpoints: vec![address] })
}

/// The lab's cache directory: what can be made again.
fn cache() -> PathBuf {
    let named = env::var_os("PALISADE_LAB_CACHE").map(PathBuf::from);
    let user = env::var_os("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("palisade-lab"));
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/palisade-lab"));
    named.or(user).or_else(home).unwrap_or_else(|| env::temp_dir().join("palisade-lab-cache"))
}

/// The virtual environment with the pinned packages, made at the first use. It is built under a name of its
/// own and renamed when it is whole, so that two labs at once, or an interrupted one, harm nothing.
fn environment(python: &Path) -> Result<PathBuf, Error> {
    let (cache, name) = (cache(), "objects-venv");
    let whole = cache.join(name);
    let is_current = |at: &Path| fs::read_to_string(at.join("requirements.txt")).is_ok_and(|text| text == REQUIREMENTS);
    if is_current(&whole) {
        return Ok(whole);
    }
    fs::create_dir_all(&cache).map_err(file("cannot make", &cache))?;
    let new = tempfile::Builder::new().prefix("objects-new-").tempdir_in(&cache);
    let new = new.map_err(file("cannot make a directory in", &cache))?;
    eprintln!("palisade-lab: installing the object store (moto) into {}, which happens once", whole.display());
    run(clean(&python.display().to_string()).args(["-m", "venv"]).arg(new.path()), "python3 -m venv")?;
    let file_of_pins = write_config(new.path(), "requirements.new", REQUIREMENTS)?;
    let pip = new.path().join("bin/python");
    let mut install = std::process::Command::new(&pip);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    run(install.arg(&file_of_pins), "pip, which installs the PyPI package moto[server] for the object store,")?;
    let pins = new.path().join("requirements.txt");
    fs::rename(&file_of_pins, &pins).map_err(file("cannot rename", &file_of_pins))?;
    if whole.exists() && !is_current(&whole) {
        // The one of an earlier version of the lab.
        fs::remove_dir_all(&whole).map_err(file("cannot remove", &whole))?;
    }
    let new = new.keep();
    match fs::rename(&new, &whole) {
        Ok(()) => Ok(whole),
        // Another lab was faster.
        Err(_) if is_current(&whole) => fs::remove_dir_all(&new).map_err(file("cannot remove", &new)).map(|()| whole),
        Err(error) => Err(file("cannot make", &whole)(error)),
    }
}

/// A listing of the buckets.
pub(super) async fn probe(address: &str) -> Result<(), String> {
    http::get(address, "/").await.map(drop)
}

/// Makes the bucket, and tries what experiment 9 relies on: a put with a condition that does not hold is
/// answered with 412.
pub(super) async fn settle(address: &str) -> Result<(), String> {
    let endpoint = format!("http://{address}").parse().map_err(|error| format!("{address}: {error}"))?;
    let bucket = Bucket::new(endpoint, UrlStyle::Path, BUCKET, REGION).map_err(|error| error.to_string())?;
    let credentials = Credentials::new(ACCESS_KEY, SECRET_KEY);
    let valid = Duration::from_secs(60);
    let make = bucket.create_bucket(&credentials).sign(valid);
    expect("PUT", make.as_str(), &[], 200).await?;
    let put = bucket.put_object(Some(&credentials), "conditional-put-test").sign(valid);
    expect("PUT", put.as_str(), &[("if-none-match", "*")], 200).await?;
    expect("PUT", put.as_str(), &[("if-none-match", "*")], 412).await?;
    expect("PUT", put.as_str(), &[("if-match", "\"another\"")], 412).await?;
    let delete = bucket.delete_object(Some(&credentials), "conditional-put-test").sign(valid);
    expect("DELETE", delete.as_str(), &[], 204).await
}

async fn expect(method: &str, url: &str, headers: &[(&str, &str)], expected: u16) -> Result<(), String> {
    let (status, body) = http::request(method, url, headers).await?;
    if status == expected {
        return Ok(());
    }
    let path = url.split('?').next().unwrap_or(url);
    Err(format!("answers {method} {path} {headers:?} with {status} instead of {expected}: {}", body.trim()))
}

/// The version of the installed package; the running server does not state it.
pub(super) async fn version() -> Result<String, String> {
    let python = cache().join("objects-venv/bin/python");
    let script = "from importlib.metadata import version; print(version('moto'))";
    let output = Command::new(&python).args(["-c", script]).output().await;
    let output = output.map_err(|error| format!("states no version: {}: {error}", python.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() { Ok(format!("moto {version}")) } else { Err("states no version".to_owned()) }
}
