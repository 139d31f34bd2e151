//! The recordings of a directory, by cluster and node, and each node's records over all its runs.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use palisade::recording::format::EXTENSION;
use palisade::recording::{Header, Reading, Record, cut_mark};

use super::report::{Failure, Report};

/// One process run of a node.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The run's recording.
    pub(super) path: PathBuf,
    /// The recording's header.
    pub(super) header: Header,
}

/// A cluster's recordings: the runs of each data directory, in order of time.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) directory: PathBuf,
    pub(super) nodes: Vec<Vec<Run>>,
}

/// Finds all recordings in a directory and its subdirectories. Only their headers are read: there
/// may be more of them than a process may have open files. The second list has the unreadable ones.
pub(super) fn find(directory: &Path) -> Result<(Vec<Cluster>, Vec<Failure>), Failure> {
    let (mut clusters, mut unread, mut folders) = (Vec::new(), Vec::new(), vec![directory.to_owned()]);
    while let Some(folder) = folders.pop() {
        let failed = |source| Failure::Directory { path: folder.clone(), source };
        let mut here: BTreeMap<u64, BTreeMap<_, Vec<Run>>> = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == EXTENSION) {
                match Reading::open(&path) {
                    Ok(Some((header, _))) => {
                        let node = (header.config.id, header.incarnation);
                        here.entry(header.cluster).or_default().entry(node).or_default().push(Run { path, header });
                    }
                    Ok(None) => {}
                    Err(flaw) => unread.push(flaw.into()),
                }
            }
        }
        for nodes in here.into_values() {
            let mut nodes: Vec<Vec<Run>> = nodes.into_values().collect();
            nodes.iter_mut().for_each(|runs| runs.sort_by_key(|run| run.header.began));
            clusters.push(Cluster { directory: folder.clone(), nodes });
        }
    }
    clusters.sort_by(|one, other| one.directory.cmp(&other.directory));
    Ok((clusters, unread))
}

/// A node's records over all its runs.
#[derive(Debug)]
pub(super) struct Chain {
    runs: VecDeque<Run>,
    /// The first run's recording, while it is read.
    reading: Option<Reading>,
    next: Option<Record>,
    /// Time of the next record, and the number of records of its run before it.
    time: u64,
    number: u64,
    path: PathBuf,
}

impl Chain {
    pub(super) fn new(runs: Vec<Run>, report: &mut Report) -> Result<Chain, Failure> {
        let path = runs[0].path.clone();
        let mut chain = Chain { runs: runs.into(), reading: None, next: None, time: 0, number: 0, path };
        chain.begin(report)?;
        Ok(chain)
    }

    /// Opens the next run, if there is one; its first record is the header.
    fn begin(&mut self, report: &mut Report) -> Result<(), Failure> {
        (self.reading, self.next) = (None, None);
        if let Some(run) = self.runs.front()
            && let Some((header, reading)) = Reading::open(&run.path)?
        {
            report.runs += 1;
            report.bytes += reading.length();
            (self.time, self.number, self.path) = (header.began, 0, run.path.clone());
            (self.reading, self.next) = (Some(reading), Some(Record::Began(header)));
        }
        Ok(())
    }

    /// Reads the next record. `false` if the node ran on without being recorded.
    pub(super) fn advance(&mut self, report: &mut Report) -> Result<bool, Failure> {
        let Some(reading) = &mut self.reading else { return Ok(true) };
        if let Some(record) = reading.record()? {
            self.time += record.after();
            self.number += 1;
            self.next = Some(record);
            return Ok(true);
        }
        report.torn += usize::from(reading.torn() > 0);
        if cut_mark(&self.path).exists() {
            return Ok(false);
        }
        self.runs.pop_front();
        self.begin(report)?;
        Ok(true)
    }

    pub(super) fn next(&mut self) -> Option<(u64, Record)> {
        Some((self.time, self.next.take()?))
    }

    pub(super) fn next_time(&self) -> Option<u64> {
        self.next.as_ref().map(|_| self.time)
    }

    pub(super) fn time(&self) -> u64 {
        self.time
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
