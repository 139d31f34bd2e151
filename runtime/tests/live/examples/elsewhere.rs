//! The blocks that no test of this folder runs: why, and where they are run instead.

use super::blocks::{Block, root};

/// Some blocks of a document.
pub struct Elsewhere {
    /// The document, or a folder with `/` at its end.
    pub document: &'static str,
    /// How the blocks begin; empty for all blocks of the document.
    pub begins: &'static str,
    /// Why they are not run here.
    pub why: &'static str,
    /// Files that run or check them, each with a text that stands in it.
    pub instead: &'static [(&'static str, &'static str)],
}

impl Elsewhere {
    /// Whether it is about this block.
    pub fn covers(&self, block: &Block) -> bool {
        let here = match self.document.ends_with('/') {
            true => block.document.starts_with(self.document),
            false => block.document == self.document,
        };
        here && block.text.starts_with(self.begins)
    }
}

const fn of(
    document: &'static str,
    begins: &'static str,
    why: &'static str,
    instead: &'static [(&'static str, &'static str)],
) -> Elsewhere {
    Elsewhere { document, begins, why, instead }
}

const SERVES: &str = "it runs until it is stopped, with options left out or on the addresses of several machines";

/// All of them.
pub const ELSEWHERE: &[Elsewhere] = &[
    of(
        "README.md",
        "cargo run --release -- dev",
        "it builds the project",
        &[(".ci/run", "cargo run --release -- dev")],
    ),
    of("README.md", "cargo test", "this test is a part of it", &[(".ci/run", "shown cargo test")]),
    of("clients/python/README.md", "cd clients/python", "a minute and a half", &[(".ci/run", "-m unittest -q")]),
    of(
        "clients/python/README.md",
        "client = palisade.Client(\n    \"lock-1.example",
        "it names machines and certificates",
        &[("runtime/tests/live/clients/holding.rs", "fn a_client_with_a_certificate_speaks_tls")],
    ),
    of(
        "clients/typescript/README.md",
        "npm ci",
        "it installs packages",
        &[(".ci/run", "npm ci --silent && npm run --silent build"), (".ci/run", "npm test --silent")],
    ),
    of(
        "clients/typescript/README.md",
        "const token = (await readFile",
        "it names machines and certificates",
        &[("runtime/tests/live/clients/holding.rs", "fn a_client_with_a_certificate_speaks_tls")],
    ),
    of(
        "clients/go/README.md",
        "go vet",
        "it takes a minute",
        &[(".ci/run", "go vet ./..."), (".ci/run", "go test ./...")],
    ),
    of(
        "docs/bug-ledger.md",
        "",
        "each names one test, script or model, all of which the gate runs",
        &[("conformance/tests/ledger.rs", "fn ")],
    ),
    of("docs/gallery.md", "", "with its output", &[("model/tests/gallery_document.rs", "fn traces_match_the_checker")]),
    of(
        "docs/lab/",
        "",
        "it measures for minutes, on servers that must be installed",
        &[("justfile", "lab: programs"), ("lab/tests/pages.rs", "fn ")],
    ),
    of(
        "docs/clients.md",
        "cargo build",
        "it builds all clients",
        &[("justfile", "clients CLIENT=''"), (".ci/run", "npm ci")],
    ),
    of("docs/clients.md", "clients/mutants.py", "it takes hours", &[(".ci/run", "clients/mutants.py --check")]),
    of("docs/conformance/histories.md", "", "another crate's program", &[("conformance/tests/command.rs", "fn ")]),
    of("docs/conformance/live-faults.md", "", "ten minutes", &[("justfile", "torture --minutes 0.5")]),
    of("docs/conformance/mutants.md", "", "twenty minutes", &[("justfile", "palisade-conformance mutants {{ ARGS }}")]),
    of(
        "docs/conformance/recordings.md",
        "",
        "all tests",
        &[("justfile", "palisade-conformance validate target/recordings")],
    ),
    of("docs/conformance/replay.md", "palisade-conformance", "minutes", &[("justfile", "replay --coverage")]),
    of(
        "docs/conformance/replay.md",
        "palisade-model",
        "another crate's program",
        &[("model/tests/command.rs", "\"--follow\"")],
    ),
    of("docs/conformance/replay.md", "rustup", "it installs a component", &[("justfile", "conformance/cover.sh")]),
    of("docs/conformance/simulation.md", "", "minutes", &[("justfile", "sim --seeds 1000000 --within 60")]),
    of(
        "docs/explorer.md",
        "palisade-model trace",
        "another crate's program",
        &[("model/tests/command.rs", "\"trace\"")],
    ),
    of("docs/explorer.md", "just explore", "it serves a browser", &[("model/tests/explorer.rs", "fn ")]),
    of("fuzz/README.md", "", "ten minutes, and a nightly compiler", &[("justfile", "fuzz/run 600")]),
    of(
        "docs/install.md",
        "cargo build --release -p palisade\npackaging/debian/build",
        "it needs root and a system of its own",
        &[("justfile", "packaging/debian/try"), (".ci/run", "just packaging")],
    ),
    of(
        "docs/install.md",
        "cargo install --path runtime",
        "it compiles the project once more",
        &[("packaging/packages", "cargo install --quiet --path runtime --locked"), (".ci/run", "just packages")],
    ),
    of(
        "docs/install.md",
        "docker build",
        "it needs a container runtime: nothing runs it (see \"What has been tried\")",
        &[("runtime/tests/live/packaging.rs", "packaging/container")],
    ),
    of(
        "docs/operations.md",
        "palisade serve --id 1 --data",
        SERVES,
        &[("runtime/tests/live/support/cluster.rs", "\"serve\"")],
    ),
    of(
        "docs/operations.md",
        "palisade config check",
        "the second command runs until it is stopped",
        &[
            ("runtime/tests/live/operating/config.rs", "fn check_touches_neither_data_nor_ports"),
            ("runtime/tests/live/operating/config.rs", "--print-config"),
        ],
    ),
    of(
        "docs/lock-command.md",
        "export PALISADE_ENDPOINTS=",
        "its nodes are other machines, and the commands behind it would look for them",
        &[("runtime/tests/live/examples/shell.rs", "PALISADE_ENDPOINTS=")],
    ),
    of("docs/operations.md", "palisade serve --id 4", SERVES, &[("runtime/tests/live/membership.rs", "fn ")]),
    of("docs/data-directory.md", "palisade serve --id 11", SERVES, &[("runtime/tests/live/founding.rs", "--restore")]),
    of("docs/fencing.md", "palisade serve", SERVES, &[("runtime/tests/live/examples/mod.rs", "\"--sign-grants\"")]),
    of(
        "docs/security.md",
        "palisade serve --id 1 … --tls-ca",
        SERVES,
        &[("runtime/tests/live/support/certificates.rs", "\"--tls-ca\"")],
    ),
    of(
        "docs/access.md",
        "palisade serve --id 1 … --client-addr",
        SERVES,
        &[("runtime/tests/live/admin_address.rs", "fn client_address_refuses_administration")],
    ),
    of("docs/access.md", "palisade serve --id 1 … --audit", SERVES, &[("runtime/tests/live/audit.rs", "\"verify\"")]),
    of(
        "docs/coming-from/consul.md",
        "consul lock",
        "no package of Debian 12 or of this project's gate has Consul: nothing runs it, as the page says",
        &[],
    ),
    of(
        "docs/coming-from/zookeeper.md",
        "InterProcessMutex old",
        "it needs a Java compiler and Curator: nothing runs it, as the page says",
        &[],
    ),
    of(
        "docs/coming-from/etcd.md",
        "mutex := concurrency.NewMutex",
        "it needs etcd's client for Go: nothing runs it, as the page says",
        &[],
    ),
];

/// The places that are about a block.
pub fn elsewhere(block: &Block) -> Vec<&'static Elsewhere> {
    ELSEWHERE.iter().filter(|entry| entry.covers(block)).collect()
}

/// What an entry names and is not there.
pub fn missing(entry: &Elsewhere) -> Vec<String> {
    let missing = entry
        .instead
        .iter()
        .filter(|(file, text)| !std::fs::read_to_string(root().join(file)).is_ok_and(|content| content.contains(text)));
    missing.map(|(file, text)| format!("{}: {file} has no {text:?}", entry.document)).collect()
}
