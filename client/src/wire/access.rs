//! Access control: who may do what.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The access rules of a cluster: what `GET /v1/access` answers, and what `PUT /v1/access` takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AccessRules {
    /// How often the rules were changed. Rules replace those of the revision that they name, and no others.
    pub revision: u64,
    /// Whether there is access control. Without it each client may do everything, and there are no rules.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The members of each role: names of clients.
    #[serde(default)]
    pub roles: BTreeMap<String, Vec<String>>,
    /// The rules. For each key and client, those with the longest prefix decide, of the ones that apply.
    #[serde(default)]
    pub rules: Vec<AccessRule>,
}

/// A rule: the rights of a subject to the keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// A client's name, `role:NAME`, or `*` for every client.
    pub subject: String,
    /// The beginning of the keys; empty for all keys.
    pub prefix: String,
    /// What it permits; nothing denies.
    pub rights: Vec<Right>,
}

/// What a rule can permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// To read a lock. Included in the next two.
    Read,
    /// To acquire a lock.
    Acquire,
    /// To take a lock from its holder.
    Break,
    /// To change members, leader and access rules, and to take and read snapshots: only with the empty prefix.
    Admin,
    /// To write and delete records. Includes reading.
    Write,
}

impl Right {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Acquire => "acquire",
            Right::Break => "break",
            Right::Admin => "admin",
            Right::Write => "write",
        }
    }
}

/// The query of `GET /v1/access/test`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestAccess {
    /// The name of a client, `admin/NAME`, or `node/N`.
    pub principal: String,
    /// The right.
    pub right: Right,
    /// The key; [`Right::Admin`] is about none.
    #[serde(default)]
    pub key: String,
}

/// The answer to [`TestAccess`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessVerdict {
    /// Whether the principal has the right.
    pub permitted: bool,
    /// A sentence with the rules that decide.
    pub why: String,
}

fn yes() -> bool {
    true
}
