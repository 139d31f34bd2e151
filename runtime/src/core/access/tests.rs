use palisade_client::wire::Right::{Acquire, Admin, Break, Read};
use palisade_spec::lock::{Command, LockTable};
use palisade_spec::raft::{Address, NodeId, Stamp, StateMachine};
use serde::de::DeserializeOwned;

use super::*;

fn rule(subject: &str, prefix: &str, rights: &[wire::Right]) -> AccessRule {
    AccessRule { subject: subject.into(), prefix: prefix.into(), rights: rights.into() }
}

fn with(rules: Vec<AccessRule>) -> AccessRules {
    let roles = [("ops".to_owned(), vec!["ann".to_owned(), "bob".to_owned()])].into();
    AccessRules { revision: 0, enabled: true, roles, rules }
}

/// The table's access after an administrator has set these rules.
pub(in crate::core) fn access(rules: Vec<AccessRule>) -> Access {
    table(rules).access().clone()
}

pub(in crate::core) fn table(rules: Vec<AccessRule>) -> LockTable {
    let mut table = LockTable::default();
    let rules = parse_rules(&with(rules)).unwrap();
    let principal = Principal::from("admin/root");
    table.apply(Stamp(0), &Command::SetAccess { principal, revision: Revision(0), rules });
    assert!(table.access().is_enabled());
    table
}

/// Goal: the document that is read is the one that was set, in one order.
#[test]
fn document_round_trips_in_one_order() {
    let rules = vec![
        rule("role:ops", "größe/", &[Break, Acquire, Acquire]),
        rule("*", "", &[Read]),
        rule("ann", "", &[Admin]),
        rule("carl", "größe/", &[]),
    ];
    let shown = document(&access(rules.clone()));
    let mut reversed = rules;
    reversed.reverse();
    assert_eq!(document(&access(reversed)), shown);
    assert_eq!(shown.revision, 1);
    assert_eq!(
        shown.rules,
        [
            rule("*", "", &[Read]),
            rule("ann", "", &[Admin]),
            rule("role:ops", "größe/", &[Acquire, Break]),
            rule("carl", "größe/", &[]),
        ]
    );
    assert_eq!(shown.roles["ops"], ["ann", "bob"]);
    let again = access(shown.rules.clone());
    assert_eq!(document(&again), shown);
    assert_eq!(document(&Access::default()), AccessRules::default());
}

/// Goal: a document that is none is refused with a sentence that names the rule.
#[test]
fn bad_document_is_refused_with_the_rule() {
    let refused = |rules: Vec<AccessRule>| parse_rules(&with(rules)).unwrap_err();
    let long = "p".repeat(limits::KEY_BYTES + 1);
    for (bad, why) in [
        (rule("ann", "k/", &[Read, Admin]), "rule 2 (`ann` at prefix `k/`): admin is about the cluster"),
        (rule("role:dev", "", &[]), "rule 2 (`role:dev` at prefix ``): there is no role `dev`"),
        (rule("admin/ann", "", &[]), "no rule applies to `admin/ann`"),
        (rule("node/1", "", &[]), "no rule applies to `node/1`"),
        (rule("", "", &[]), "`` is not a client's name"),
        (rule("a b", "", &[]), "`a b` is not a client's name"),
        (rule("group:x", "", &[]), "`group:x` is not a client's name"),
        (rule("ann", &long, &[]), "the prefix has 513 bytes; it may have 512"),
        (rule("*", "", &[Acquire]), "another rule has the same subject and prefix"),
    ] {
        let failure = refused(vec![rule("*", "", &[Read]), bad]);
        assert!(failure.error == Code::Invalid && failure.message.contains(why), "{failure}");
    }
    let many = |count: usize| (0..count).map(|number| rule("*", &format!("{number}"), &[])).collect::<Vec<_>>();
    assert!(parse_rules(&with(many(limits::ACCESS_RULES))).is_ok());
    assert!(refused(many(limits::ACCESS_RULES + 1)).message.contains("have 257 rules; they may have 256"));
    let wide = (0..40).map(|number| rule("*", &format!("{number:0400}"), &[])).collect();
    assert_eq!(refused(wide).error, Code::TooLarge);

    let role = |role: &str, member: &str| {
        let roles = [(role.to_owned(), vec![member.to_owned()])].into();
        parse_rules(&AccessRules { roles, ..with(vec![]) }).unwrap_err().message
    };
    assert!(role("a/b", "ann").contains("the role `a/b`"), "{}", role("a/b", "ann"));
    assert!(role("dev", "node/1").contains("the role `dev`: no rule applies to `node/1`"));
    let roles = (0..=limits::ACCESS_ROLES).map(|number| (format!("r{number}"), vec![])).collect();
    assert!(parse_rules(&AccessRules { roles, ..with(vec![]) }).unwrap_err().message.contains("65 roles"));
    let off = AccessRules { enabled: false, ..with(vec![]) };
    assert!(parse_rules(&off).unwrap_err().message.contains("turns access control off"));
    assert_eq!(parse_rules(&AccessRules::default()), Ok(None));
}

/// Goal: the sentence names the principal, the right, the key, and what decides.
#[test]
fn sentences_name_the_rule_that_decides() {
    let rules = vec![
        rule("worker-7", "billing/", &[Read]),
        rule("ann", "", &[Read]),
        rule("role:ops", "", &[Break]),
        rule("carl", "hr/", &[]),
    ];
    let access = access(rules);
    let sentence = |name: &str, right, key| verdict(&access, &Principal::from(name), right, key).1;
    for (name, right, key, expected) in [
        (
            "worker-7",
            Right::Acquire,
            "billing/nightly",
            "worker-7 may not acquire billing/nightly: the rule for prefix billing/ gives it read",
        ),
        (
            "worker-7",
            Right::Read,
            "billing/nightly",
            "worker-7 may read billing/nightly: the rule for prefix billing/ gives it read",
        ),
        ("worker-7", Right::Read, "hr/x", "worker-7 may not read hr/x: no rule for this key applies to it"),
        ("ann", Right::Acquire, "x", "ann may not acquire x: the 2 rules for every key give it read, break"),
        ("carl", Right::Read, "hr/x", "carl may not read hr/x: the rule for prefix hr/ gives it nothing"),
        ("ann", Right::Admin, "", "ann may not administer the cluster: the 2 rules for every key give it read, break"),
        (
            "worker-7",
            Right::Admin,
            "billing/x",
            "worker-7 may not administer the cluster: no rule for every key applies to it",
        ),
        ("admin/eve", Right::Break, "x", "admin/eve may break x: its certificate is an administrator's"),
        ("node/3", Right::Read, "x", "node/3 may not read x: a node has no right of a client"),
        (
            "",
            Right::Acquire,
            "x",
            "a client without a name may not acquire x: access control is on, and rules are about names, which only \
             TLS proves",
        ),
    ] {
        assert_eq!(sentence(name, right, key), expected);
    }
    let off = verdict(&Access::default(), &Principal::default(), Right::Break, "x");
    assert_eq!(off, (true, "a client without a name may break x: access control is off".to_owned()));
}

/// Goal: a node may join and come back under its own number, and change nothing else.
#[test]
fn node_changes_only_its_own_membership() {
    let access = access(vec![rule("ann", "", &[Admin])]);
    let (id, address) = (NodeId::new(3, 1), Address::from("h:1"));
    let changes = [
        Change::Add { id, address: address.clone() },
        Change::Replace { lost: id, by: NodeId::new(3, 2), address },
        Change::Promote(id),
        Change::Remove(id),
    ];
    let may = |name: &str| changes.each_ref().map(|change| check_change(&access, &name.into(), change).is_ok());
    assert_eq!(may("node/3"), [true, true, false, false]);
    for other in ["node/2", "node/31", "node/", "bob", ""] {
        assert_eq!(may(other), [false; 4], "{other}");
    }
    for administrator in ["ann", "admin/eve"] {
        assert_eq!(may(administrator), [true; 4], "{administrator}");
    }
}

/// The names of an enumeration's values, as its decoder lists them when it refuses another one.
fn names<T: DeserializeOwned + std::fmt::Debug>() -> Vec<String> {
    let refusal = serde_json::from_str::<T>("\"none\"").unwrap_err().to_string();
    refusal.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

/// Goal: the protocol and the wire have the same rights, under the same names: a right that only one of
/// them knows could not be given, or would be given as another one.
#[test]
fn rights_of_the_wire_are_those_of_the_protocol() {
    let of_wire = Right::ALL.map(wire_right);
    assert_eq!(of_wire.map(right), Right::ALL);
    let of_protocol = Right::ALL.map(|right| format!("{right:?}").to_lowercase());
    assert_eq!(of_wire.map(wire::Right::name), of_protocol.each_ref().map(String::as_str));
    assert_eq!(names::<wire::Right>(), of_protocol);
    assert_eq!(names::<Right>().iter().map(|name| name.to_lowercase()).collect::<Vec<_>>(), of_protocol);
}

/// Goal: each reason why the rules cannot be changed has its sentence, also if the rules have been
/// replaced in the meantime.
#[test]
fn denied_change_of_the_rules_has_its_reason() {
    let on = access(vec![rule("ann", "", &[Admin])]);
    let Ok(Some(new)) = parse_rules(&with(vec![rule("bob", "", &[Admin])])) else { panic!("they are rules") };
    let said = |access: &Access, name: &str| change_denied(access, &name.into(), Some(&new)).message;
    assert!(said(&Access::default(), "bob").contains("needs the certificate of an administrator"));
    assert!(said(&on, "ann").contains("ann would not administer the cluster under these rules"));
    assert!(said(&on, "bob").contains("bob may not administer the cluster: no rule for every key applies to it"));
    let newer = access(vec![rule("bob", "", &[Admin])]);
    assert!(said(&newer, "bob").contains("replaced just then: try again"));
    assert!(denied(&newer, &"admin/x".into(), Right::Read, "k").message.contains("replaced just then: try again"));
    assert_eq!(changed(Revision(7)).error, Code::AccessChanged);
}
