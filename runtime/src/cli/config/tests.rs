use std::path::Path;

use super::print::lines;
use super::*;

/// The least that a node needs, beside what a test adds.
const NODE: &str = "id = 1\ndata = \"d\"\nclient-addr = \"127.0.0.1:7401\"\npeer-addr = \"127.0.0.1:7501\"\npeers = { 1 = \"127.0.0.1:7501\" }\n";

fn write(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn layered(file: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Layered, Vec<String>> {
    let command_line = ["palisade", "serve", "--config", file.to_str().unwrap()];
    let command_line = command_line.into_iter().chain(arguments.iter().copied()).map(OsString::from).collect();
    let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
    Layered::of(command_line, variable)
}

fn printed(layered: &Layered) -> String {
    let matches = Arguments::command().try_get_matches_from(&layered.arguments).unwrap();
    lines(layered, matches.subcommand_matches("serve").unwrap()).join("\n")
}

/// Expects that the file is refused with these messages, each after the file's name and a line.
#[track_caller]
fn refused(text: &str, expected: &[(usize, &str)]) {
    let file = write(text);
    let Refused { exit_code, refusals } = check(file.path(), |_| None).unwrap_err();
    assert_eq!(exit_code, EXIT_CONFIG);
    assert_eq!(refusals.len(), expected.len(), "{refusals:?}");
    for (refusal, (line, reason)) in refusals.iter().zip(expected) {
        assert!(refusal.starts_with(&format!("{}:{line}: ", file.path().display())), "{refusal}");
        assert!(refusal.contains(reason), "{refusal}");
    }
}

/// Goal: the command line goes before the environment, the environment before the file, and the file
/// before the default; what is printed says which.
#[test]
fn command_line_goes_before_environment_before_file() {
    let file = write(&format!("{NODE}cluster = \"of the file\"\nmax-sessions = 5\nallow-host = [\"a\", \"b\"]\n"));
    let variables = [("PALISADE_ID", "1"), ("PALISADE_CLUSTER", "of the environment"), ("PALISADE_JOIN", "")];
    let layered = layered(file.path(), &["--cluster", "of the words", "--insecure"], &variables).unwrap();
    let printed = printed(&layered);
    let name = file.path().display();
    for line in [
        "id = 1  # PALISADE_ID".to_owned(),
        format!("data = \"d\"  # {name}:2"),
        "cluster = \"of the words\"  # command line".to_owned(),
        format!("max-sessions = 5  # {name}:7"),
        format!("allow-host = [\"a\", \"b\"]  # {name}:8"),
        format!("peers = {{ 1 = \"127.0.0.1:7501\" }}  # {name}:5"),
        "election-timeout = \"150ms\"  # default".to_owned(),
        "insecure = true  # command line".to_owned(),
        "# join: not given".to_owned(),
    ] {
        assert!(printed.lines().any(|found| found == line), "{line} is not in {printed}");
    }
    assert!(!printed.contains("segment-bytes"), "an option for tests is not advertised: {printed}");
}

/// Goal: what is printed is a file that has the same effect, also with values that need escapes, and
/// options that only tests use.
#[test]
fn printed_options_are_a_file_with_the_same_effect() {
    let odd = "segment-bytes = 1048576\nstop-with-stdin = true\ncluster = \"007 \\\"\\\\ ü\u{202e}\"\nlog-format = \"json\"\n";
    let file = write(&format!("{NODE}{odd}"));
    let effects = |text: String| {
        let uncommented = |line: &str| line.split("  # ").next().unwrap().to_owned();
        text.lines().map(uncommented).collect::<Vec<_>>()
    };
    let first = printed(&layered(file.path(), &[], &[]).unwrap());
    assert!(first.contains("segment-bytes = 1048576") && first.contains("stop-with-stdin = true"), "{first}");
    let again = write(&first);
    assert_eq!(effects(printed(&layered(again.path(), &[], &[]).unwrap())), effects(first));
}

/// Goal: every option of `serve` can stand in the file and in the environment, so that no list of
/// options has to be kept beside clap's.
#[test]
fn every_option_has_a_key_and_a_variable() {
    let serve = serve();
    let texts = [
        "1",
        "127.0.0.1:7400",
        "1s",
        "1=127.0.0.1:7400",
        "true",
        "return",
        "text",
        "info",
        "name",
        "https://a.example",
    ];
    for (option, arg) in options(&serve) {
        let as_variable = texts.iter().find(|text| of_variable(arg, (*text).into()).is_ok());
        assert!(as_variable.is_some(), "--{option} takes none of these texts");
        let value = as_variable.map(|text| if is_flag(arg) { "true".to_owned() } else { format!("{text:?}") }).unwrap();
        let (values, refusals) = file::read(write(&format!("{option} = {value}")).path(), &serve);
        assert!(refusals.is_empty() && values.contains_key(option), "{refusals:?}");
    }
}

/// Goal: a refusal names the file, the line and the key, says what is wrong, and all are reported.
#[test]
fn refusal_names_file_line_and_key() {
    refused(
        "id = 1\nclint-addr = \"127.0.0.1:1\"\nelection_timeout = \"1s\"\nelection-timeout = \"1ms\"\ntls-optional = \"yes\"\n",
        &[
            (2, "clint-addr: `palisade serve` has no option --clint-addr; is it `client-addr`?"),
            (4, "election-timeout: invalid value '1ms'"),
            (3, "election_timeout: `palisade serve` has no option --election_timeout; is it `election-timeout`?"),
            (5, "tls-optional: give true or false"),
        ],
    );
}

/// Goal: rules between options hold for a file, too, with the lines of the options involved.
#[test]
fn rules_between_options_name_the_lines() {
    let checked = |text: &str, variables: &[(&str, &str)]| {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        let file = write(text);
        let result = check(file.path(), variable).map_err(|refused| refused.refusals.join("\n"));
        result.map_err(|refusal| refusal.replace(file.path().to_str().unwrap(), "FILE"))
    };
    assert_eq!(checked(NODE, &[]), Ok(()));
    let refusal = checked(&format!("{NODE}join = \"127.0.0.1:7400\"\n"), &[]).unwrap_err();
    assert!(refusal.contains("'--peers <PEERS>'") && refusal.contains("cannot be used with"), "{refusal}");
    assert!(
        refusal.contains("--join is given by FILE:6") && refusal.contains("--peers is given by FILE:5"),
        "{refusal}"
    );
    let refusal = checked("id = 1\n", &[("PALISADE_DATA", "d")]).unwrap_err();
    assert!(
        refusal.starts_with("FILE: ") && refusal.contains("--client-addr") && !refusal.contains("--data"),
        "{refusal}"
    );
    let refusal = checked(&format!("{NODE}tls-ca = \"ca\"\n"), &[]).unwrap_err();
    assert!(refusal.contains("--tls-cert"), "{refusal}");
    let refusal = checked(NODE, &[("PALISADE_ID", "x")]).unwrap_err();
    assert!(refusal.starts_with("PALISADE_ID: invalid value 'x'"), "{refusal}");
    // What the server refuses at its start.
    let refusal = checked(&NODE.replace("127.0.0.1:7401", "0.0.0.0:7401"), &[]).unwrap_err();
    assert!(refusal.contains("give --advertise-client-addr HOST:PORT"), "{refusal}");
    let refusal = checked(&NODE.replace("127.0.0.1:7401", "192.0.2.1:7401"), &[]).unwrap_err();
    assert!(refusal.contains("without TLS"), "{refusal}");
    let refusal = checked(&format!("{NODE}admin-addr = \"127.0.0.1:7501\"\n"), &[]).unwrap_err();
    assert!(refusal.contains("give --admin-addr a port of its own") && refusal.contains("FILE:6"), "{refusal}");
    let refusal = checked(&format!("{NODE}sign-grants = \"/nowhere/key\"\n"), &[]).unwrap_err();
    assert!(refusal.contains("/nowhere/key") && refusal.contains("--sign-grants is given by FILE:6"), "{refusal}");
}

/// Goal: the nodes of `palisade dev` get no option of one node from the environment; the command
/// line's own variables, and those that suit every node, stay.
#[test]
fn variables_of_one_node_are_those_of_serve() {
    let names = variables_of_one_node();
    for name in ["PALISADE_ID", "PALISADE_CONFIG", "PALISADE_INSECURE", "PALISADE_ALLOW_HOST"] {
        assert!(names.iter().any(|known| known == name), "{name} is missing from {names:?}");
    }
    for name in ["PALISADE_LOG", "PALISADE_RECORD", "PALISADE_ENDPOINTS", "PALISADE_CA", "PALISADE_CERT"] {
        assert!(names.iter().all(|known| known != name), "{name}");
    }
}

/// Goal: the order of the sources holds between options that exclude one another, too: nodes that share
/// a file with `peers` join by a variable, and a node that is told to found a cluster does not join.
#[test]
fn option_overrules_what_it_excludes_in_lower_sources() {
    let file = write(NODE);
    let joined =
        |arguments: &[&str], variables: &[(&str, &str)]| printed(&layered(file.path(), arguments, variables).unwrap());
    let join = "127.0.0.1:7400";
    for printed in [joined(&["--join", join], &[]), joined(&[], &[("PALISADE_JOIN", join)])] {
        assert!(
            printed.contains("join = \"127.0.0.1:7400\"  # ") && printed.contains("# peers: not given"),
            "{printed}"
        );
    }
    // The command line's backup excludes the variable, which then excludes nothing.
    let printed = joined(&["--restore", "backup"], &[("PALISADE_JOIN", join)]);
    assert!(printed.contains("# join: not given") && printed.contains("peers = { 1 = "), "{printed}");
    let printed = joined(&["--peers", "1=127.0.0.1:7501"], &[("PALISADE_JOIN", join)]);
    assert!(printed.contains("# join: not given") && printed.contains("  # command line"), "{printed}");
    // Options of one source that exclude one another are an operator's mistake.
    let both = [("PALISADE_JOIN", join), ("PALISADE_PEERS", "1=127.0.0.1:7501")];
    let layered = layered(file.path(), &[], &both).unwrap();
    let error = Arguments::command().try_get_matches_from(&layered.arguments).unwrap_err();
    assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{error}");
}

/// Goal: `config check` ends with the code with which `serve` ends for the same reason: a supervisor
/// starts a node again whose name service does not answer yet.
#[test]
fn check_has_the_exit_code_of_serve() {
    let exit_code = |text: &str| check(write(text).path(), |_| None).unwrap_err().exit_code;
    // A name with an empty label is refused without asking a name service.
    assert_eq!(exit_code(&NODE.replace("peer-addr = \"127.0.0.1", "peer-addr = \"no..host")), 71);
    assert_eq!(exit_code(&NODE.replace("127.0.0.1:7401", "192.0.2.1:7401")), EXIT_CONFIG);
}

/// Goal: a misspelt variable is reported, and only that: neither those of any command, nor those that
/// Kubernetes makes for Services.
#[test]
fn variable_that_sets_nothing_is_reported() {
    let reported = |variables: &[(&str, &str)]| {
        unknown_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
    };
    assert_eq!(
        reported(&[
            ("PALISADE_ELECTION_TIMEOUTS", "1s"),
            ("PALISADE_XYZ", "1"),
            ("PALISADE_CONFIGS", ""),
            ("PATH", "/")
        ]),
        [
            "the variable PALISADE_ELECTION_TIMEOUTS is ignored: no option of `palisade serve` has this name; is it \
             PALISADE_ELECTION_TIMEOUT? Correct it or unset it",
            "the variable PALISADE_XYZ is ignored: no option of `palisade serve` has this name; correct it or unset it",
        ]
    );
    assert!(reported(&[("PALISADE_id", "1")])[0].contains("is it PALISADE_ID?"));
    let of_commands = ["ENDPOINTS", "CA", "CERT", "CERT_KEY", "TOKEN_FILE", "KEY", "TOKEN", "SESSION", "SESSIONS"];
    let of_nodes = ["CONFIG", "ID", "TLS_CA", "ALLOW_HOST", "RECORD", "SIGNED_TOKEN", "STOP_WITH_STDIN"];
    for name in of_commands.into_iter().chain(of_nodes) {
        assert_eq!(reported(&[(&format!("PALISADE_{name}"), "1")]), [""; 0]);
    }
    assert_eq!(
        reported(&[
            ("PALISADE_SERVICE_HOST", "10.0.0.1"),
            ("PALISADE_PEERS_SERVICE_PORT", "7400"),
            ("PALISADE_SERVICE_PORT_CLIENTS", "7400"),
            ("PALISADE_PORT", "tcp://10.0.0.1:7400"),
            ("PALISADE_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ]),
        [""; 0]
    );
    assert_eq!(reported(&[("PALISADE_CLIENT_PORT", "7400")]).len(), 1);
}

/// Goal: whatever bytes are in the file, it is used or refused with sentences that name it; what is used
/// can be printed. The test replaces every byte by others, among them half a character, and cuts the file off there.
#[test]
fn damaged_file_is_refused_with_sentences() {
    let values = "max-sessions = 0x10\nallow-host = [\"a\", 'b']\ninsecure = false\ncluster = \"\"\"\n\\u00fc\"\"\"\n";
    let sound = format!("{NODE}# comment\n{values}");
    let file = write(&sound);
    let name = file.path().display().to_string();
    let (mut used, mut refused) = (0, 0);
    for at in 0..sound.len() {
        let damaged = |byte: &u8| [&sound.as_bytes()[..at], &[*byte], &sound.as_bytes()[at + 1..]].concat();
        let cut = sound.as_bytes()[..at].to_vec();
        for bytes in b"\0\n\"]}= 9x\xc3".iter().map(damaged).chain([cut]) {
            std::fs::write(file.path(), &bytes).unwrap();
            match layered(file.path(), &[], &[]) {
                Ok(layered) => {
                    match Arguments::command().try_get_matches_from(&layered.arguments) {
                        Ok(matches) => {
                            used += 1;
                            assert!(!lines(&layered, matches.subcommand_matches("serve").unwrap()).is_empty());
                        }
                        // Clap names the option, and `refuse` where it stands.
                        Err(error) => {
                            refused += 1;
                            assert!(error.to_string().contains("--"), "{error}");
                        }
                    }
                }
                Err(refusals) => {
                    refused += 1;
                    assert!(
                        !refusals.is_empty() && refusals.iter().all(|refusal| refusal.contains(&name)),
                        "{refusals:?}"
                    );
                }
            }
        }
    }
    assert!(used > 100 && refused > 1000, "{used} were used, {refused} refused");
}
