//! Access control: which principal may do what, as part of the replicated table.
//!
//! Without rules every principal has every right. With rules a principal has only the rights that
//! they give it: of the rules that apply to the principal and whose prefix begins the key, those with
//! the longest prefix decide, and their rights are united. A rule without rights denies.
//!
//! Two kinds of principals are outside the rules. An administrator's certificate (`admin/alice`) has
//! every right: only the holder of the CA's key can issue one, so that no rules lock all clients out.
//! A node (`node/3`), and a client that has proved no name, have no right.

mod rules;

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::rules::{Decision, Right, Rights, RoleMembers, Rule, Rules, Subject};
use super::{Principal, Reply, Revision};

/// The access rules of a table, and which rules they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    revision: Revision,
    rules: Option<Arc<Rules>>,
}

impl Access {
    /// Grows with each change of the rules, ends of access control included.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The rules; `None` without access control.
    pub fn rules(&self) -> Option<&Arc<Rules>> {
        self.rules.as_ref()
    }

    /// Whether there is access control.
    pub fn is_enabled(&self) -> bool {
        self.rules.is_some()
    }

    /// Whether the principal has the right to this key. [`Right::Admin`] is about the cluster, and
    /// about no key.
    pub fn permits(&self, principal: &Principal, right: Right, key: &str) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.permits(principal, right, key))
    }

    /// Whether the principal may replace the rules: an administrator by the rules in force. Without
    /// rules only one by its certificate: otherwise any client could make itself the only one.
    pub fn may_replace(&self, principal: &Principal) -> bool {
        match &self.rules {
            Some(rules) => rules.permits(principal, Right::Admin, ""),
            None => principal.is_administrator(),
        }
    }

    pub(super) fn skip_revisions(&mut self, gap: u64) {
        self.revision = Revision(self.revision.0 + gap);
    }

    /// Replaces the rules for `principal`, which has read them at `revision`. It must be an
    /// administrator by the new rules, too, so that it can undo them. Rules that are in force already
    /// are no change, so that a repetition has the answer of the first request.
    pub(super) fn replace(&mut self, principal: &Principal, revision: Revision, rules: Option<&Arc<Rules>>) -> Reply {
        let is_administrator_after = rules.is_none_or(|rules| rules.permits(principal, Right::Admin, ""));
        if !self.may_replace(principal) || !is_administrator_after {
            return Reply::Denied;
        }
        if self.rules.as_ref() != rules {
            if self.revision != revision {
                return Reply::AccessChanged { revision: self.revision };
            }
            self.revision = Revision(self.revision.0 + 1);
            self.rules = rules.cloned();
        }
        Reply::AccessSet { revision: self.revision }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::lock::{Prefix, Role};

    fn rules(administrator: &str) -> Option<Arc<Rules>> {
        let subject = Subject::Principal(Principal::from(administrator));
        let rule = Rule { prefix: Prefix::from(""), subject, rights: Rights::of([Right::Admin]) };
        let roles = vec![RoleMembers { role: Role::from("ops"), members: vec![Principal::from("carol")] }];
        Some(Arc::new(Rules::new(roles, vec![rule])))
    }

    fn replace(access: &mut Access, principal: &str, revision: u64, rules: Option<Arc<Rules>>) -> Reply {
        access.replace(&Principal::from(principal), Revision(revision), rules.as_ref())
    }

    fn set(revision: u64) -> Reply {
        Reply::AccessSet { revision: Revision(revision) }
    }

    #[test]
    fn only_an_administrator_before_and_after_changes_the_rules() {
        let mut access = Access::default();
        for principal in ["alice", "", "node/1"] {
            assert_eq!(replace(&mut access, principal, 0, rules(principal)), Reply::Denied, "{principal}");
            assert_eq!(replace(&mut access, principal, 0, None), Reply::Denied, "{principal}");
        }
        assert_eq!(access, Access::default());
        assert_eq!(replace(&mut access, "admin/dora", 0, rules("alice")), set(1));
        let before = access.clone();
        for principal in ["bob", "", "node/1", "carol"] {
            assert_eq!(replace(&mut access, principal, 1, rules(principal)), Reply::Denied, "{principal}");
            assert_eq!(replace(&mut access, principal, 1, None), Reply::Denied, "{principal}");
        }
        assert_eq!(replace(&mut access, "alice", 1, rules("bob")), Reply::Denied, "she would be locked out");
        assert_eq!(access, before);
        assert_eq!(replace(&mut access, "admin/dora", 1, rules("bob")), set(2));
        assert_eq!(replace(&mut access, "alice", 2, None), Reply::Denied);
        assert_eq!(replace(&mut access, "bob", 2, None), set(3));
        assert!(!access.is_enabled() && access.permits(&Principal::default(), Right::Break, "k"));
    }

    #[test]
    fn rules_are_replaced_only_at_the_revision_that_was_read() {
        let mut access = Access::default();
        assert_eq!(replace(&mut access, "admin/a", 0, rules("alice")), set(1));
        let changed = Reply::AccessChanged { revision: Revision(1) };
        for revision in [0, 2] {
            assert_eq!(replace(&mut access, "admin/b", revision, rules("bob")), changed);
            assert_eq!(replace(&mut access, "admin/b", revision, None), changed);
        }
        assert_eq!(replace(&mut access, "admin/a", 0, rules("alice")), set(1), "a repetition");
        assert_eq!(replace(&mut access, "admin/b", 1, rules("bob")), set(2));
        assert_eq!(replace(&mut access, "admin/b", 2, None), set(3));
        assert_eq!(replace(&mut access, "admin/a", 0, rules("alice")), Reply::AccessChanged { revision: Revision(3) });
    }
}
