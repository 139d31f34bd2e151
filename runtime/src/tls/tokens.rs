//! Bearer tokens of clients: a file with a line `NAME:SHA256` for each, in hexadecimal digits.
//!
//! The file has only hashes, so that its reader cannot use the tokens. A token has 256 random bits,
//! so that a plain hash cannot be guessed from.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tokio::sync::watch;

use super::TlsError;
use super::identity::client_name;
use super::reload::Unsettled;
use crate::sync::Mutex;

/// Maximum number of revoked tokens whose names are remembered.
const REVOKED: usize = 10_000;

type Hash = [u8; 32];

/// The hash of a bearer token. It names the token, and proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenHash(Hash);

impl TokenHash {
    pub(super) fn of(token: &str) -> TokenHash {
        TokenHash(hash(token))
    }
}

impl From<TokenHash> for String {
    fn from(TokenHash(hash): TokenHash) -> String {
        hex(&hash)
    }
}

impl TryFrom<String> for TokenHash {
    type Error = &'static str;

    fn try_from(digits: String) -> Result<TokenHash, &'static str> {
        hash_of(&digits).map(TokenHash).ok_or("the hash of a token has 64 hexadecimal digits")
    }
}

/// The tokens of a file.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    table: Mutex<Arc<Table>>,
    unsettled: Mutex<Unsettled<String>>,
    /// Counts the changes of the file.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    text: String,
    valid: Vec<(Arc<str>, Hash)>,
    /// Those that the file had since this process started, and has no more.
    revoked: BTreeMap<Hash, Arc<str>>,
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It was in the file.
    Revoked(Arc<str>),
    /// It is not in the file.
    Unknown,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Revoked(name) => write!(f, "the bearer token of `{name}` was revoked"),
            Refused::Unknown => {
                f.write_str("the bearer token is unknown, or was revoked: no line of --client-tokens has it")
            }
        }
    }
}

/// Which node has compared a token with its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedBy {
    /// This node.
    ThisNode,
    /// A follower that has forwarded the request.
    Follower,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read, or a line is damaged.
    pub fn load(path: &Path) -> Result<Tokens, TlsError> {
        let table = Table::parse(path, read(path)?)?;
        let (table, unsettled) = (Mutex::new(Arc::new(table)), Mutex::default());
        Ok(Tokens { path: path.to_owned(), table, unsettled, changes: watch::Sender::new(0) })
    }

    /// Reads the file again, and uses what it has if it has changed and two readings agree; returns
    /// whether it does.
    pub(super) fn reload(&self) -> Result<bool, TlsError> {
        let known = Arc::clone(&self.table.lock());
        let text = read(&self.path)?;
        if !self.unsettled.lock().settles(&text, &known.text) {
            return Ok(false);
        }
        let mut table = Table::parse(&self.path, text)?;
        let is_valid = |hash: &Hash| table.valid.iter().any(|(_, valid)| valid == hash);
        let before = known.revoked.iter().map(|(hash, name)| (*hash, Arc::clone(name)));
        let removed = known.valid.iter().map(|(name, hash)| (*hash, Arc::clone(name)));
        let revoked = removed.chain(before).filter(|(hash, _)| !is_valid(hash)).take(REVOKED).collect();
        table.revoked = revoked;
        *self.table.lock() = Arc::new(table);
        self.changes.send_modify(|changes| *changes += 1);
        Ok(true)
    }

    /// Resolves after changes of the file.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Resolves when the token with this hash no longer counts for the principal for which it counted, with the sentence
    /// for its client: its line was removed, or has another name. The line of one that a
    /// follower has verified may yet come here: it ends when the line has come and gone.
    pub(super) async fn ended(&self, token: TokenHash, principal: &str, verified_by: VerifiedBy) -> String {
        let mut is_new = verified_by == VerifiedBy::Follower;
        let mut changes = self.changes();
        loop {
            match self.name_of(token) {
                Ok(name) if *name == *principal => is_new = false,
                Ok(name) => return format!("the bearer token of `{principal}` is now that of `{name}`"),
                Err(Refused::Unknown) if is_new => {}
                Err(refused) => return refused.to_string(),
            }
            if changes.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// The name of the client with this token.
    pub(super) fn name(&self, token: &str) -> Result<Arc<str>, Refused> {
        self.name_of(TokenHash::of(token))
    }

    /// The name of the client whose token has this hash.
    pub(super) fn name_of(&self, TokenHash(hash): TokenHash) -> Result<Arc<str>, Refused> {
        let table = Arc::clone(&self.table.lock());
        // Every line is compared in full, so that the time tells nothing of how much agrees.
        let mut found = 0_u32;
        for (index, (_, valid)) in (1_u32..).zip(&table.valid) {
            let same: Choice = valid.ct_eq(&hash);
            found.conditional_assign(&index, same);
        }
        match usize::try_from(found).ok().and_then(|index| table.valid.get(index.checked_sub(1)?)) {
            Some((name, _)) => Ok(Arc::clone(name)),
            None => Err(table.revoked.get(&hash).map_or(Refused::Unknown, |name| Refused::Revoked(Arc::clone(name)))),
        }
    }
}

fn read(path: &Path) -> Result<String, TlsError> {
    std::fs::read_to_string(path).map_err(|error| TlsError::unreadable(path, &error))
}

impl Table {
    fn parse(path: &Path, text: String) -> Result<Table, TlsError> {
        let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let damaged = |number: i32, what: &str| {
            TlsError(format!(
                "line {number} of {} {what}: write NAME:SHA256, as `palisade cert token` prints it",
                path.display()
            ))
        };
        let mut valid: Vec<(Arc<str>, Hash)> = Vec::new();
        for (number, line) in lines {
            let (name, digits) = line.split_once(':').ok_or_else(|| damaged(number, "has no colon"))?;
            let name = client_name(name).map_err(|_| damaged(number, "does not begin with a client's name"))?;
            let hash = hash_of(digits).ok_or_else(|| damaged(number, "does not end with 64 hexadecimal digits"))?;
            valid.push((name.into(), hash));
        }
        Ok(Table { text, valid, revoked: BTreeMap::new() })
    }
}

/// A token that was just made: the only time that it is shown.
pub struct NewToken {
    /// The secret, for the client.
    pub token: String,
    /// The line for the nodes' files.
    pub line: String,
}

impl NewToken {
    /// Draws a token for a client with this name.
    pub fn draw(name: &str) -> NewToken {
        let secret: [u8; 32] = rand::rng().random();
        let token = hex(&secret);
        let line = format!("{name}:{}", hex(&hash(&token)));
        NewToken { token, line }
    }
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
        text
    })
}

fn hash_of(digits: &str) -> Option<Hash> {
    let digits = digits.trim();
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = Hash::default();
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn token_names_its_client_until_its_line_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let [one, two] = ["worker-1", "worker-2"].map(NewToken::draw);
        std::fs::write(&path, format!("# tokens\n\n{}\n{}\n", one.line, two.line)).unwrap();
        let tokens = Tokens::load(&path).unwrap();
        assert_eq!(tokens.name(&one.token), Ok("worker-1".into()));
        assert_eq!(tokens.name(&two.token), Ok("worker-2".into()));
        assert_eq!(tokens.name("guessed"), Err(Refused::Unknown));
        assert_eq!(tokens.reload(), Ok(false));

        std::fs::write(&path, &two.line).unwrap();
        assert_eq!((tokens.reload(), tokens.reload()), (Ok(false), Ok(true)));
        assert_eq!(tokens.name(&one.token), Err(Refused::Revoked("worker-1".into())));
        assert_eq!(tokens.name(&two.token), Ok("worker-2".into()));
        std::fs::write(&path, format!("{}\n{}\n", one.line, two.line)).unwrap();
        assert_eq!((tokens.reload(), tokens.reload()), (Ok(false), Ok(true)));
        assert_eq!(tokens.name(&one.token), Ok("worker-1".into()), "a line that comes back is valid again");
    }

    /// Goal: a token ends when its line goes, or has another name. One that only another node knows as yet ends when
    /// its line has come here and gone.
    #[test]
    fn token_ends_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let token = NewToken::draw("worker");
        let renamed = token.line.replace("worker", "other");
        std::fs::write(&path, "").unwrap();
        let tokens = Tokens::load(&path).unwrap();
        let becomes = |line: &str| {
            std::fs::write(&path, line).unwrap();
            assert_eq!((tokens.reload(), tokens.reload()), (Ok(false), Ok(true)));
        };
        let ended = |by| Box::pin(tokens.ended(TokenHash::of(&token.token), "worker", by));
        let poll = |ended: &mut Pin<Box<dyn Future<Output = String> + '_>>| {
            ended.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        let is = |why: Poll<String>, part: &str| matches!(&why, Poll::Ready(why) if why.contains(part));
        let mut new: Pin<Box<dyn Future<Output = String> + '_>> = ended(VerifiedBy::Follower);
        assert!(poll(&mut new).is_pending(), "its line may come yet");
        let mut known: Pin<Box<dyn Future<Output = String> + '_>> = ended(VerifiedBy::ThisNode);
        assert!(is(poll(&mut known), "unknown, or was revoked"));
        becomes(&token.line);
        known = ended(VerifiedBy::ThisNode);
        assert!(poll(&mut new).is_pending() && poll(&mut known).is_pending(), "its line is there");
        becomes(&renamed);
        assert!(is(poll(&mut known), "of `worker` is now that of `other`"));
        assert!(poll(&mut new).is_ready(), "the line has another name for it, too");
        new = ended(VerifiedBy::Follower);
        assert!(poll(&mut new).is_ready());
        becomes("");
        known = ended(VerifiedBy::Follower);
        assert!(is(poll(&mut known), "of `other` was revoked"), "a line that has gone does not come");
    }

    /// Goal: a file that is read while a program rewrites it revokes no token, whether its end is missing
    /// or all of it.
    #[test]
    fn half_written_file_revokes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let [one, two] = ["worker-1", "worker-2"].map(NewToken::draw);
        let whole = format!("{}\n{}\n", one.line, two.line);
        std::fs::write(&path, &whole).unwrap();
        let tokens = Tokens::load(&path).unwrap();
        let changed = format!("# changed\n{whole}");
        for half in [&changed[..one.line.len() + 12], &one.line, ""] {
            std::fs::write(&path, half).unwrap();
            assert_eq!(tokens.reload(), Ok(false));
            std::fs::write(&path, &changed).unwrap();
            assert_eq!(tokens.reload(), Ok(false));
            assert!([&one, &two].iter().all(|token| tokens.name(&token.token).is_ok()), "{half}");
            std::fs::write(&path, &whole).unwrap();
            assert_eq!((tokens.reload(), tokens.reload()), (Ok(false), Ok(false)));
        }
        std::fs::write(&path, &changed).unwrap();
        assert_eq!((tokens.reload(), tokens.reload()), (Ok(false), Ok(true)));
    }

    #[test]
    fn damaged_line_is_named_and_the_tokens_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let token = NewToken::draw("worker");
        std::fs::write(&path, &token.line).unwrap();
        let tokens = Tokens::load(&path).unwrap();
        for (damaged, complaint) in [
            ("worker", "line 1 of"),
            ("worker:12", "64 hexadecimal digits"),
            (&format!("# c\na/b:{}", "0".repeat(64)), "line 2 of"),
            (&format!("admin/root:{}", "0".repeat(64)), "does not begin with a client's name"),
            (&format!("worker:{}", "+0".repeat(32)), "64 hexadecimal digits"),
        ] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(tokens.reload(), Ok(false));
            let refused = tokens.reload().unwrap_err().to_string();
            assert!(refused.contains(complaint), "{refused}");
            assert_eq!(tokens.name(&token.token), Ok("worker".into()));
        }
    }
}
