//! Progress, speed and memory use of a run.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stateright::report::ReportData;

/// Interval between two looks at the run.
const LOOK: Duration = Duration::from_millis(100);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 >> 20;
        if mebibytes < 10_000 { write!(f, "{mebibytes} MiB") } else { write!(f, "{} GiB", mebibytes >> 10) }
    }
}

/// Memory use of a run, sampled ten times a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Peak resident memory of the whole process, including what was resident before the run.
    pub peak: Bytes,
    /// Growth of the peak over the memory that was resident when the run began.
    pub growth: Bytes,
}

/// Observes a run.
pub(crate) struct Watch {
    name: Option<&'static str>,
    begun: Instant,
    ended: Option<Instant>,
    before: Option<Bytes>,
    peak: Option<Bytes>,
    on_terminal: bool,
    next: Duration,
}

impl Watch {
    /// Begins to observe a run. With a name, progress is printed: at a terminal every second,
    /// elsewhere every ten seconds.
    pub(crate) fn new(name: Option<&'static str>, begun: Instant) -> Watch {
        let on_terminal = std::io::stderr().is_terminal();
        let before = resident();
        let mut watch = Watch { name, begun, ended: None, before, peak: before, on_terminal, next: Duration::ZERO };
        watch.next = watch.pause();
        watch
    }

    /// Waits for the threads of a run, and looks at it meanwhile. stateright's own
    /// `join_and_report` is compiled for every type of model, with the paths that it collects.
    ///
    /// # Panics
    /// If a thread did.
    pub(crate) fn wait(&mut self, threads: Vec<JoinHandle<()>>, run: &(dyn Fn() -> ReportData + Sync)) {
        let over = AtomicBool::new(false);
        let ends = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    self.look(&run());
                    thread::park_timeout(LOOK);
                }
            });
            let ends: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
            over.store(true, Ordering::Release);
            watcher.thread().unpark();
            ends
        });
        self.peak = self.peak.max(resident());
        self.ended = Some(Instant::now());
        if self.name.is_some() && self.on_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
        for end in ends {
            end.expect("Failed to join checker thread");
        }
    }

    fn look(&mut self, run: &ReportData) {
        self.peak = self.peak.max(resident());
        if let Some(name) = self.name.filter(|_| self.begun.elapsed() >= self.next) {
            self.print(name, run);
            self.next = self.begun.elapsed() + self.pause();
        }
    }

    /// When the checker finished.
    pub(crate) fn ended(&self) -> Option<Instant> {
        self.ended
    }

    /// Memory use, on systems that report it.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let (before, peak) = (self.before?, self.peak?);
        Some(Memory { peak, growth: Bytes(peak.0 - before.0) })
    }

    fn pause(&self) -> Duration {
        if self.on_terminal { Duration::from_secs(1) } else { Duration::from_secs(10) }
    }

    fn print(&self, name: &str, data: &ReportData) {
        let line = line(name, data, resident());
        let mut to = std::io::stderr().lock();
        // A failed write of progress does not affect the run.
        let _ = if self.on_terminal { write!(to, "\r\x1b[2K{line}") } else { writeln!(to, "{line}") };
        let _ = to.flush();
    }
}

fn line(name: &str, data: &ReportData, resident: Option<Bytes>) -> String {
    let seconds = data.duration.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
    let rate = data.total_states as f64 / seconds.max(0.001) / 1e6;
    let (generated, unique, depth) = (data.total_states, data.unique_states, data.max_depth);
    let memory = resident.map_or(String::new(), |bytes| format!(", {bytes}"));
    format!("{name}: {generated} generated, {unique} unique, depth {depth}, {seconds:.0} s, {rate:.2} M/s{memory}")
}

/// Resident memory of this process, on systems that report it.
fn resident() -> Option<Bytes> {
    kibibytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

fn kibibytes(status: &str, field: &str) -> Option<Bytes> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(Bytes(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_parsed_from_proc_status() {
        let status = "Name:\tx\nVmHWM:\t    9000 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(Bytes(2 << 20)));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
        assert_eq!(kibibytes("VmRSS:\t many", "VmRSS:"), None);
        assert_eq!(Bytes(5 << 20).to_string(), "5 MiB");
        assert_eq!(Bytes(20 << 30).to_string(), "20 GiB");
    }

    #[test]
    fn line_shows_progress_rate_and_memory() {
        let data = ReportData {
            total_states: 3_000_000,
            unique_states: 1_000_000,
            max_depth: 17,
            duration: Duration::from_secs(2),
            done: false,
        };
        let expected = "m: 3000000 generated, 1000000 unique, depth 17, 2 s, 1.50 M/s";
        assert_eq!(line("m", &data, None), expected);
        assert_eq!(line("m", &data, Some(Bytes(64 << 20))), format!("{expected}, 64 MiB"));
    }
}
