//! The system's figures about this process: time, memory, file descriptors.
//!
//! The names are those that Prometheus gives every process (`process_…`, without the prefix of this program), so that
//! dashboards and alerts that know nothing of Palisade work. The values are read from `/proc` when the page is asked for. A
//! value that cannot be read is left out: that the page lacks one must not keep the others from an operator.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Shows the process that asks.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    /// Seconds from the epoch of Unix to the start of the system, as the system had them when this process started.
    boot_seconds: Option<u64>,
}

impl ProcessMetrics {
    /// Of this process.
    pub(super) fn new() -> ProcessMetrics {
        let boot_seconds = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_seconds(&text));
        ProcessMetrics { boot_seconds }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let usage = fs::read_to_string("/proc/self/stat").ok().and_then(|text| Usage::parse(&text));
        let open_files = open_files();
        let mut page = Page { encoder };
        if let Some(usage) = usage {
            let per_second = ticks_per_second();
            #[expect(clippy::cast_precision_loss, reason = "a process takes no 2^53 ticks")]
            let cpu = usage.cpu_ticks as f64 / per_second;
            page.counter("process_cpu_seconds", "Processor time of all threads, in seconds", cpu)?;
            let resident = usage.resident_pages.saturating_mul(page_size() as u64);
            page.gauge("process_resident_memory_bytes", "Memory in use, in bytes", resident)?;
            page.gauge("process_virtual_memory_bytes", "Address space in use, in bytes", usage.virtual_bytes)?;
            if let Some(boot) = self.boot_seconds {
                #[expect(clippy::cast_precision_loss, reason = "2^53 seconds are longer than the universe has lasted")]
                let start = boot as f64 + usage.start_ticks as f64 / per_second;
                let help = "Start of the process, in seconds since the epoch of Unix";
                page.seconds("process_start_time_seconds", help, start)?;
            }
        }
        if let Some(open) = open_files {
            page.gauge("process_open_fds", "Open file descriptors", open)?;
        }
        // Without a limit there is no number.
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            page.gauge("process_max_fds", "Maximum number of open file descriptors", limit)?;
        }
        Ok(())
    }
}

/// Writes metrics, each with one sample.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.add(name, help, &ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.add(name, help, &ConstGauge::new(value))
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.add(name, help, &ConstCounter::new(value))
    }

    fn add(&mut self, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
        // The registry ends each text with a full stop; a collector gets what it says.
        let help = format!("{help}.");
        metric.encode(self.encoder.encode_descriptor(name, &help, None, metric.metric_type())?)
    }
}

fn ticks_per_second() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "there are 100")]
    let ticks = clock_ticks_per_second().max(1) as f64;
    ticks
}

/// What `/proc/self/stat` tells, in the system's own units.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    cpu_ticks: u64,
    /// From the start of the system to that of the process.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Usage {
    /// proc(5), of which the first fields are the process ID and the program's name in parentheses; the name may have
    /// parentheses and spaces of its own.
    fn parse(stat: &str) -> Option<Usage> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The documentation counts from 1, and what follows the name is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Usage {
            cpu_ticks: field(14)?.checked_add(field(15)?)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// The line `btime` of `/proc/stat`.
fn boot_seconds(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// Open file descriptors of this process, without the one that counts them.
fn open_files() -> Option<u64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(count).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a program's name cannot shift the fields.
    #[test]
    fn name_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) R 9 (b)) S 1 2 3 4 5 6 7 8 9 10 300 21 13 14 15 16 17 18 5000 1048576 77 20\n";
        let usage = Usage { cpu_ticks: 321, start_ticks: 5000, virtual_bytes: 1_048_576, resident_pages: 77 };
        assert_eq!(Usage::parse(stat), Some(usage));
        assert_eq!(Usage::parse("42 (a) S 1 2"), None);
        assert_eq!(Usage::parse(""), None);
    }

    #[test]
    fn start_of_the_system_is_read_from_its_line() {
        assert_eq!(boot_seconds("cpu 1 2\nctxt 9\nbtime 1700000000\nprocesses 3\n"), Some(1_700_000_000));
        assert_eq!(boot_seconds("cpu 1 2\n"), None);
    }

    /// Goal: every open descriptor is counted. Other tests of this program open and close some meanwhile.
    #[test]
    fn open_files_are_counted() {
        let before = open_files().unwrap();
        let files: Vec<fs::File> = (0..300).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let with = open_files().unwrap();
        assert!(with >= before + 200, "{before} descriptors before, {with} with {} more", files.len());
    }
}
