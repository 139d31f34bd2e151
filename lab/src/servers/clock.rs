//! A clock of its own for a server: libfaketime reads the offset from a file before each answer.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{Error, file};
use super::find;
use super::options::Kind;

/// The environment under which a program's wall clock follows the file in the node's directory.
pub(super) fn environment(kind: Kind, dir: &Path) -> Result<Vec<(String, String)>, Error> {
    let library = find::libfaketime(kind).map_err(|missing| Error::Missing(vec![missing]))?;
    write(dir, "+0")?;
    let variables = [
        // Debian's Redis allocates with jemalloc, which reads the clock while libfaketime still allocates to
        // find the real one: neither gets ready. With the C library named, its allocator comes first.
        ("LD_PRELOAD", format!("{}:libc.so.6", library.display())),
        ("FAKETIME_TIMESTAMP_FILE", path(dir).display().to_string()),
        // A jump is seen by the next reading of the clock, not up to 10 s later.
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        // A jump of the wall clock, as an operator or NTP makes it, leaves the monotonic clock alone.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        // Waits of a Java program use the monotonic clock. libfaketime 0.9.10 takes their ends for wall-clock times:
        // they return at once, and the program spins.
        ("FAKETIME_FORCE_MONOTONIC_FIX", "0".to_owned()),
        // These two become the server's program, and need no clock.
        ("FAKETIME_SKIP_CMDS", "setsid,setpriv".to_owned()),
    ];
    Ok(variables.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// Sets the offset. The file is replaced as a whole, so that no reader sees half of it.
pub(super) fn write(dir: &Path, offset: &str) -> Result<(), Error> {
    let (path, new) = (path(dir), dir.join("faketime.new"));
    fs::write(&new, format!("{offset}\n")).map_err(file("cannot write", &new))?;
    fs::rename(&new, &path).map_err(file("cannot replace", &path))
}

fn path(dir: &Path) -> PathBuf {
    dir.join("faketime")
}
