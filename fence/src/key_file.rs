//! The files of secret keys: a few lines of text, readable for their owner only.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::issue::{RootKey, Signer};
use crate::state_file::directory_of;
use crate::text::{decode_text, encode_text};

const ROOT_TITLE: &str = "palisade fence root key: keep it offline";
const SIGNER_TITLE: &str = "palisade fence signing key";
/// A key file is a few hundred bytes; a longer one is something else.
const MAX_BYTES: u64 = 4096;

/// Why a key file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Others may read or write the file.
    #[error("{} has mode {mode:04o}: others can read or change the secret key; run chmod 600 on it, and issue a new key if others had access", .path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The content is something else.
    #[error("{} is not a {expected} file: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// "root key" or "signing key".
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The system's error.
    #[error("cannot {action} {}: {source}; check the path and its permissions", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl RootKey {
    /// Writes a new file, with mode 0600.
    ///
    /// # Errors
    /// If there is a file already, or it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), KeyFileError> {
        write(path, &format!("{ROOT_TITLE}\nseed {}\n", encode_text(&self.seed())))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If others can read it, or it is no root's file.
    pub fn load(path: &Path) -> Result<RootKey, KeyFileError> {
        let content = |reason: String| KeyFileError::Content { path: path.to_owned(), expected: "root key", reason };
        let text = read(path)?;
        let [seed] = fields(&text, ROOT_TITLE, ["seed"]).map_err(content)?;
        seed_of(seed).map(RootKey::from_seed).map_err(content)
    }
}

impl Signer {
    /// Writes a new file, with mode 0600.
    ///
    /// # Errors
    /// If there is a file already, or it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), KeyFileError> {
        let (seed, certificate) = self.parts();
        write(path, &format!("{SIGNER_TITLE}\nseed {}\ncertificate {certificate}\n", encode_text(&seed)))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If others can read it, or it is no signing key's file.
    pub fn load(path: &Path) -> Result<Signer, KeyFileError> {
        let content = |reason: String| KeyFileError::Content { path: path.to_owned(), expected: "signing key", reason };
        let text = read(path)?;
        let [seed, certificate] = fields(&text, SIGNER_TITLE, ["seed", "certificate"]).map_err(content)?;
        let seed = seed_of(seed).map_err(content)?;
        Signer::from_parts(seed, certificate).map_err(|malformed| content(malformed.to_string()))
    }
}

fn seed_of(text: &str) -> Result<[u8; 32], String> {
    let bytes = decode_text("seed", text).map_err(|malformed| malformed.to_string())?;
    <[u8; 32]>::try_from(bytes).map_err(|bytes| format!("the seed has {} bytes; it must have 32", bytes.len()))
}

/// The values of the lines after the title, which have these names in this order.
fn fields<'a, const N: usize>(text: &'a str, title: &str, names: [&str; N]) -> Result<[&'a str; N], String> {
    let mut lines = text.lines();
    if lines.next() != Some(title) {
        return Err(format!("its first line is not `{title}`"));
    }
    let mut values = [""; N];
    for (value, name) in values.iter_mut().zip(names) {
        let line = lines.next().and_then(|line| line.strip_prefix(name)).and_then(|line| line.strip_prefix(' '));
        *value = line.ok_or_else(|| format!("the line `{name} …` is missing"))?;
    }
    match lines.next() {
        None => Ok(values),
        Some(_) => Err("it has further lines".to_owned()),
    }
}

fn read(path: &Path) -> Result<String, KeyFileError> {
    let failed = |source| KeyFileError::Io { action: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Mode { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let failed = |source| KeyFileError::Io { action: "create", path: path.to_owned(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    File::open(directory_of(path)).and_then(|directory| directory.sync_all()).map_err(failed)
}
