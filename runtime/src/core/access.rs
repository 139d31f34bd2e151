//! Access control between the wire and the table: which documents are access rules, and the sentences
//! that say who may do what.

use std::collections::BTreeSet;
use std::sync::Arc;

use palisade_client::wire::{self, AccessRule, AccessRules, Code, Failure};
use palisade_spec::lock::{
    Access, Decision, Prefix, Principal, Revision, Right, Rights, Role, RoleMembers, Rule, Rules, Subject,
};
use palisade_spec::raft::Change;

use crate::limits;
use crate::tls::client_name;

/// How a role is written as the subject of a rule. No client's name has a colon.
const ROLE: &str = "role:";

/// The rules of a document; `None` if it ends access control.
///
/// # Errors
/// [`Code::Invalid`] with a message that names the rule or the role; [`Code::TooLarge`].
pub(super) fn parse_rules(document: &AccessRules) -> Result<Option<Arc<Rules>>, Failure> {
    let AccessRules { enabled, roles, rules, .. } = document;
    if !enabled {
        let is_empty = roles.is_empty() && rules.is_empty();
        let message =
            "the document turns access control off (`enabled` is false), and has rules or roles: leave them out";
        return if is_empty { Ok(None) } else { Err(invalid(message)) };
    }
    let bytes = serde_json::to_vec(document).map_err(|error| invalid(error.to_string()))?.len();
    if bytes > limits::ACCESS_BYTES {
        let message = format!("the access rules have {bytes} bytes as JSON; they may have {}", limits::ACCESS_BYTES);
        return Err(Failure::new(Code::TooLarge, message));
    }
    for (what, count, limit) in
        [("rules", rules.len(), limits::ACCESS_RULES), ("roles", roles.len(), limits::ACCESS_ROLES)]
    {
        if count > limit {
            return Err(invalid(format!("the access rules have {count} {what}; they may have {limit}")));
        }
    }
    let roles = roles.iter().map(|(role, members)| parse_role(role, members)).collect::<Result<Vec<_>, _>>()?;
    let mut known = BTreeSet::new();
    let mut parsed = Vec::new();
    for (number, rule) in (1..).zip(rules) {
        let named =
            |why: String| invalid(format!("rule {number} (`{}` at prefix `{}`): {why}", rule.subject, rule.prefix));
        parsed.push(parse_rule(rule, &roles).map_err(named)?);
        if !known.insert((&rule.subject, &rule.prefix)) {
            return Err(named("another rule has the same subject and prefix: unite their rights in one rule".into()));
        }
    }
    Ok(Some(Arc::new(Rules::new(roles, parsed))))
}

fn parse_role(role: &str, members: &[String]) -> Result<RoleMembers, Failure> {
    client_name(role)
        .map_err(|_| invalid(format!("the role `{role}`: a role's name is like a client's: {NAME_RULE}")))?;
    let parsed = members.iter().map(|name| {
        let why = |why: String| invalid(format!("the role `{role}`: {why}"));
        parse_principal(name).map_err(why)
    });
    Ok(RoleMembers { role: Role::from(role), members: parsed.collect::<Result<_, _>>()? })
}

const NAME_RULE: &str = "letters, digits and . _ - @";

fn parse_rule(rule: &AccessRule, roles: &[RoleMembers]) -> Result<Rule, String> {
    let AccessRule { subject, prefix, rights } = rule;
    if prefix.len() > limits::KEY_BYTES {
        return Err(format!("the prefix has {} bytes; it may have {}", prefix.len(), limits::KEY_BYTES));
    }
    if rights.contains(&wire::Right::Admin) && !prefix.is_empty() {
        return Err(
            "admin is about the cluster, and about no key: only a rule with the empty prefix may give it".into()
        );
    }
    let subject = match (subject.as_str(), subject.strip_prefix(ROLE)) {
        ("*", _) => Subject::Everyone,
        (_, Some(role)) if roles.iter().any(|listed| listed.role.as_str() == role) => Subject::Role(Role::from(role)),
        (_, Some(role)) => return Err(format!("there is no role `{role}`: list it in `roles`, or correct its name")),
        (name, None) => Subject::Principal(parse_principal(name)?),
    };
    Ok(Rule { prefix: Prefix::from(prefix.as_str()), subject, rights: Rights::of(rights.iter().copied().map(right)) })
}

fn parse_principal(name: &str) -> Result<Principal, String> {
    if name.starts_with("admin/") || name.starts_with("node/") {
        return Err(format!("no rule applies to `{name}`: an administrator has every right, and a node has none"));
    }
    client_name(name).map(|name| Principal::from(name.as_str()))
}

/// The document of the rules in force.
pub fn document(access: &Access) -> AccessRules {
    show(access.revision(), access.rules().map(|rules| &**rules))
}

/// The document of rules.
pub(super) fn show(revision: Revision, rules: Option<&Rules>) -> AccessRules {
    let role = |listed: &RoleMembers| {
        (listed.role.to_string(), listed.members.iter().map(Principal::to_string).collect::<Vec<_>>())
    };
    let rule = |rule: &Rule| AccessRule {
        subject: match &rule.subject {
            Subject::Everyone => "*".to_owned(),
            Subject::Role(role) => format!("{ROLE}{role}"),
            Subject::Principal(name) => name.to_string(),
        },
        prefix: rule.prefix.to_string(),
        rights: rule.rights.iter().map(wire_right).collect(),
    };
    AccessRules {
        revision: revision.0,
        enabled: rules.is_some(),
        roles: rules.into_iter().flat_map(|rules| rules.roles().iter().map(role)).collect(),
        rules: rules.into_iter().flat_map(|rules| rules.rules().iter().map(rule)).collect(),
    }
}

pub(super) fn right(right: wire::Right) -> Right {
    match right {
        wire::Right::Read => Right::Read,
        wire::Right::Acquire => Right::Acquire,
        wire::Right::Break => Right::Break,
        wire::Right::Admin => Right::Admin,
        wire::Right::Write => Right::Write,
    }
}

fn wire_right(right: Right) -> wire::Right {
    match right {
        Right::Read => wire::Right::Read,
        Right::Acquire => wire::Right::Acquire,
        Right::Break => wire::Right::Break,
        Right::Admin => wire::Right::Admin,
        Right::Write => wire::Right::Write,
    }
}

/// Whether a principal has a right, and a sentence that says why.
pub(super) fn verdict(access: &Access, principal: &Principal, right: Right, key: &str) -> (bool, String) {
    let permitted = access.permits(principal, right, key);
    let may = if permitted { "may" } else { "may not" };
    let act = match right {
        Right::Admin => "administer the cluster".to_owned(),
        right => format!("{} {key}", wire_right(right).name()),
    };
    (permitted, format!("{} {may} {act}: {}", name(principal), reason(access, principal, right, key)))
}

fn name(principal: &Principal) -> &str {
    if principal.is_none() { "a client without a name" } else { principal.as_str() }
}

fn reason(access: &Access, principal: &Principal, right: Right, key: &str) -> String {
    let Some(rules) = access.rules() else { return "access control is off".into() };
    if principal.is_administrator() {
        return "its certificate is an administrator's".into();
    }
    if principal.is_none() {
        return "access control is on, and rules are about names, which only TLS proves".into();
    }
    if !principal.is_client() {
        return "a node has no right of a client".into();
    }
    let key = if right == Right::Admin { "" } else { key };
    let Some(Decision { prefix, rights, rules }) = rules.decide(principal, key) else {
        let keys = if right == Right::Admin { "every key" } else { "this key" };
        return format!("no rule for {keys} applies to it");
    };
    let given = rights.iter().map(|right| wire_right(right).name()).collect::<Vec<_>>();
    let given = if given.is_empty() { "nothing".to_owned() } else { given.join(", ") };
    let keys = if prefix.as_str().is_empty() { "every key".to_owned() } else { format!("prefix {prefix}") };
    match rules {
        1 => format!("the rule for {keys} gives it {given}"),
        rules => format!("the {rules} rules for {keys} give it {given}"),
    }
}

/// Refuses what the rules do not permit.
///
/// # Errors
/// [`Code::Denied`].
pub fn check(access: &Access, principal: &Principal, right: Right, key: &str) -> Result<(), Failure> {
    match verdict(access, principal, right, key) {
        (true, _) => Ok(()),
        (false, why) => Err(Failure::new(Code::Denied, why)),
    }
}

/// Refuses a change of the members to a client that may not administer the cluster. A node may join, and
/// come back with a new directory, under its own number.
pub(super) fn check_change(access: &Access, principal: &Principal, change: &Change) -> Result<(), Failure> {
    let own = match change {
        Change::Add { id, .. } | Change::Replace { lost: id, .. } => Some(id.number()),
        Change::Promote(_) | Change::Remove(_) => None,
    };
    if own.is_some_and(|number| principal.as_str() == format!("node/{number}")) {
        return Ok(());
    }
    check(access, principal, Right::Admin, "")
}

/// The failure of a command that the table has denied. The rules in `access` may be newer than those
/// that denied it.
pub(super) fn denied(access: &Access, principal: &Principal, right: Right, key: &str) -> Failure {
    check(access, principal, right, key).err().unwrap_or_else(|| {
        let message = format!("{} was denied by access rules that were replaced just then: try again", name(principal));
        Failure::new(Code::Denied, message)
    })
}

/// The failure of a command that the table has denied for other keys of the same grant. The client may not
/// read them, so they are not named.
pub(super) fn other_keys_denied(principal: &Principal, right: Right, key: &str) -> Failure {
    let right = wire_right(right).name();
    let message = format!(
        "{} may not {right} {key} with this token: the grant holds other keys, too, and the access rules do not permit \
         it to {right} all of them",
        name(principal)
    );
    Failure::new(Code::Denied, message)
}

/// The failure of a change of the rules that the table has denied.
pub(super) fn change_denied(access: &Access, principal: &Principal, new: Option<&Rules>) -> Failure {
    if !access.is_enabled() && !principal.is_administrator() {
        let message = format!(
            "{} may not turn on access control: that needs the certificate of an administrator (palisade cert client \
             CA --name NAME --admin)",
            name(principal)
        );
        return Failure::new(Code::Denied, message);
    }
    if access.may_replace(principal) && new.is_some_and(|new| !new.permits(principal, Right::Admin, "")) {
        let message = format!(
            "{} would not administer the cluster under these rules, and could not undo them: give it admin at the \
             empty prefix, or set them with the certificate of an administrator",
            name(principal)
        );
        return Failure::new(Code::Denied, message);
    }
    denied(access, principal, Right::Admin, "")
}

/// The failure of a change of rules that were changed since they were read.
pub(super) fn changed(revision: Revision) -> Failure {
    let message = format!(
        "the access rules have been changed since they were read: they have revision {revision} now. Read them again \
         (palisade acl get), and repeat the change"
    );
    Failure::new(Code::AccessChanged, message)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, message)
}

#[cfg(test)]
pub(super) mod tests;
