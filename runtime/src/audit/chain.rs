//! The chain: every line ends with a hash of itself and of the hash of the line before it.
//!
//! `hash` is the SHA-256 of the previous line's hash, as 64 hexadecimal digits, followed by this
//! line up to `,"hash"`. So a line cannot be changed, added, removed or moved without a change of
//! every later hash. The chain begins with 64 zeros; the first line of a file repeats the hash
//! before it (`prev`).

use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// What stands before a line's hash, and after it.
const BEFORE: &[u8] = b",\"hash\":\"";
const AFTER: &[u8] = b"\"}";
/// Number of hexadecimal digits of a hash.
pub(super) const DIGITS: usize = 64;

/// A hash in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; DIGITS]);

impl Hash {
    /// What the first line of a chain follows.
    pub(super) const NONE: Hash = Hash([b'0'; DIGITS]);

    fn of(before: Hash, line: &[u8]) -> Hash {
        let digest = Sha256::new().chain_update(before.0).chain_update(line).finalize();
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
        let mut digits = [0; DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 0xf)]);
        }
        Hash(digits)
    }

    pub(super) fn parse(text: &[u8]) -> Option<Hash> {
        let digits: [u8; DIGITS] = text.try_into().ok()?;
        digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')).then_some(Hash(digits))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The end of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// The number of lines.
    pub(super) count: u64,
    /// The hash of the last line.
    pub(super) hash: Hash,
}

impl Chain {
    /// A chain without a line.
    pub(super) const EMPTY: Chain = Chain { count: 0, hash: Hash::NONE };

    /// Ends the line that begins at `start` of `text`: adds the hash and the newline.
    pub(super) fn seal(&mut self, text: &mut Vec<u8>, start: usize) {
        self.hash = Hash::of(self.hash, &text[start..]);
        self.count += 1;
        text.extend_from_slice(BEFORE);
        text.extend_from_slice(&self.hash.0);
        text.extend_from_slice(AFTER);
        text.push(b'\n');
    }

    /// Checks that a line, without its newline, is the next one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(&mut self, line: &[u8]) -> Result<Fields, String> {
        let sealed = line.strip_suffix(AFTER).and_then(|line| line.split_at_checked(line.len().checked_sub(DIGITS)?));
        let parts = sealed.and_then(|(rest, hash)| Some((rest.strip_suffix(BEFORE)?, Hash::parse(hash)?)));
        let Some((sealed, hash)) = parts else { return Err("it does not end with a hash".into()) };
        let actual = Hash::of(self.hash, sealed);
        if actual != hash {
            return Err(format!(
                "its hash should be {actual}: this line was changed, or lines before it were changed, removed or added"
            ));
        }
        let fields: Fields = serde_json::from_slice(line).map_err(|error| format!("it is no record: {error}"))?;
        if fields.n != self.count + 1 {
            return Err(format!("it has number {}, and follows number {}", fields.n, self.count));
        }
        *self = Chain { count: fields.n, hash };
        Ok(fields)
    }
}

/// The fields of a record that this program reads again.
#[derive(Debug, Deserialize)]
pub(super) struct Fields {
    pub(super) n: u64,
    pub(super) time: String,
    pub(super) event: String,
    pub(super) index: Option<u64>,
    pub(super) through: Option<u64>,
    pub(super) parts: Option<u64>,
    pub(super) records: Option<u64>,
    pub(super) cluster_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(chain: &mut Chain, line: &str) -> Vec<u8> {
        let mut text = line.as_bytes().to_vec();
        chain.seal(&mut text, 0);
        assert_eq!(text.pop(), Some(b'\n'));
        text
    }

    /// The sum is that of another program, from the description at the top.
    #[test]
    fn hash_is_that_of_the_hash_before_and_the_line() {
        let mut chain = Chain::EMPTY;
        let line = sealed(&mut chain, r#"{"n":1,"time":"t","event":"e""#);
        let known = "86cae69c1f0539c70368b88db2e466cc86c80d2608942bd9f1081f4653020cb8";
        assert_eq!(chain.hash.to_string(), known);
        assert_eq!(line, format!(r#"{{"n":1,"time":"t","event":"e","hash":"{known}"}}"#).into_bytes());
    }

    #[test]
    fn next_line_continues_the_chain_and_no_other_does() {
        let mut writer = Chain::EMPTY;
        let first = sealed(&mut writer, r#"{"n":1,"time":"t","event":"e""#);
        let second = sealed(&mut writer, r#"{"n":2,"time":"t","event":"e""#);
        let mut reader = Chain::EMPTY;
        assert!(reader.check(&second).unwrap_err().contains("its hash should be"));
        reader.check(&first).unwrap();
        assert!(reader.check(&first).is_err());
        reader.check(&second).unwrap();
        assert_eq!(reader, writer);
        let misnumbered = sealed(&mut writer, r#"{"n":7,"time":"t","event":"e""#);
        assert_eq!(reader.check(&misnumbered).unwrap_err(), "it has number 7, and follows number 2");
    }
}
