//! The files in packaging/ agree with the program: each metric of the alerts and of the dashboard stands on a node's
//! page, each alert has a unit test and a runbook, and each option of the unit, the image, the manifest and the
//! configuration files is one of `palisade serve`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade};
use crate::support::{eventually, http};

type Names = BTreeSet<String>;

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").join(file)
}

fn text(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The names in a text that begin with one of these prefixes and go on as `more` permits.
fn names(text: &str, prefixes: &[&str], more: impl Fn(char) -> bool) -> Names {
    let words = text.split(|c: char| !more(c));
    let begins = |word: &&str| prefixes.iter().any(|prefix| word.starts_with(prefix) && word.len() > prefix.len());
    words.filter(begins).map(str::to_owned).collect()
}

/// The metrics that a text of alerts or of a dashboard names.
fn metrics(text: &str) -> Names {
    names(text, &["palisade_", "process_"], |c| c.is_ascii_alphanumeric() || c == '_')
}

/// The names of all samples on a node's page.
fn samples(address: &str) -> Names {
    let page = http::get(address, "/metrics").expect("the node answers").body;
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// Goal: no alert is silent, and no panel empty, because a metric has another name.
#[test]
fn metrics_of_alerts_and_dashboard_are_on_the_page() {
    // A client at its limit, and a leader with peers: their metrics have labels, and no sample before there is one.
    let cluster = Cluster::start_calm_with(3, &["--max-sessions-per-client", "1"]);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let open = || http::post(&address, "/v1/sessions", "{}").expect("the node answers");
    open().ok();
    eventually("the client reaches its limit", || (open().status == 429).then_some(()));
    let known = samples(&address);
    assert!(known.contains("palisade_fsync_seconds_bucket") && known.contains("palisade_term"), "{known:?}");
    for file in ["packaging/prometheus/alerts.yaml", "packaging/grafana/palisade.json"] {
        let named = metrics(&text(file));
        assert!(named.len() > 20, "{file} names only {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} names metrics that a node does not have: {unknown:?}");
    }
}

/// Goal: the rule above sees a name wherever it stands.
#[test]
fn names_of_metrics_are_found_in_expressions() {
    let found =
        metrics(r#"sum by (job) (rate(palisade_a_total{job="x"}[5m])) / process_b > 0 # palisade, "palisade_c""#);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["palisade_a_total", "palisade_c", "process_b"]);
}

/// Goal: an alert that no run has seen fire, or that leads to no section, is not shipped.
#[test]
fn each_alert_has_a_unit_test_and_a_runbook() {
    let (alerts, tests) = (text("packaging/prometheus/alerts.yaml"), text("packaging/prometheus/alerts_test.yaml"));
    let values = |key: &str| -> Vec<String> {
        let lines = alerts.lines().map(|line| line.trim_start().trim_start_matches("- "));
        lines.filter_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned()).collect()
    };
    let named = values("alert: ");
    assert!(named.len() > 20, "{named:?}");
    for name in &named {
        assert!(tests.contains(&format!("\"{name}\"")), "no test in alerts_test.yaml expects {name} to fire");
    }
    let runbooks = values("runbook: ");
    assert_eq!(runbooks.len(), named.len(), "each alert has a runbook");
    for runbook in runbooks {
        let (file, anchor) = runbook.split_once('#').expect("a runbook is a section of a document");
        let document = text(file);
        let headings = document.lines().filter_map(|line| line.strip_prefix('#'));
        let anchor_of = |heading: &str| heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchors: Vec<String> = headings.map(anchor_of).map(|anchor| anchor.replace('`', "")).collect();
        assert!(anchors.iter().any(|found| found == anchor), "{file} has no section #{anchor}");
    }
}

/// Goal: Grafana reads the dashboard, and each panel asks something.
#[test]
fn dashboard_is_json_and_each_panel_has_a_query() {
    let dashboard: Value = serde_json::from_str(&text("packaging/grafana/palisade.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut queries) = (BTreeSet::new(), 0);
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one ID: {panel}");
        if panel["type"] != "row" {
            let targets = panel["targets"].as_array().unwrap();
            assert!(targets.iter().all(|target| target["expr"].as_str().is_some_and(|expr| !expr.is_empty())));
            assert!(!targets.is_empty(), "a panel asks nothing: {panel}");
            queries += targets.len();
        }
    }
    assert!(queries > 30, "only {queries} queries");
}

/// The options in a text, without their dashes.
fn options(text: &str) -> Names {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    names(text, &["--"], is_part).iter().map(|option| option.trim_start_matches('-').to_owned()).collect()
}

/// What `palisade serve` has.
fn serve_options() -> Names {
    let help = output(palisade().args(["serve", "--help"]));
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let described = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let described: Names = described.flat_map(options).collect();
    assert!(described.contains("client-addr") && described.contains("tls-ca"), "{help}");
    described
}

/// The keys of a configuration file, those in comments included: `#key = value`.
fn keys(toml: &str) -> Names {
    let lines = toml.lines().map(|line| line.trim_start().trim_start_matches('#'));
    let keys = lines.filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    let is_key = |key: &&str| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    keys.filter(is_key).map(str::to_owned).collect()
}

/// The option whose value a variable gives: `PALISADE_PEER_ADDR` gives `--peer-addr`.
fn option_of(variable: &str) -> String {
    variable.trim_start_matches("PALISADE_").to_lowercase().replace('_', "-")
}

fn variables(text: &str) -> Names {
    names(text, &["PALISADE_"], |c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Goal: a configuration file, as it is shipped, has no option that the program refuses.
#[test]
fn configuration_files_have_options_of_serve_only() {
    let known = serve_options();
    let manifest = text("packaging/kubernetes/palisade.yaml");
    let (_, config) = manifest.split_once("palisade.toml: |\n").expect("the manifest has a configuration");
    let config = config.split("\n---").next().unwrap();
    let files = [
        ("packaging/palisade.toml", text("packaging/palisade.toml"), 15),
        ("packaging/container/palisade.toml", text("packaging/container/palisade.toml"), 4),
        ("packaging/kubernetes/palisade.yaml", config.to_owned(), 7),
    ];
    for (file, text, at_least) in files {
        let keys = keys(&text);
        assert!(keys.len() >= at_least, "{file} has only {keys:?}");
        let unknown: Vec<_> = keys.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} has options that palisade serve does not have: {unknown:?}");
    }
}

/// Goal: what starts a node in the unit, the image and the manifest is a command line of this program.
#[test]
fn unit_image_and_manifest_have_options_of_serve_only() {
    let mut known = serve_options();
    // The options that a file or a variable gives come with `--config`.
    known.insert("config".to_owned());
    let clients = output(palisade().args(["status", "--help"]));
    let clients = variables(&String::from_utf8_lossy(&clients.stdout));
    assert!(clients.contains("PALISADE_ENDPOINTS") && clients.contains("PALISADE_CERT_KEY"), "{clients:?}");
    let (unit, image, manifest) = (
        text("packaging/systemd/palisade.service"),
        text("packaging/container/Dockerfile"),
        text("packaging/kubernetes/palisade.yaml"),
    );
    let (_, image_command) = image.rsplit_once("\nCMD ").expect("the image has a command");
    let start = |text: &str, prefix: &str| -> String {
        text.lines().find(|line| line.trim_start().starts_with(prefix)).expect(prefix).to_owned()
    };
    for (file, line) in [
        ("palisade.service", start(&unit, "ExecStart=")),
        ("Dockerfile", image_command.to_owned()),
        ("palisade.yaml", start(&manifest, "args: ")),
    ] {
        assert!(line.contains("serve") && line.contains("--config"), "{file}: {line}");
        let given = options(&line);
        let unknown: Vec<_> = given.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} has options that palisade serve does not have: {unknown:?}");
    }
    let check = options(&start(&image, "HEALTHCHECK"));
    let probe = manifest.split_once("readinessProbe:").expect("the pods have one").1.lines().nth(1).unwrap_or_default();
    assert!(check.contains("ready"), "the image's health check asks for more than the process: {check:?}");
    assert!(probe.contains("path: /readyz"), "a pod is ready when its node can serve clients: {probe}");
    for (file, text) in [("Dockerfile", &image), ("palisade.yaml", &manifest)] {
        let given = variables(text);
        assert!(given.len() > 3, "{file} has only {given:?}");
        let unknown: Vec<_> =
            given.iter().filter(|v| !clients.contains(*v) && !known.contains(&option_of(v))).collect();
        assert!(unknown.is_empty(), "{file} has variables that no option has: {unknown:?}");
    }
}

/// Goal: the rules above see an option that does not exist.
#[test]
fn options_are_found_in_every_form() {
    let of = |names: Names| names.into_iter().collect::<Vec<_>>();
    assert_eq!(of(options("[serve, --config, /etc/x] --tls-ca=FILE")), ["config", "tls-ca"]);
    assert_eq!(of(keys("# A sentence = none.\nid = 1\n    #peer-addr = \"x\"\n")), ["id", "peer-addr"]);
    assert_eq!(
        of(variables("-e PALISADE_ID=1 $(PALISADE_TLS_CERT) PALISADE_<OPTION>")),
        ["PALISADE_ID", "PALISADE_TLS_CERT"]
    );
    assert_eq!(option_of("PALISADE_ADVERTISE_CLIENT_ADDR"), "advertise-client-addr");
}
