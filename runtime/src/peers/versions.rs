//! Versions of the protocol between nodes, and how two nodes agree on one: they tell each other which
//! ones they speak, and both use the newest that both speak (decision 0037).
//!
//! Version 10 knew no negotiation: its nodes refuse every hello with another number, in a sentence that
//! is part of that version. So a node offers its range in a hello with the number [`WITH_RANGE`], and
//! dials again with the hello of version 10 if it hears that sentence. A node that accepts answers in
//! the form in which it was greeted.
//!
//! The hello and the welcome with a range are read by all later versions. They grow only inside
//! [`Speaks::later`], which a node that does not know its content skips. When version 10 has left the
//! range, what this file has for it goes as well.

use std::fmt;

use palisade_spec::raft::NodeId;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::hello::{Hello, Introduction, WITHOUT_RANGE};

/// The version of this program.
pub const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// The versions of the protocol that this program speaks.
pub(super) const SPOKEN: Versions = Versions { oldest: WITHOUT_RANGE, newest: WITH_RANGE };

/// The number in a hello that [`Speaks`] follows, whichever versions the node speaks.
const WITH_RANGE: u16 = 11;

/// What a node of version 10 answers to a hello with a range.
const REFUSAL_OF_10: &str = "it speaks version 11 of the protocol, this node version 10";

/// Maximum length of a program's version, in bytes: it is shown in logs and to clients.
const PROGRAM_BYTES: usize = 64;

/// Versions of the protocol between nodes, without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest of them.
    pub oldest: u16,
    /// The newest of them.
    pub newest: u16,
}

impl Versions {
    /// The newest version that both have.
    fn common(self, other: Versions) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            return write!(f, "version {}", self.newest);
        }
        write!(f, "the versions {} to {}", self.oldest, self.newest)
    }
}

/// What a node says of its program in the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaks {
    /// The versions of the protocol between nodes that it speaks.
    pub versions: Versions,
    /// The version of its program, such as `0.1.0`; empty if it does not say, as in version 10.
    pub program: String,
    /// What later versions add.
    pub later: Vec<u8>,
}

/// The answer to a hello with a range of versions: the answering node's introduction, and which versions it speaks. A
/// rejection has the same bytes as in [`Welcome`](super::Welcome).
pub type RangeWelcome = Result<(Introduction, Speaks), String>;

impl Speaks {
    /// What this program says.
    pub(super) fn this_program() -> Speaks {
        Speaks { versions: SPOKEN, program: PROGRAM.to_owned(), later: Vec::new() }
    }

    /// What a node of version 10 would say.
    pub(super) fn version_10() -> Speaks {
        let versions = Versions { oldest: WITHOUT_RANGE, newest: WITHOUT_RANGE };
        Speaks { versions, program: String::new(), later: Vec::new() }
    }

    /// Whether the node understands a hello with a range.
    pub(super) fn knows_ranges(&self) -> bool {
        self.versions.newest > WITHOUT_RANGE
    }

    /// The version in which node `ours`, which is this one, and another node, which has said this, speak.
    /// `theirs` names that one in the error, which says which of the two must be upgraded first.
    pub(super) fn agree(&self, ours: NodeId, theirs: &str) -> Result<u16, String> {
        let Speaks { versions, program, .. } = self;
        // The program's version is written to logs.
        if program.len() > PROGRAM_BYTES || !program.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{theirs} sent an invalid program version; it is not a Palisade node"));
        }
        if versions.oldest > versions.newest {
            return Err(format!(
                "{theirs} sent an invalid range of protocol versions, from {} to {}; it is not a Palisade node",
                versions.oldest, versions.newest
            ));
        }
        SPOKEN.common(*versions).ok_or_else(|| {
            let program = if program.is_empty() { String::new() } else { format!(" (Palisade {program})") };
            nothing_in_common(ours, &format!("{theirs}{program}"), *versions)
        })
    }
}

/// The refusal of a node with which this one cannot speak.
fn nothing_in_common(ours: NodeId, theirs: &str, versions: Versions) -> String {
    let ours = format!("node {ours} (Palisade {PROGRAM})");
    let older = if versions.newest < SPOKEN.oldest { theirs } else { &ours };
    format!(
        "{theirs} speaks {versions} of the protocol between nodes, and {ours} {SPOKEN}: they have none in common. Upgrade \
         {older} first, by way of a version of Palisade that speaks to both (docs/operations.md, \"Upgrades\")"
    )
}

/// The refusal of a hello that this program cannot read, or whose number it does not know. Every
/// version's hello begins with the magic and the version.
pub(super) fn unknown_hello(ours: NodeId, version: u16) -> Option<String> {
    let is_unknown = version != WITHOUT_RANGE && version != WITH_RANGE;
    let versions = Versions { oldest: version, newest: version };
    is_unknown.then(|| nothing_in_common(ours, "the dialling node", versions))
}

/// Whether a node that was offered a range has refused it because it speaks version 10 only.
pub(super) fn speaks_only_10(refusal: &str) -> bool {
    refusal == REFUSAL_OF_10
}

/// The first frame on a connection, from the node that dialled: its hello, and which versions it
/// speaks. [`Hello::version`] says whether that follows.
#[derive(Clone, Debug)]
pub struct Greeting {
    /// The hello.
    pub hello: Hello,
    /// What follows it; `None` in version 10.
    pub speaks: Option<Speaks>,
}

impl Greeting {
    /// A hello that offers all versions that this program speaks, or version 10 only.
    pub(super) fn new(hello: Hello, with_range: bool) -> Greeting {
        if !with_range {
            return Greeting { hello, speaks: None };
        }
        Greeting { hello: Hello { version: WITH_RANGE, ..hello }, speaks: Some(Speaks::this_program()) }
    }
}

impl Serialize for Greeting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.speaks {
            None => self.hello.serialize(serializer),
            Some(speaks) => (&self.hello, speaks).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Greeting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Greeting, D::Error> {
        deserializer.deserialize_tuple(2, Parts)
    }
}

/// Reads a [`Greeting`], whose second part is there only if the first one says so.
struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Greeting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the hello of a node")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Greeting, A::Error> {
        let hello: Hello = parts.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let speaks = match hello.version {
            WITH_RANGE => Some(parts.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?),
            _ => None,
        };
        Ok(Greeting { hello, speaks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(oldest: u16, newest: u16) -> Speaks {
        Speaks { versions: Versions { oldest, newest }, program: "0.9.0".into(), later: Vec::new() }
    }

    #[test]
    fn two_nodes_use_the_newest_version_that_both_speak() {
        let (ours, theirs) = (NodeId(1), "node 2");
        let agreed = |oldest, newest| speaks(oldest, newest).agree(ours, theirs);
        assert_eq!((agreed(10, 10), agreed(11, 11), agreed(10, 11)), (Ok(10), Ok(11), Ok(11)));
        assert_eq!((agreed(9, 10), agreed(11, 14), agreed(0, u16::MAX)), (Ok(10), Ok(11), Ok(11)));
        assert_eq!(Speaks::version_10().agree(ours, theirs), Ok(10));
        assert_eq!(Speaks::this_program().agree(ours, theirs), Ok(11));
        // An inverted range. Both of its ends are spoken here, so that it would look like version 10.
        let inverted = agreed(11, 10).unwrap_err();
        assert!(inverted.contains("node 2 sent an invalid range of protocol versions, from 11 to 10"), "{inverted}");
    }

    #[test]
    fn refusal_names_the_versions_and_the_node_to_upgrade() {
        let (ours, theirs) = (NodeId(1), "node 2");
        let newer = speaks(12, 13).agree(ours, theirs).unwrap_err();
        assert!(newer.contains("node 2 (Palisade 0.9.0) speaks the versions 12 to 13"), "{newer}");
        assert!(newer.contains("the versions 10 to 11") && newer.contains("Upgrade node 1 ("), "{newer}");
        let older = speaks(8, 9).agree(ours, theirs).unwrap_err();
        assert!(older.contains("Upgrade node 2 (Palisade 0.9.0) first"), "{older}");
        assert!(unknown_hello(ours, 9).unwrap().contains("Upgrade the dialling node first"));
        assert!(unknown_hello(ours, 12).unwrap().contains("speaks version 12 of the protocol between nodes"));
        assert_eq!((unknown_hello(ours, 10), unknown_hello(ours, 11)), (None, None));
    }

    /// Goal: what a stranger calls its program reaches no log unless it looks like a version.
    #[test]
    fn programs_version_is_short_and_printable() {
        for program in ["0.1.0\n", "0.1.0 \u{1b}[2J", "ä", &"1".repeat(PROGRAM_BYTES + 1)] {
            let refusal = Speaks { program: program.to_owned(), ..speaks(10, 11) }.agree(NodeId(1), "node 2");
            assert!(refusal.unwrap_err().contains("sent an invalid program version"), "{program:?}");
        }
        assert!(Speaks { program: "1".repeat(PROGRAM_BYTES), ..speaks(10, 11) }.agree(NodeId(1), "node 2").is_ok());
    }
}
