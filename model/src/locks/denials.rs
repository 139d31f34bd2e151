//! Access rules in the model: the names of the clients, the rules that may be set, and who tries to.
//!
//! Each set of rules is there for something that could go wrong: a longer prefix that denies what a
//! shorter one permits, and the other way round; rights by a role; no rule at all.

use std::sync::Arc;

use palisade_spec::lock::{
    Command, Key, Prefix, Principal, Revision, Right, Rights, Role, RoleMembers, Rule, Rules, Subject, Token,
};

use super::Bounds;

/// Holds an administrator's certificate.
const ROOT: &str = "admin/root";

/// The client of a session: the first has a name of its own, all others share one.
pub(super) fn principal(bounds: &Bounds, client: u64) -> Principal {
    Principal::from(match (bounds.revisions, client) {
        (0, _) => "",
        (_, 1) => "ann",
        _ => "bob",
    })
}

/// Every change of the rules: each set of rules, by each principal, at each revision.
pub(super) fn changes(bounds: &Bounds) -> Vec<Command> {
    let revisions = (0..bounds.revisions).map(Revision);
    let mut sets = if bounds.writes.is_empty() || bounds.breaks { sets() } else { Vec::new() };
    sets.extend(bounds.writes.first().map(|_| sets_of_writers()).into_iter().flatten());
    let rules = || [None].into_iter().chain(sets.iter().cloned().map(Some));
    let by = |revision| {
        let all = ["", "ann", "bob", ROOT].map(Principal::from).into_iter();
        let rules = &rules;
        all.flat_map(move |principal| {
            rules().map(move |rules| Command::SetAccess { principal: principal.clone(), revision, rules })
        })
    };
    revisions.flat_map(by).collect()
}

/// A break of a grant by each client, and by an administrator.
pub(super) fn breaks(bounds: &Bounds, key: &Key, token: Token) -> Vec<Command> {
    let operators: &[&str] = if bounds.revisions > 0 { &["ann", "bob", ROOT] } else { &[""] };
    let by = |name: &&str| Command::Break { key: key.clone(), token, principal: Principal::from(*name) };
    operators.iter().map(by).collect()
}

/// The clients without a session that write.
pub(super) fn writers(bounds: &Bounds) -> Vec<Principal> {
    let names: &[&str] = if bounds.revisions > 0 { &["", "ann", "bob", ROOT] } else { &[""] };
    names.iter().map(|name| Principal::from(*name)).collect()
}

/// The sets of rules that may be set where records are written: by a role, for one record or all; for reading only,
/// beside one client that may write.
fn sets_of_writers() -> Vec<Arc<Rules>> {
    let rule = |prefix: &str, subject, rights: &[Right]| Rule {
        prefix: Prefix::from(prefix),
        subject,
        rights: Rights::of(rights.iter().copied()),
    };
    let roles = || vec![RoleMembers { role: Role::from("ops"), members: vec![Principal::from("ann")] }];
    let ops = || Subject::Role(Role::from("ops"));
    let bob = Subject::Principal(Principal::from("bob"));
    let set = |rules| Arc::new(Rules::new(roles(), rules));
    vec![
        set(vec![rule("r", ops(), &[Right::Write])]),
        set(vec![rule("", ops(), &[Right::Write])]),
        set(vec![rule("", Subject::Everyone, &[Right::Read, Right::Acquire]), rule("", bob, &[Right::Write])]),
    ]
}

/// The sets of rules that may be set.
fn sets() -> Vec<Arc<Rules>> {
    let everyone = || Subject::Everyone;
    let bob = || Subject::Principal(Principal::from("bob"));
    let operators = || Subject::Role(Role::from("ops"));
    let rule = |prefix: &str, subject, rights: &[Right]| Rule {
        prefix: Prefix::from(prefix),
        subject,
        rights: Rights::of(rights.iter().copied()),
    };
    let members = vec![Principal::from("ann")];
    let set = |rules| {
        let roles = vec![RoleMembers { role: Role::from("ops"), members: members.clone() }];
        Arc::new(Rules::new(roles, rules))
    };
    vec![
        set(vec![]),
        set(vec![rule("", everyone(), &[Right::Acquire]), rule("k", bob(), &[])]),
        set(vec![rule("", operators(), &[Right::Admin]), rule("k", everyone(), &[Right::Acquire, Right::Break])]),
    ]
}
