//! The adapters of all clients: where they are, and how they are started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::shared::Shared;

/// A folder with the clients `python`, `typescript` and `go`, in place of the project's: mutants of
/// clients are tested in copies.
const CLIENTS: &str = "PALISADE_CLIENTS_FOLDER";
/// The Python to run, in place of `python3`.
const PYTHON: &str = "PALISADE_PYTHON";

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `palisade-client`, whose adapter is one of its examples.
    Rust,
    /// The Python client, with threads.
    Python,
    /// The Python client, with asyncio.
    PythonAsyncio,
    /// The TypeScript client, on Node.js.
    TypeScript,
    /// The Go client.
    Go,
}

/// An adapter that can be started.
#[derive(Clone, Debug)]
pub struct Program {
    /// Whose it is.
    pub kind: Kind,
    command_line: Vec<PathBuf>,
    /// A program that was built for the tests, which goes with the last of them.
    _built: Option<Arc<Built>>,
}

#[derive(Debug)]
struct Built(tempfile::TempDir);

impl Program {
    /// The command that starts it, without its options.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.command_line[0]);
        command.args(&self.command_line[1..]);
        if self.kind == Kind::Python {
            // An adapter lies beside the package, and an example does not.
            command.env("PYTHONPATH", folder("python"));
        }
        command
    }
}

impl Kind {
    /// The client's adapter, or what is missing for it.
    pub fn program(self) -> Result<Program, String> {
        let mut built = None;
        let command_line = match self {
            Kind::Rust => vec![rust_example("adapter")?],
            Kind::Python => vec![python()?, existing(folder("python").join("adapter.py"))?],
            Kind::PythonAsyncio => {
                vec![python()?, existing(folder("python").join("adapter.py"))?, "--asyncio".into()]
            }
            Kind::TypeScript => {
                answers(Command::new("node").arg("--version"))?;
                vec!["node".into(), existing(folder("typescript").join("dist/adapter.js"))?]
            }
            Kind::Go => {
                let program = built.insert(go_adapter()?);
                vec![program.0.path().join(GO_ADAPTER)]
            }
        };
        Ok(Program { kind: self, command_line, _built: built })
    }

    /// The client's example `nightly`, a job under a lock, or what is missing for it.
    pub fn nightly(self) -> Result<Program, String> {
        let mut built = None;
        let command_line = match self {
            Kind::Python => vec![python()?, existing(folder("python").join("examples/nightly.py"))?],
            Kind::TypeScript => {
                answers(Command::new("node").arg("--version"))?;
                vec!["node".into(), existing(folder("typescript").join("dist/examples/nightly.js"))?]
            }
            Kind::Go => {
                let program = built.insert(go_adapter()?);
                vec![program.0.path().join(GO_NIGHTLY)]
            }
            Kind::Rust | Kind::PythonAsyncio => panic!("{self:?} has no such example"),
        };
        Ok(Program { kind: self, command_line, _built: built })
    }
}

/// The folder of a client that is not a crate.
pub fn folder(client: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace");
    let clients = std::env::var_os(CLIENTS).map_or_else(|| project.join("clients"), PathBuf::from);
    clients.join(client)
}

fn existing(file: PathBuf) -> Result<PathBuf, String> {
    if file.exists() {
        return Ok(file);
    }
    Err(format!("there is no {}: build the client (docs/clients.md)", file.display()))
}

/// Runs a command that must succeed.
fn answers(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{:?} cannot be run: {error}", command.get_program()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

/// An example of `palisade-client`, which `cargo test` builds beside the server, if it is as new as its
/// source: `cargo test -p palisade` builds no examples.
pub fn rust_example(name: &str) -> Result<PathBuf, String> {
    const BUILD: &str = "run cargo build -p palisade-client --examples";
    let programs = Path::new(env!("CARGO_BIN_EXE_palisade")).parent().expect("a program is in a folder");
    let program = programs.join("examples").join(name);
    let built = program.metadata().and_then(|metadata| metadata.modified());
    let built = built.map_err(|error| format!("there is no {} ({error}): {BUILD}", program.display()))?;
    let sources = std::fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let newer = sources.split_whitespace().skip(1).find(|source| {
        Path::new(source).metadata().and_then(|metadata| metadata.modified()).map_or(true, |changed| changed > built)
    });
    match newer {
        Some(source) => Err(format!("{} is older than {source}: {BUILD}", program.display())),
        None => Ok(program),
    }
}

/// A Python that has what the client depends on.
pub fn python() -> Result<PathBuf, String> {
    let python = std::env::var_os(PYTHON).map_or_else(|| "python3".into(), PathBuf::from);
    answers(Command::new(&python).args(["-c", "import websockets"]))?;
    Ok(python)
}

/// Go itself.
pub fn go() -> Result<(), String> {
    answers(Command::new("go").arg("version"))
}

const GO_ADAPTER: &str = "adapter";
const GO_NIGHTLY: &str = "nightly";

/// The Go client's adapter and its example, built once for all tests that overlap.
fn go_adapter() -> Result<Arc<Built>, String> {
    static BUILT: Shared<Built> = Shared::new();
    let folder = existing(folder("go"))?;
    BUILT.get_or_make(|| {
        go()?;
        let directory = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(directory.path()).args(["./cmd/adapter", "./examples/nightly"]);
        build.current_dir(folder);
        // The client is there, and so is Go: what does not compile is a failure, not a missing tool.
        if let Err(error) = answers(&mut build) {
            panic!("{error}");
        }
        Ok(Built(directory))
    })
}
