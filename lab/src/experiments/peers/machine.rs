//! The rest of the machine's work during a window: the disk's speed, and the processor time of the generator, the
//! servers and other processes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::report::table::median;
use crate::servers::Identity;

/// Syncs of a probe.
const SYNCS: usize = 15;
/// The system's clock ticks a second in /proc (`USER_HZ`), which Linux has fixed for programs.
const TICKS: f64 = 100.0;

/// Cores that were busy on average, in 1 core = 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// For the load generator: this process.
    pub generator: f64,
    /// For the servers that were measured.
    pub servers: f64,
    /// For all other processes.
    pub others: f64,
    /// Taken away by the hypervisor.
    pub stolen: f64,
}

/// Processor time up to a moment, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    at: Instant,
    busy: u64,
    stolen: u64,
    own: u64,
    servers: u64,
}

impl Usage {
    /// Reads what all processors, this process and the servers have used.
    #[must_use]
    pub fn now(servers: &[Identity]) -> Usage {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (busy, stolen) = processors(&read("/proc/stat"));
        let servers = servers.iter().map(|server| process(&read(&format!("/proc/{}/stat", server.pid)))).sum();
        Usage { at: Instant::now(), busy, stolen, own: process(&read("/proc/self/stat")), servers }
    }

    /// Processor time of the generator, the servers and other processes since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Usage) -> Cores {
        let seconds = (self.at - earlier.at).as_secs_f64().max(1.0 / TICKS);
        let cores = |ticks: u64| (ticks as f64 / TICKS / seconds * 1000.0).round() / 1000.0;
        let of = |field: fn(&Usage) -> u64| field(self).saturating_sub(field(earlier));
        let (own, servers) = (of(|usage| usage.own), of(|usage| usage.servers));
        Cores {
            generator: cores(own),
            servers: cores(servers),
            others: cores(of(|usage| usage.busy).saturating_sub(own + servers)),
            stolen: cores(of(|usage| usage.stolen)),
        }
    }
}

/// Busy and stolen ticks of all processors: the first line of /proc/stat has user, nice, system, idle, iowait, irq, softirq
/// and steal.
fn processors(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    ([0, 1, 2, 5, 6].into_iter().map(at).sum(), at(7))
}

/// The ticks of a process, all its threads included: fields 14 and 15 of /proc/PID/stat. The second field is a name in
/// parentheses, and may have any character.
fn process(stat: &str) -> u64 {
    let fields = stat.rfind(')').and_then(|end| stat.get(end + 1..)).unwrap_or_default();
    fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// The median time of a small append with `fdatasync`, in microseconds.
///
/// # Errors
/// The file cannot be written.
pub fn sync_us(directory: &Path) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("cannot probe the disk in {}: {error}", directory.display());
    let path = directory.join("probe");
    let mut file = File::create(&path).map_err(failed)?;
    // The file has its length before the probe, as the logs of the servers have.
    file.write_all(&[0; 512 * SYNCS]).and_then(|()| file.sync_all()).map_err(failed)?;
    let mut file = File::options().write(true).open(&path).map_err(failed)?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let begun = Instant::now();
        file.write_all(&[1; 512]).and_then(|()| file.sync_data()).map_err(failed)?;
        times.push(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    times.sort_unstable();
    std::fs::remove_file(&path).map_err(failed)?;
    median(&times, u64::midpoint).ok_or_else(|| "the disk was not probed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_proc() {
        assert_eq!(processors("cpu  10 2 30 400 50 6 7 8 9 0\ncpu0 1 1 1 1"), (55, 8));
        let stat = "42 (a (strange) name) S 1 42 42 0 -1 4194304 100 0 0 0 250 30 0 0 20 0 3 0 1000";
        assert_eq!(process(stat), 280);
        assert_eq!(process(""), 0);
    }

    #[test]
    fn what_is_neither_ours_nor_the_servers_is_others() {
        let at = Instant::now();
        let earlier = Usage { at, busy: 100, stolen: 0, own: 10, servers: 20 };
        let later = Usage { at: at + std::time::Duration::from_secs(2), busy: 400, stolen: 20, own: 110, servers: 120 };
        let cores = later.since(&earlier);
        assert_eq!(cores, Cores { generator: 0.5, servers: 0.5, others: 0.5, stolen: 0.1 });
    }

    #[test]
    fn this_process_uses_the_processor() {
        let earlier = Usage::now(&[]);
        while earlier.at.elapsed() < std::time::Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        assert!(Usage::now(&[]).since(&earlier).generator > 0.0);
    }

    #[test]
    fn a_sync_takes_time_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        assert!(sync_us(directory.path()).unwrap() > 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
