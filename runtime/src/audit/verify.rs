//! Verifies the chain of an audit log, anywhere.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::chain::Chain;
pub use super::chain::Hash;
use super::files;

/// Maximum length of a line. A record is much shorter: this bounds the memory for a file that is none.
const LINE_BYTES: u64 = 1 << 20;

/// What a sound log has.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of files.
    pub files: usize,
    /// Number of records.
    pub records: u64,
    /// The number of the first record; greater than 1 if earlier files are not there.
    pub first: u64,
    /// The times of the first and of the last record.
    pub times: (String, String),
    /// The hash of the last record.
    pub hash: Hash,
    /// Number of bytes of an unfinished line at the end: the node writes it, or ended while it did.
    pub unfinished: u64,
    /// Number of records that were not written, according to the log.
    pub dropped: u64,
}

/// Why a log is not sound, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// A line is damaged.
    #[error("{}, line {line}: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// No record has the expected hash.
    #[error(
        "no record has the hash {expected}: records were removed from the end, or the log was written anew, after that hash \
         was noted (the last hash is {hash})"
    )]
    Missing {
        /// The hash of the last record.
        hash: String,
        /// The hash that was expected.
        expected: String,
    },
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is nothing to verify.
    #[error("{} has no file of an audit log (audit-00000001.jsonl and so on)", .0.display())]
    Empty(PathBuf),
}

/// Parses a hash that was noted earlier.
///
/// # Errors
/// The reason why it is none.
pub fn parse_hash(text: &str) -> Result<Hash, String> {
    let refused = || format!("`{text}` is not a hash of an audit log (64 hexadecimal digits, in lower case)");
    Hash::parse(text.trim().as_bytes()).ok_or_else(refused)
}

/// Verifies files, each named itself or by its directory, in the order of their numbers.
///
/// # Errors
/// The first [`Flaw`]. Any record may have the `expected` hash: the log has grown since it was noted.
pub fn verify(paths: &[PathBuf], expected: Option<Hash>) -> Result<Report, Flaw> {
    let files = list(paths)?;
    let mut verifier = Verifier { expected, ..Verifier::default() };
    for (index, path) in files.iter().enumerate() {
        verifier.file(path, index + 1 == files.len())?;
    }
    let Some(first) = verifier.first else { return Err(Flaw::Empty(paths.first().cloned().unwrap_or_default())) };
    let hash = verifier.chain.hash;
    if let Some(expected) = expected.filter(|_| !verifier.met_expected) {
        return Err(Flaw::Missing { hash: hash.to_string(), expected: expected.to_string() });
    }
    let records = verifier.chain.count - first.0 + 1;
    let (times, unfinished, dropped) = ((first.1, verifier.last), verifier.unfinished, verifier.dropped);
    Ok(Report { files: files.len(), records, first: first.0, times, hash, unfinished, dropped })
}

/// Gives each line its hash, as a node does when it writes the line: for tests of what reads an audit log.
#[doc(hidden)]
pub fn seal(lines: &[u8]) -> Vec<u8> {
    let (mut chain, mut text) = (Chain::EMPTY, Vec::new());
    for line in lines.split(|&byte| byte == b'\n') {
        chain = files::first(&[line, b"}"].concat()).unwrap_or(chain);
        let start = text.len();
        text.extend_from_slice(line);
        chain.seal(&mut text, start);
    }
    text
}

fn list(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Flaw> {
    let mut files = Vec::new();
    for path in paths {
        let failed = |source| Flaw::Io { path: path.clone(), source };
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            found.extend(name.to_str().and_then(files::number));
        }
        if found.is_empty() {
            return Err(Flaw::Empty(path.clone()));
        }
        found.sort_unstable();
        files.extend(found.into_iter().map(|number| path.join(files::file_name(number))));
    }
    Ok(files)
}

struct Verifier {
    chain: Chain,
    /// The number and the time of the first record.
    first: Option<(u64, String)>,
    last: String,
    expected: Option<Hash>,
    met_expected: bool,
    unfinished: u64,
    dropped: u64,
}

impl Default for Verifier {
    fn default() -> Verifier {
        let (first, last, expected) = (None, String::new(), None);
        Verifier { chain: Chain::EMPTY, first, last, expected, met_expected: false, unfinished: 0, dropped: 0 }
    }
}

impl Verifier {
    fn file(&mut self, path: &Path, is_last: bool) -> Result<(), Flaw> {
        let failed = |source| Flaw::Io { path: path.to_owned(), source };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let read = reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line).map_err(failed)?;
            number += 1;
            let damaged = |why: String| Flaw::Damaged { path: path.to_owned(), line: number, why };
            if line.pop_if(|&mut byte| byte == b'\n').is_none() {
                if read == 0 && number > 1 {
                    return Ok(());
                }
                // A line that was not written to its end is shorter than a whole one.
                let is_whole = |line: &[u8]| self.chain.clone().check(line).is_ok();
                let is_longer = line.split_last().is_some_and(|(_, rest)| is_whole(rest));
                if is_last && (read as u64) < LINE_BYTES && !is_longer {
                    self.unfinished = read as u64;
                    return Ok(());
                }
                return Err(damaged("it has no end".into()));
            }
            self.line(&line, number).map_err(damaged)?;
        }
    }

    fn line(&mut self, line: &[u8], number: u64) -> Result<(), String> {
        if number == 1 {
            let chain = files::first(line)?;
            if self.first.is_none() {
                self.chain = chain;
            } else if self.chain != chain {
                return Err(format!(
                    "it follows the record {} with hash {}, and the file before it ends with record {} and hash {}: a file \
                     is missing, or was cut",
                    chain.count, chain.hash, self.chain.count, self.chain.hash
                ));
            }
        }
        let fields = self.chain.check(line)?;
        if fields.event == "file" && number > 1 {
            return Err("it is the first line of a file, in the middle of one".into());
        }
        let dropped = fields.records.filter(|_| fields.event == "dropped").unwrap_or(0);
        self.dropped = self.dropped.saturating_add(dropped);
        self.met_expected |= self.expected == Some(self.chain.hash);
        self.last.clone_from(&fields.time);
        self.first.get_or_insert((fields.n, fields.time));
        Ok(())
    }
}
