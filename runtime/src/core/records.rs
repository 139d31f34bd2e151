//! Records of the key-value store, as clients see them.

use palisade_client::wire::{Code, Content, Failure, RecordPage, RecordSummary, RecordView};
use palisade_spec::lock::{Key, LockTable, Principal, Record};

use super::readable::readable;

/// A record, as a reader sees it.
///
/// # Errors
/// [`Code::NoRecord`].
pub(super) fn show(table: &LockTable, key: &Key) -> Result<RecordView, Failure> {
    let record = table.record(key).ok_or_else(|| {
        Failure::new(Code::NoRecord, format!("there is no record {key}: it was deleted, or never written"))
    })?;
    let Record { bytes, version, fence, .. } = record;
    let (version, fence, value) = (version.0, fence.map(|fence| fence.0), Content(bytes.as_slice().to_vec()));
    Ok(RecordView { key: key.to_string(), version, fence, value })
}

/// A record without its content.
pub(super) fn summary(key: &Key, Record { bytes, version, fence, .. }: &Record) -> RecordSummary {
    let (version, fence) = (version.0, fence.map(|fence| fence.0));
    RecordSummary { key: key.to_string(), version, fence, bytes: bytes.len() as u64 }
}

/// A page of the records that the reader may read.
pub(super) fn list(
    table: &LockTable,
    reader: &Principal,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> RecordPage {
    let mut readable =
        readable(table.records(), table.access(), reader, prefix, after).map(|(key, record)| summary(key, record));
    let records: Vec<RecordSummary> = readable.by_ref().take(limit).collect();
    let next_after = readable.next().and_then(|_| Some(records.last()?.key.clone()));
    RecordPage { records, next_after, stored_bytes: table.stored_bytes() }
}
