//! The resource's side of a fencing token that no client can forge.
//!
//! Palisade's servers sign each grant if they are started with `--sign-grants`. A resource verifies
//! the signed token without a connection to the cluster, refuses a token lower than the highest it
//! has admitted, and keeps that number over restarts. docs/fence-format.md has every byte of the
//! format, docs/fencing.md an example by commands, and the threats.
//!
//! ```text
//! root (offline) ── certifies ──► a node's signing key ── signs ──► grants
//!   └ the resource knows its public key only
//! ```
//!
//! ```no_run
//! use palisade_fence::{Fence, Verifier};
//!
//! # fn example(signed: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let root = "fence1root.uBWvcPyZfYhr8JFs_lhUZ9h8Be3f1PVPVXF6Bz3dJ0o".parse()?;
//! let verifier = Verifier::new("billing", [root]);
//! // The first time: Fence::create. A missing file is an error afterwards, never an empty memory.
//! let mut fence = Fence::open("/var/lib/reports/fence", verifier)?;
//! let admitted = fence.admit("reports/nightly", signed)?;
//! println!("write with token {}", admitted.grant.token);
//! # Ok(())
//! # }
//! ```
//!
//! **The check and the write belong together.** Between [`Fence::admit`] and the write that it
//! allows, no other write to the same key may happen: keep the fence borrowed (or its mutex locked)
//! until the write is done. A resource with transactions of its own uses [`Verifier`] and
//! [`decide`], and stores the mark in the transaction of the write.
//!
//! | module | what it does |
//! |---|---|
//! | `format` | the bytes and the text of grants and certificates |
//! | `keys` | public keys, their IDs, strict verification of one signature |
//! | `issue`, `secret`, `key_file` | the secret keys: root and signing key, what they sign with, and their files |
//! | `verify` | a signed token is genuine, for this cluster, epoch and key |
//! | `mark` | the rule of the highest token |
//! | `fence`, `state_file` | both together, and durable |
//! | `clock` | the one place that reads the wall clock |

mod clock;
mod fence;
mod format;
mod issue;
mod key_file;
mod keys;
mod refusal;
mod rule;
mod secret;
mod state_file;
mod text;
mod verify;

pub use clock::{Clock, unix_time};
pub use fence::{Admitted, Fence};
pub use format::{Certificate, Grant, Signed};
pub use issue::{IssueError, RootKey, Signer, Terms};
pub use key_file::KeyFileError;
pub use keys::{KeyId, Root, RootTextError};
pub use refusal::{OpenError, Refusal};
pub use rule::{Decision, Mark, decide};
pub use text::Malformed;
pub use verify::Verifier;
