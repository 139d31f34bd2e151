use alloc::vec;

use super::*;
use crate::invariants::permitted;

fn subject(name: &str) -> Subject {
    match (name, name.strip_prefix('@')) {
        ("*", _) => Subject::Everyone,
        (_, Some(role)) => Subject::Role(Role::from(role)),
        (name, None) => Subject::Principal(Principal::from(name)),
    }
}

/// Rules of subjects (`*`, `@role`, or a name), prefixes and rights (`r`, `a`, `b`, `A`, `w`). The role `ops`
/// has ann and bob.
fn rules(lines: &[(&str, &str, &str)]) -> Rules {
    let rights = |letters: &str| {
        Rights::of(letters.chars().map(|letter| match letter {
            'r' => Right::Read,
            'a' => Right::Acquire,
            'b' => Right::Break,
            'A' => Right::Admin,
            'w' => Right::Write,
            other => panic!("{other} is no right"),
        }))
    };
    let rule = |&(name, prefix, letters): &(&str, &str, &str)| Rule {
        prefix: Prefix::from(prefix),
        subject: subject(name),
        rights: rights(letters),
    };
    let members = ["bob", "ann"].map(Principal::from).into();
    Rules::new(vec![RoleMembers { role: Role::from("ops"), members }], lines.iter().map(rule).collect())
}

/// The rights of a principal to a key, as letters; `-` if no rule applies.
fn rights(rules: &Rules, principal: &str, key: &str) -> String {
    let Some(decision) = rules.decide(&Principal::from(principal), key) else { return "-".into() };
    let letters = ['r', 'a', 'b', 'A', 'w'].into_iter().zip(Right::ALL);
    letters.filter(|(_, right)| decision.rights.iter().any(|given| given == *right)).map(|(letter, _)| letter).collect()
}

#[test]
fn longest_prefix_decides() {
    let rules = rules(&[("ann", "", "b"), ("ann", "billing/", "a"), ("ann", "billing/eu/", "r")]);
    for (key, expected) in [
        ("", "b"),
        ("billing", "b"),
        ("billing/", "a"),
        ("billing/eu", "a"),
        ("billing/eu/", "r"),
        ("billing/eu/nightly", "r"),
        ("billing/ev", "a"),
        ("billing0", "b"),
        ("a", "b"),
    ] {
        assert_eq!(rights(&rules, "ann", key), expected, "{key}");
        assert_eq!(rights(&rules, "eve", key), "-", "{key}: nothing is permitted by default");
    }
}

#[test]
fn longest_prefix_decides_whomever_its_rule_names() {
    let rules = rules(&[("ann", "", "ab"), ("*", "billing/", "r"), ("@ops", "billing/eu/", "")]);
    assert_eq!(rights(&rules, "ann", "x"), "ab");
    assert_eq!(rights(&rules, "ann", "billing/x"), "r");
    assert_eq!(rights(&rules, "ann", "billing/eu/x"), "", "a rule without rights denies");
    assert_eq!(rights(&rules, "eve", "billing/eu/x"), "r", "a rule that does not apply denies nothing");
}

#[test]
fn rights_of_one_prefix_are_united() {
    let rules = rules(&[("ann", "k", ""), ("@ops", "k", "r"), ("*", "k", "a"), ("eve", "k", "b")]);
    for (principal, expected) in [("ann", "ra"), ("bob", "ra"), ("eve", "ab"), ("carl", "a")] {
        assert_eq!(rights(&rules, principal, "k"), expected, "{principal}");
    }
}

#[test]
fn prefixes_end_anywhere_in_a_text_of_any_language() {
    let rules = rules(&[("*", "größe", "a"), ("*", "gr", "r"), ("*", "grö", "b"), ("*", "鎖/", "a")]);
    for (key, expected) in [
        ("größer", "a"),
        ("größ", "b"),
        ("gröss", "b"),
        ("grü", "r"),
        ("gr", "r"),
        ("g", "-"),
        ("鎖/夜", "a"),
        ("鎖", "-"),
        ("鎗/夜", "-"),
    ] {
        assert_eq!(rights(&rules, "ann", key), expected, "{key}");
    }
}

#[test]
fn reading_is_included_in_acquiring_breaking_and_writing() {
    for (letters, permitted) in [("", ""), ("r", "r"), ("a", "ra"), ("b", "rb"), ("A", "A"), ("w", "rw"), ("ab", "rab")]
    {
        let rules = rules(&[("ann", "", letters)]);
        let ann = Principal::from("ann");
        let permits = |(letter, right)| rules.permits(&ann, right, "").then_some(letter);
        let all: String = ['r', 'a', 'b', 'A', 'w'].into_iter().zip(Right::ALL).filter_map(permits).collect();
        assert_eq!(all, permitted, "{letters}");
    }
}

#[test]
fn administration_is_about_no_key() {
    let rules = rules(&[("ann", "", "A"), ("ann", "k", "r"), ("eve", "k", "A")]);
    assert!(rules.permits(&Principal::from("ann"), Right::Admin, "k"));
    assert!(!rules.permits(&Principal::from("eve"), Right::Admin, "k"));
}

#[test]
fn certificates_of_administrators_have_all_rights_and_nodes_and_the_nameless_none() {
    let everything = rules(&[("*", "", "rabAw"), ("node/1", "", "rabAw"), ("", "", "rabAw")]);
    for right in Right::ALL {
        assert!(rules(&[]).permits(&Principal::from("admin/ann"), right, "k"));
        assert!(rules(&[("admin/ann", "", "")]).permits(&Principal::from("admin/ann"), right, "k"));
        assert!(everything.permits(&Principal::from("eve"), right, "k"));
        for powerless in ["node/1", "", "administrator/x", "x/admin/"] {
            assert!(!everything.permits(&Principal::from(powerless), right, "k"), "{powerless}");
        }
    }
}

#[test]
fn order_of_rules_and_members_means_nothing() {
    let lines = [("*", "b", "a"), ("ann", "", "r"), ("@ops", "b", "b")];
    let mut reversed = lines;
    reversed.reverse();
    assert_eq!(rules(&lines), rules(&reversed));
    let role = |members: &[&str]| RoleMembers {
        role: Role::from("r"),
        members: members.iter().copied().map(Principal::from).collect(),
    };
    let rules = Rules::new(vec![role(&["c", "a"]), role(&["b", "a"])], Vec::new());
    assert_eq!(rules.roles(), [role(&["a", "b", "c"])]);
}

#[test]
fn keys_of_one_decision_are_skipped_together() {
    let rules = rules(&[("ann", "b/", "a"), ("*", "b/b/", ""), ("eve", "c/", "r"), ("ann", "zz", "r")]);
    let next = |key| rules.next_decision(&Principal::from("ann"), key);
    for (key, expected) in [
        ("a", Some("b/")),
        ("b/0", Some("b/b/")),
        ("b/b/0", Some("b/b0")),
        ("b/c", Some("b0")),
        ("b0", Some("c/")),
        ("c/0", Some("zz")),
        ("zz", Some("z{")),
        ("z{", None),
    ] {
        assert_eq!(next(key).as_deref(), expected, "{key}");
    }
}

/// All texts of up to three of these letters. Two of them begin with the same byte.
fn texts() -> Vec<String> {
    let mut texts = vec![String::new()];
    for length in 0..3 {
        let shorter: Vec<String> = texts.iter().filter(|text| text.chars().count() == length).cloned().collect();
        texts
            .extend(shorter.iter().flat_map(|text| ['a', 'ä', 'ö', '\u{10ffff}'].map(|c| alloc::format!("{text}{c}"))));
    }
    texts.sort_unstable();
    texts
}

/// Compares the search with the definition, and the skipping with every key that it skips: for many
/// sets of rules, all keys, and clients in different roles.
#[test]
fn search_agrees_with_the_definition() {
    let texts = texts();
    let mut seed = 17_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    for _ in 0..300 {
        let lines: Vec<_> = (0..random(7))
            .map(|_| {
                let subject = ["*", "@ops", "ann", "eve"][random(4)];
                (subject, texts[random(texts.len())].as_str(), ["", "r", "a", "b", "rb", "A", "w"][random(7)])
            })
            .collect();
        let rules = rules(&lines);
        for principal in ["ann", "bob", "eve", "admin/x", "node/1", ""].map(Principal::from) {
            for (at, key) in texts.iter().enumerate() {
                for right in Right::ALL {
                    let expected = permitted(Some(&rules), &principal, right, key);
                    assert_eq!(
                        rules.permits(&principal, right, key),
                        expected,
                        "{principal} {right:?} {key} {lines:?}"
                    );
                }
                let next = rules.next_decision(&principal, key);
                let skipped = texts[at..].iter().take_while(|later| next.as_ref().is_none_or(|next| *later < next));
                let decision = rules.decide(&principal, key);
                assert!(next.as_ref().is_none_or(|next| next > key));
                for later in skipped {
                    assert_eq!(rules.decide(&principal, later), decision, "{principal} {key} {later} {lines:?}");
                }
            }
        }
    }
}

/// Goal: a right that a rule names twice is given.
#[test]
fn rights_are_a_set() {
    let twice = Rights::of([Right::Read, Right::Acquire, Right::Read]);
    assert_eq!(twice, Rights::of([Right::Acquire, Right::Read]));
    assert!(twice.permit(Right::Read) && twice.iter().eq([Right::Read, Right::Acquire]));
}
