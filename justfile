# A thin list of the commands that the README and CONTRIBUTING name. Nothing here is needed to use Palisade.

# The programs that the commands below start: those of a release, or in the gate (PALISADE_PROGRAMS=debug) those that the tests
# have built: `cargo build` would choose other features, and build them again.
programs := env('PALISADE_PROGRAMS', 'release')
bin := 'target' / programs
build := if programs == 'debug' { 'cargo test --no-run --quiet' } else { 'cargo build --release' }

# What there is.
default:
    @just --list

# A local cluster of three durable nodes.
dev *ARGS:
    cargo run --release -- dev {{ ARGS }}

# Format, lints and documentation. The lab is included where it can be built.
lint: lint-texts && lint-docs
    cargo clippy $(command -v protoc >/dev/null && echo --workspace) --all-targets -- -D warnings

# What needs no compilation; the documents' check is compiled alone, in a second.
lint-texts:
    cargo fmt --all --check
    mkdir -p target
    CARGO_MANIFEST_DIR="$PWD/conformance" rustc --edition 2024 --test conformance/tests/documents/main.rs -o target/documents
    target/documents --quiet
    if python3 -c 'import tomllib' 2>/dev/null; then conformance/mutants/fit.py; fi

# The documentation's links.
lint-docs:
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --no-deps --document-private-items --quiet

# What follows from the contents in docs/README.md, written again: the list of decisions, links between neighbours, docs/SUMMARY.md.
book:
    mkdir -p target
    CARGO_MANIFEST_DIR="$PWD/conformance" rustc --edition 2024 --test conformance/tests/documents/main.rs -o target/documents
    UPDATE_GOLDENFILES=1 target/documents --quiet pages_lead_to_their_neighbours

# Recordings of terminals, drawn as pictures: a leader that is killed (README), and `palisade top` (docs/operations.md).
recording *ARGS:
    cargo build --release -p palisade
    docs/images/record.py target/release/palisade {{ ARGS }}

# Before every commit: format, lints, unit tests.
check-fast: lint
    cargo test --lib --bins

# All programs as they are meant to be used. Built together, they share what they depend on.
programs:
    {{ build }}

# What must hold beside the tests: lints, documentation, everything that is checked of the models, long tests.
check: lint models long-tests

# Every model explored to its end, liveness, random walks, the long tests of the models, and every mutant of the protocol.
# With the program that the tests have built, which has debug assertions.
models:
    cargo test --no-run --quiet
    model/everything target/debug/palisade-model

# The same, unless all of it has passed in these sources; two models are explored anyway.
changed-models:
    cargo test --no-run --quiet
    if model/everything same; then \
        echo "everything that is checked of the models has passed in these sources (model/checked-sources)" && \
        target/debug/palisade-model check raft locks; \
    else model/everything target/debug/palisade-model; fi

# The tests that take long, which `cargo test` leaves out; those of the models are run with them.
long-tests:
    HISTORIES=1000 cargo test --test cross_check & histories=$!; \
    RUNS=6000 cargo test -p palisade-spec --test random_cluster && \
    SEEDS=3 cargo test --test wal log_with_snapshots_recovers_from_a_crash_at_any_byte && \
    TRACES=all cargo test --test replay saved_traces_are_paths_of_their_models; failed=$?; \
    wait $histories && exit $failed

# The models that take two hours and 7 GiB, the runner of mutants itself, and random walks for as long as one likes.
check-deep SECONDS='600': programs
    cargo test --test mutants -- --ignored
    {{ bin }}/palisade-model check --deep
    {{ bin }}/palisade-model liveness --deep
    {{ bin }}/palisade-model simulate --seconds {{ SECONDS }}

# Everything that takes hours. Needs root, iproute2, nftables, strace and faketime for every fault, and the clients in other languages, built.
nightly: models (check-deep '3600') (previous 'all') client-mutants
    SESSIONS=1000000 cargo test --test live sessions_end_at_their_limit
    {{ bin }}/palisade-conformance mutants
    {{ bin }}/palisade-conformance sim --within 3600
    {{ bin }}/palisade-conformance torture --minutes 30
    {{ bin }}/palisade-conformance torture --minutes 30 --tls
    if [ -e target/previous/palisade-conformance ]; then {{ bin }}/palisade-conformance replay --previous target/previous/palisade-conformance; fi
    fuzz/run 600

# States a second, beside stateright's own raft example.
bench-model:
    cargo bench -p palisade-model

# Known bugs, put into a copy of the protocol: a model must find each.
mutants *NAMES: programs
    {{ bin }}/palisade-model mutants {{ NAMES }}

# Known bugs of the server, put into a copy of it: replay, simulation, live faults or a test must find each (docs/conformance/mutants.md).
server-mutants *ARGS: programs
    {{ bin }}/palisade-conformance mutants {{ ARGS }}

# `cargo install cargo-mutants` first. Takes hours; `--in-diff FILE` changes only what a diff touches.
# Every rule of the protocol changed, one after the other: a unit test or a scenario script must notice.
cargo-mutants *ARGS:
    cargo mutants -p palisade-spec {{ ARGS }}

# The model's traces on live nodes (docs/conformance/replay.md).
replay *ARGS: programs
    {{ bin }}/palisade-conformance replay {{ ARGS }}

# The saved traces found again, after a change of the protocol or of a model. About half an hour.
traces *NAMES: programs
    {{ bin }}/palisade-model keep {{ NAMES }}
    {{ bin }}/palisade-model mutants --traces conformance/traces/mutant_traces.jsonl

# `rustup component add llvm-tools` first.
# Which lines of the protocol live nodes take when they go through the saved traces.
cover:
    conformance/cover.sh

# All tests: unit tests, scenario scripts, real processes, documentation examples. What the processes do is recorded.
test:
    rm -rf target/recordings
    PALISADE_TEST_RECORDINGS="$PWD/target/recordings" cargo test

# The scenarios that the clients of all languages must pass (docs/clients.md): `just clients python::` runs one client's. The clients in other languages are built before.
clients CLIENT='':
    cargo build -p palisade-client --examples
    cargo test -p palisade --test live clients::{{ CLIENT }}

# Known mistakes in copies of the clients: a scenario or a unit test must find each.
client-mutants *ARGS:
    clients/mutants.py {{ ARGS }}

# Scenario scripts whose output changed for a reason, and the descriptions of the interface and of the commands: write them down again, then read the difference.
bless:
    UPDATE_GOLDENFILES=1 cargo test -p palisade-spec
    UPDATE_GOLDENFILES=1 cargo test -p palisade --lib http::description
    UPDATE_GOLDENFILES=1 cargo test -p palisade --bin palisade cli::manual::document

# What runs against what was checked: the live tests once more, and everything that is judged.
conformance:
    rm -rf target/recordings
    cargo build -p palisade-client --examples
    PALISADE_TEST_RECORDINGS="$PWD/target/recordings" cargo test -p palisade --tests -- --skip sessions_end_at_their_limit
    just judge

# What the tests have recorded is stepped again and judged; all saved traces are played; a minute of torture, and one of simulation.
judge: recordings torture-and-sim

# What the tests have recorded is stepped again and judged, and all saved traces are played on live nodes.
recordings: programs
    {{ bin }}/palisade-conformance validate target/recordings
    {{ bin }}/palisade-conformance replay --coverage

# A minute of torture, which waits more than it computes, the second half of it over TLS, and a minute of simulation beside it.
torture-and-sim: programs
    { {{ bin }}/palisade-conformance torture --minutes 0.5 & run=$!; trap 'kill $run; exit 1' TERM; wait $run && \
        { {{ bin }}/palisade-conformance torture --minutes 0.5 --tls & run=$!; wait $run; }; } & torture=$!; \
        {{ bin }}/palisade-conformance sim --seeds 1000000 --within 60 || { kill $torture; exit 1; }; \
        wait $torture

# Whole clusters in virtual time, on a network and disks that fail (docs/conformance/simulation.md).
sim *ARGS: programs
    {{ bin }}/palisade-conformance sim {{ ARGS }}

# Real processes under load, while everything goes wrong that can on one machine.
torture *ARGS: programs
    {{ bin }}/palisade-conformance torture {{ ARGS }}

# The alerts' own tests, the Kubernetes manifest against Kubernetes' schemas, and the Debian package: built, and tried (as root)
# in a throw-away copy of this system, and in a new Debian.
packaging: programs
    if command -v promtool >/dev/null; then promtool test rules packaging/prometheus/alerts_test.yaml; else echo "SKIPPED: there is no promtool here"; fi
    if python3 -m venv target/kubernetes && target/kubernetes/bin/pip install --quiet kubernetes-validate==1.37.0; then \
        target/kubernetes/bin/kubernetes-validate -k 1.28 --strict packaging/kubernetes/palisade.yaml && \
        target/kubernetes/bin/kubernetes-validate -k 1.37 --strict packaging/kubernetes/palisade.yaml; \
    else echo "SKIPPED: kubernetes-validate cannot be installed"; fi
    package=$(packaging/debian/build {{ bin }}/palisade target) && { [ -z "$package" ] || { packaging/debian/try "$package" && . /etc/os-release && packaging/debian/try "$package" "$VERSION_CODENAME"; }; }

# What a user installs, tried in a fresh directory: the program by `cargo install`, the packages of the Python and TypeScript clients.
packages:
    packaging/packages

# The version before this one, out of the history (conformance/previous-version): target/previous/palisade. With `all`, also palisade-conformance.
previous *ARGS:
    conformance/previous {{ ARGS }}

# Clusters of this version and the one before it: rolling upgrades, files, half a minute of torture in which each node changes its version at each start.
upgrades: previous programs
    if [ -e target/previous/palisade ]; then \
        PALISADE_PREVIOUS="$PWD/target/previous/palisade" cargo test --test live upgrade:: && \
        {{ bin }}/palisade-conformance torture --minutes 0.5 --previous target/previous/palisade; \
    fi

# Acquire+release pairs per second on this machine.
bench *ARGS:
    cargo run --release -- bench {{ ARGS }}

# A model in a browser, step by step: stateright's Explorer (docs/explorer.md).
explore NAME='cluster' *ARGS: programs
    {{ bin }}/palisade-model explore {{ NAME }} {{ ARGS }}

# The project's own documentation, in a browser's form.
doc:
    cargo doc --no-deps --document-private-items

# Needs protoc and Redis. A test whose server is not installed says so, and is skipped (docs/lab/README.md).
# The lab's tests, those on real servers at most two at a time, and its central experiment, `pause`, on Redis and Palisade.
lab: programs
    PALISADE_LAB_PALISADE="$PWD/{{ bin }}/palisade" cargo test --profile lab -p palisade-lab --lib --test pages --test resource
    PALISADE_LAB_PALISADE="$PWD/{{ bin }}/palisade" cargo test --profile lab -p palisade-lab --test dlock -- --test-threads 2
    PALISADE_LAB_PALISADE="$PWD/{{ bin }}/palisade" cargo test --profile lab -p palisade-lab --test contend --test gen --test interrupted --test metrics --test servers --test stores -- --test-threads 1
    target/lab/palisade-lab run pause --backend redis --backend palisade --palisade {{ bin }}/palisade --rounds 1 --out target/lab-pages
