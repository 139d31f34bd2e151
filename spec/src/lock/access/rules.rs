//! The rules, and which of them decide.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::lock::{Prefix, Principal, Role};

/// What a rule can permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Right {
    /// To read a lock: its holder, its token and its queue; and to read a record. A client that may acquire
    /// or break a lock may read it, because the answers to both name its holder. A client that may write
    /// records may read them, because the answers to conditions name their versions.
    Read,
    /// To acquire a lock, and to wait for it.
    Acquire,
    /// To take a lock from its holder.
    Break,
    /// To change the cluster: its members, its leader, the access rules; and to take and read
    /// snapshots, which have every key. It is about no key, and only rules with the empty prefix give it.
    Admin,
    /// To write and delete records.
    Write,
}

impl Right {
    /// All rights.
    pub const ALL: [Right; 5] = [Right::Read, Right::Acquire, Right::Break, Right::Admin, Right::Write];

    fn bit(self) -> u8 {
        match self {
            Right::Read => 1,
            Right::Acquire => 2,
            Right::Break => 4,
            Right::Admin => 8,
            Right::Write => 16,
        }
    }
}

/// A set of rights, as a rule has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rights(u8);

impl Rights {
    /// The set of these rights.
    pub fn of(rights: impl IntoIterator<Item = Right>) -> Rights {
        Rights(rights.into_iter().fold(0, |bits, right| bits | right.bit()))
    }

    /// The rights that were given, in order; without those that they include.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.0 & right.bit() > 0)
    }

    /// Whether the set permits it: reading is included in acquiring, breaking and writing.
    pub fn permit(self, right: Right) -> bool {
        let sufficient = match right {
            Right::Read => Rights::of([Right::Read, Right::Acquire, Right::Break, Right::Write]),
            other => Rights::of([other]),
        };
        self.0 & sufficient.0 > 0
    }

    fn united(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

/// Whom a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// Every client that has proved a name.
    Everyone,
    /// The members of a role.
    Role(Role),
    /// The client of this name.
    Principal(Principal),
}

/// A rule: the rights of a subject to the keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// The beginning of the keys.
    pub prefix: Prefix,
    /// Whom it applies to.
    pub subject: Subject,
    /// What it permits; nothing denies.
    pub rights: Rights,
}

/// A role and its members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RoleMembers {
    /// The role.
    pub role: Role,
    /// Its members, in order.
    pub members: Vec<Principal>,
}

/// All rules, with the roles that they name. Both lists are sorted: equal sets are equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Unsorted")]
pub struct Rules {
    roles: Vec<RoleMembers>,
    rules: Vec<Rule>,
}

/// Serialized rules. They are sorted again, so that no file and no peer can contradict the order.
#[derive(Deserialize)]
struct Unsorted {
    roles: Vec<RoleMembers>,
    rules: Vec<Rule>,
}

impl From<Unsorted> for Rules {
    fn from(Unsorted { roles, rules }: Unsorted) -> Rules {
        Rules::new(roles, rules)
    }
}

/// The rules that decide about one principal and one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Their common prefix: the longest of those that apply.
    pub prefix: &'a Prefix,
    /// Their rights, united.
    pub rights: Rights,
    /// The number of these rules.
    pub rules: usize,
}

impl Rules {
    /// Rules in any order. A role that is listed twice has the members of both lists.
    pub fn new(mut roles: Vec<RoleMembers>, mut rules: Vec<Rule>) -> Rules {
        roles.sort_unstable();
        roles.dedup_by(|later, kept| {
            let is_same = later.role == kept.role;
            if is_same {
                kept.members.append(&mut later.members);
            }
            is_same
        });
        for role in &mut roles {
            role.members.sort_unstable();
            role.members.dedup();
        }
        rules.sort_unstable();
        rules.dedup();
        Rules { roles, rules }
    }

    /// The roles, in order.
    pub fn roles(&self) -> &[RoleMembers] {
        &self.roles
    }

    /// The rules, in the order of their prefixes.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the principal has the right to this key.
    pub fn permits(&self, principal: &Principal, right: Right, key: &str) -> bool {
        let key = if right == Right::Admin { "" } else { key };
        principal.is_administrator()
            || self.decide(principal, key).is_some_and(|decision| decision.rights.permit(right))
    }

    /// The rules that decide about a client and a key; `None` if no rule applies.
    pub fn decide(&self, principal: &Principal, key: &str) -> Option<Decision<'_>> {
        if !principal.is_client() {
            return None;
        }
        // `rules` are those that may still decide, and `longest` is the longest prefix that they may
        // have. The last of them in order whose prefix is no beginning of the key shows how much of
        // the key any rule before it can have.
        let (mut rules, mut longest) = (&self.rules[..], key);
        loop {
            rules = &rules[..rules.partition_point(|rule| rule.prefix.as_str() <= longest)];
            let prefix = &rules.last()?.prefix;
            if !longest.starts_with(prefix.as_str()) {
                longest = common_beginning(longest, prefix.as_str());
                continue;
            }
            let (shorter, same) = rules.split_at(rules.partition_point(|rule| rule.prefix < *prefix));
            let applying = same.iter().filter(|rule| self.applies(&rule.subject, principal));
            let decision = Decision { prefix, rights: Rights::default(), rules: 0 };
            let decision = applying.fold(decision, |decision, rule| Decision {
                rights: decision.rights.united(rule.rights),
                rules: decision.rules + 1,
                ..decision
            });
            if decision.rules > 0 {
                return Some(decision);
            }
            (rules, longest) = (shorter, prefix.as_str());
        }
    }

    /// The first text after `key` for which other rules may decide about the principal than for
    /// `key`; `None` if there is none. A reader of a list skips the keys before it if it may not read
    /// `key`.
    pub fn next_decision(&self, principal: &Principal, key: &str) -> Option<String> {
        let end = self.decide(principal, key).and_then(|decision| successor(decision.prefix.as_str()));
        let next = self.rules.partition_point(|rule| rule.prefix.as_str() <= key);
        let next = self.rules.get(next).map(|rule| String::from(rule.prefix.as_str()));
        [end, next].into_iter().flatten().min()
    }

    fn applies(&self, subject: &Subject, principal: &Principal) -> bool {
        match subject {
            Subject::Everyone => true,
            Subject::Role(role) => self.is_member(role, principal),
            Subject::Principal(named) => named == principal,
        }
    }

    fn is_member(&self, role: &Role, principal: &Principal) -> bool {
        let found = self.roles.binary_search_by(|listed| listed.role.cmp(role));
        found.is_ok_and(|at| self.roles[at].members.binary_search(principal).is_ok())
    }
}

/// The longest text with which both begin.
fn common_beginning<'a>(text: &'a str, other: &str) -> &'a str {
    let same = text.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    &text[..same.map(|(character, _)| character.len_utf8()).sum()]
}

/// The first text after all texts that begin with `prefix`; `None` if there is none.
fn successor(prefix: &str) -> Option<String> {
    let mut text = String::from(prefix);
    while let Some(last) = text.pop() {
        // Characters have the order of their numbers; a range of them leaves out the surrogates.
        if let Some(next) = (last..=char::MAX).nth(1) {
            text.push(next);
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests;
