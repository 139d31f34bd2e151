//! The nodes, as answers show them: which of them leads, the state of one, the members.

use serde::{Deserialize, Serialize};

/// A leader and where it serves clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaderView {
    /// Its node number.
    pub id: u16,
    /// `host:port` for clients; none while the node that answers has not yet heard it from the leader.
    pub client_addr: Option<String>,
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusView {
    /// The node that answers.
    pub node: u16,
    /// How often its server has come back without its data directory.
    #[serde(default)]
    pub generation: u16,
    /// The cluster's ID, 16 hexadecimal digits.
    pub cluster: String,
    /// `"leader"`, `"follower"`, `"candidate"` or `"pre_candidate"`; `"founding"` at a founder that takes no part until it
    /// has met all other founders.
    pub role: String,
    /// Its term.
    pub term: u64,
    /// The leader it knows of.
    pub leader: Option<LeaderView>,
    /// The last log index it knows to be committed.
    pub commit: u64,
    /// The last log index it has applied.
    pub applied: u64,
    /// Cluster time in milliseconds, as far as it knows.
    pub cluster_time_ms: u64,
    /// Sessions that are alive.
    pub sessions: u64,
    /// Locks that are held.
    pub locks: u64,
    /// Every member of the cluster, as far as the node that answers knows: the latest in its log.
    pub members: Vec<MemberView>,
    /// The newest snapshot on the answering node's disk, once it has one.
    pub snapshot: Option<SnapshotView>,
    /// Free space on the answering node's disk. Absent in what versions before it say.
    #[serde(default)]
    pub disk: DiskView,
    /// The cluster's name.
    #[serde(default)]
    pub cluster_name: String,
    /// At a founder that takes no part yet (its role is `"founding"`): the other founders that it has not met.
    #[serde(default)]
    pub waiting_for: Vec<u16>,
    /// The version of the program that answers, such as `0.1.0`. Absent in the JSON of versions before it.
    #[serde(default)]
    pub version: String,
}

/// Free space in the file system of a node's data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskView {
    /// How many bytes the node may still allocate, and what it has allocated for the next segment of its log; none if the
    /// system does not say.
    pub free_bytes: Option<u64>,
    /// The low-water mark: with less free, the node refuses new sessions and acquires as a leader ([`Code::NoSpace`](super::Code::NoSpace)).
    pub low_water_bytes: u64,
    /// Whether it does.
    pub low: bool,
    /// What keeps the next segment of the log from being prepared, if anything does.
    pub obstacle: Option<String>,
}

/// The members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MembersView {
    /// All of them, in the order of their numbers.
    pub members: Vec<MemberView>,
    /// The leader that the answering node knows of.
    #[serde(default)]
    pub leader: Option<LeaderView>,
}

/// A snapshot: the state after one entry, in a file. Files of one entry are the same on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SnapshotView {
    /// The last entry that it includes.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The file's length.
    pub bytes: u64,
    /// SHA-256 of the file without its last 32 bytes, which are this hash, in hexadecimal.
    pub hash: String,
    /// Milliseconds of cluster time since that entry.
    pub age_ms: u64,
}

/// A node of the cluster, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemberView {
    /// Its node number.
    pub id: u16,
    /// How often the server of this number has come back without its data directory.
    #[serde(default)]
    pub generation: u16,
    /// Whether it votes; otherwise it only learns.
    pub voter: bool,
    /// Whether it learns only until it has caught up: it was a voter, and has come back without its data directory.
    #[serde(default)]
    pub returning: bool,
    /// `host:port` for nodes.
    pub peer_addr: String,
    /// `host:port` for clients, once known.
    pub client_addr: Option<String>,
    /// Whether the answering node has a connection from it.
    pub connected: bool,
    /// The last index that it is known to have: at a leader, and at another node if the request asks the members (`GET
    /// /v1/status?ask=members`) and the leader answers within a second.
    pub matched: Option<u64>,
    /// The version of its program, such as `0.1.0`, as of its last handshake with the answering node; null if there was
    /// none yet, or its version does not say it. Only in JSON; nodes of 0.1.0 do not have the field.
    #[serde(default, with = "only_in_json")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>", skip_serializing_if = "Option::is_none"))]
    pub version: Option<String>,
    /// The version of the protocol between nodes in which it and the answering node speak; at the answering node itself,
    /// the newest one that it speaks. Only in JSON; nodes of 0.1.0 do not have the field.
    #[serde(default, with = "only_in_json")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u16>", skip_serializing_if = "Option::is_none"))]
    pub protocol: Option<u16>,
    /// Free space on its disk, in a status: of the answering node itself, and of others if the request asks the members
    /// (`GET /v1/status?ask=members`) and this one answers within a second. Only in JSON.
    #[serde(default, with = "only_in_json")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<DiskView>", skip_serializing_if = "Option::is_none"))]
    pub disk: Option<DiskView>,
}

/// Fields of a type in JSON that its binary form lacks: its bytes stay those that earlier versions read.
mod only_in_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { value.serialize(serializer) } else { serializer.serialize_unit() }
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        if deserializer.is_human_readable() {
            T::deserialize(deserializer)
        } else {
            <()>::deserialize(deserializer).map(|()| T::default())
        }
    }
}
