//! `palisade-conformance torture`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;

use super::{Broken, Plan, namespace, torture};

/// Run real processes under load while every fault that one machine can have is injected
///
/// Exit code 0 if everything was right, 1 if not, 2 if the check was incomplete or was ended early.
#[derive(Debug, Args)]
pub struct Torture {
    /// Duration of the faults, in minutes
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the faults; random by default
    #[arg(long)]
    seed: Option<u64>,
    /// Server program to torture; by default the one beside this program
    #[arg(long, value_name = "FILE")]
    palisade: Option<PathBuf>,
    /// Server program of the version before: every node runs it at every second start of it
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
    /// Keep data, logs and recordings in this directory. By default they are removed after a
    /// successful run
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Nodes and clients use TLS
    #[arg(long)]
    tls: bool,
}

impl Torture {
    /// Runs the torture and prints its report.
    pub fn run(self) -> ExitCode {
        match namespace::enter().and_then(|()| self.prepare_and_run()) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("palisade-conformance: {error}");
                ExitCode::from(2)
            }
        }
    }

    fn prepare_and_run(self) -> std::io::Result<ExitCode> {
        let beside = || std::env::current_exe().map(|program| program.with_file_name("palisade"));
        let palisade = self.palisade.map_or_else(beside, Ok)?;
        if !palisade.exists() {
            let message =
                format!("the server {} does not exist; build it first, or name it with --palisade", palisade.display());
            return Err(std::io::Error::other(message));
        }
        if let Some(missing) = self.previous.as_ref().filter(|previous| !previous.exists()) {
            let message = format!("{} does not exist: build the version before (just previous)", missing.display());
            return Err(std::io::Error::other(message));
        }
        let own = tempfile::Builder::new().prefix("palisade-torture-").tempdir()?;
        let directory = self.keep.unwrap_or_else(|| own.path().to_owned());
        std::fs::create_dir_all(&directory)?;
        let seed = self.seed.unwrap_or_else(rand::random);
        println!("seed {seed}");
        let stop = stopped_by_signals()?;
        let (faults, previous, tls) = (Duration::from_secs_f64(self.minutes * 60.0), self.previous, self.tls);
        let plan = Plan { faults, seed, palisade, previous, directory, tls };
        match torture(&plan, &stop) {
            Ok(report) => {
                println!("{report}");
                if report.is_whole() {
                    return Ok(ExitCode::SUCCESS);
                }
                if !report.is_recorded() && plan.directory == own.path() {
                    eprintln!("data, logs and recordings are in {}", own.keep().display());
                }
                Ok(ExitCode::from(2))
            }
            // The machine failed, not the server.
            Err(Broken::Io(error)) => Err(error),
            Err(broken) => {
                eprintln!("palisade-conformance: seed {seed}: {broken}");
                let kept = own.keep();
                eprintln!("data, logs and recordings are in {}", plan.directory.display());
                if kept != plan.directory {
                    std::fs::remove_dir_all(kept)?;
                }
                Ok(ExitCode::from(1))
            }
        }
    }
}

/// Set at the first Ctrl-C or SIGTERM: the faults end, and the run still makes all its final
/// checks.
fn stopped_by_signals() -> std::io::Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let flag = Arc::clone(&stop);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        flag.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}
