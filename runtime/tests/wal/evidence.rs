//! No damage makes an acknowledged frame disappear silently. The damage: zeros, cuts, earlier
//! contents and flipped bits, in the frames, in their evidence, and in both.
//!
//! The one exception (see `storage::evidence`) is undetectable: the last frame is missing, and its
//! evidence had not become durable. [`required_frames`] allows for it.

use palisade::storage::StorageError;

use super::disk::RecordedDisk;
use super::{FRAMES_AT, SECTOR};

/// A log of one segment.
fn one_segment() -> RecordedDisk {
    RecordedDisk::write(5, 7, 130, 4608)
}

/// Variants of a range of bytes, each with its description.
type Variants = Vec<(String, Vec<u8>)>;

/// Earlier contents of the sector at `at`, without the present one.
fn earlier(log: &RecordedDisk, at: usize) -> Vec<Vec<u8>> {
    let now = &log.states[log.count()].last_segment().1[at..at + SECTOR];
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    for moment in &log.moments {
        let (_, bytes) = moment.state.last_segment();
        let was = &bytes[at..at + SECTOR];
        if was != now && earlier.last().is_none_or(|last| last != was) {
            earlier.push(was.to_vec());
        }
    }
    earlier
}

/// Variants of the frames: the sound ones first, then damaged ones.
fn damaged_frames(log: &RecordedDisk) -> Variants {
    let (_, sound) = log.states[log.count()].last_segment();
    let (_, end) = log.frames[log.count() - 1];
    let mut variants: Variants = vec![("sound frames".into(), sound[FRAMES_AT..].to_vec())];
    let mut add = |what: String, change: &dyn Fn(&mut [u8])| {
        let mut bytes = sound.to_vec();
        change(&mut bytes);
        variants.push((what, bytes.split_off(FRAMES_AT)));
    };
    for byte in FRAMES_AT..end {
        add(format!("zeros from byte {byte} on"), &|bytes| bytes[byte..].fill(0));
    }
    for byte in (FRAMES_AT..end).step_by(3) {
        add(format!("a flipped bit in byte {byte}"), &|bytes| bytes[byte] ^= 1 << (byte % 8));
    }
    for sector in (FRAMES_AT..end).step_by(SECTOR) {
        add(format!("no sector at {sector}"), &|bytes| bytes[sector..sector + SECTOR].fill(0));
        add(format!("ones in the sector at {sector}"), &|bytes| bytes[sector..sector + SECTOR].fill(0xFF));
        for (number, was) in earlier(log, sector).iter().enumerate() {
            let what = format!("content {number} of the sector at {sector}");
            add(what, &|bytes| bytes[sector..sector + SECTOR].copy_from_slice(was));
        }
    }
    for (number, state) in log.states.iter().enumerate() {
        let (_, was) = state.last_segment();
        add(format!("all frames as after frame {number}"), &|bytes| bytes.copy_from_slice(was));
    }
    variants
}

/// Variants of one slot: the sound one first, then damaged ones.
fn damaged_slot(log: &RecordedDisk, at: usize) -> Variants {
    let (_, sound) = log.states[log.count()].last_segment();
    let sound = &sound[at..at + SECTOR];
    let mut variants: Variants = vec![("sound".into(), sound.to_vec()), ("zero".into(), vec![0; SECTOR])];
    for byte in [0, 8, 12, 20, 28, 36, 60, 200, 508, 510] {
        let mut flipped = sound.to_vec();
        flipped[byte] ^= 0x10;
        variants.push((format!("flipped in byte {byte}"), flipped));
    }
    for (number, was) in earlier(log, at).into_iter().enumerate() {
        for torn in [13, 40, 511] {
            let mixed = [&sound[..torn], &was[torn..]].concat();
            variants.push((format!("torn at byte {torn} over content {number}"), mixed));
        }
        variants.push((format!("as in content {number}"), was));
    }
    variants
}

/// Variants of both slots: one of them is damaged, or both are. Both put back together equal the
/// state after a power failure one frame earlier, which no slot can detect.
fn damaged_slots(log: &RecordedDisk) -> Variants {
    let (first, second) = (damaged_slot(log, SECTOR), damaged_slot(log, 2 * SECTOR));
    let mut variants = Variants::new();
    for (what, a) in &first {
        variants.push((format!("first slot {what}"), [&a[..], &second[0].1].concat()));
    }
    for (what, b) in &second[1..] {
        variants.push((format!("second slot {what}"), [&first[0].1[..], b].concat()));
    }
    for (a, b) in [(1, 1), (1, 2), (2, 1), (2, 3), (1, second.len() - 1), (first.len() - 1, 1)] {
        let what = format!("first slot {}, second slot {}", first[a].0, second[b].0);
        variants.push((what, [&first[a].1[..], &second[b].1].concat()));
    }
    variants
}

/// Minimum number of frames that a start must find. The last frame may be missing if the slots are
/// in the state that a power failure leaves before evidence of that frame is durable.
fn required_frames(log: &RecordedDisk, slots: &[u8]) -> usize {
    let (_, before) = log.states[log.count() - 1].last_segment();
    if *slots == before[SECTOR..FRAMES_AT] { log.count() - 1 } else { log.count() }
}

#[test]
fn no_acknowledged_frame_is_lost_silently() {
    let log = one_segment();
    let state = &log.states[log.count()];
    let (name, sound) = state.last_segment();
    let (mut refused, mut whole, mut undecided) = (0, 0, 0);
    let frames = damaged_frames(&log);
    for (slots_are, slots) in damaged_slots(&log) {
        for (frames_are, frames) in &frames {
            let bytes = [&sound[..SECTOR], &slots, frames].concat();
            let case = format!("{slots_are}; {frames_are}");
            match state.with_last_segment(bytes).open(log.segment_bytes).0 {
                Ok((_, durable, _)) => {
                    let found = log.frames_of(&durable).unwrap_or_else(|| panic!("{case}: no state of this log"));
                    assert!(found >= required_frames(&log, &slots), "{case}: silent loss, {found} frames are left");
                    *if found == log.count() { &mut whole } else { &mut undecided } += 1;
                }
                Err(StorageError::Damaged { path, .. }) => {
                    assert!(path.ends_with(name), "{case}: {}", path.display());
                    refused += 1;
                }
                Err(error) => panic!("{case}: {error}"),
            }
        }
    }
    assert!(refused > 20_000 && whole > 0 && undecided > 0, "{refused} refused, {whole} whole, {undecided} undecided");
}

#[test]
fn damaged_evidence_is_refused_unless_a_torn_write_explains_it() {
    let log = one_segment();
    let state = &log.states[log.count()];
    let (_, sound) = state.last_segment();
    let newest = SECTOR + SECTOR * (log.count() % 2);
    for at in [SECTOR, 2 * SECTOR] {
        let last = earlier(&log, at).len() - 1;
        for (what, slot) in damaged_slot(&log, at) {
            let bytes = [&sound[..at], &slot, &sound[at + SECTOR..]].concat();
            let is_refused = state.with_last_segment(bytes).open(log.segment_bytes).0.is_err();
            // The newest slot may not have been written, or not to its end.
            let was_last = what.ends_with(&format!("content {last}"));
            let is_explained = what == "sound" || (at == newest && was_last);
            assert_eq!(is_refused, !is_explained, "slot at {at}, {what}");
        }
    }
}

/// In every state of a log of several segments, including those where a segment has no frame yet,
/// or one.
#[test]
fn missing_end_of_the_log_is_reported_with_the_lost_frames() {
    let log = RecordedDisk::write(6, 16, 200, 3072);
    let mut first = 0;
    let mut cases = 0;
    for count in 1..=log.count() {
        if log.frames[count - 1].0 == FRAMES_AT {
            first = count - 1;
        }
        let state = &log.states[count];
        let (_, sound) = state.last_segment();
        for kept in first..count {
            let end = log.frames[kept].0;
            let mut bytes = sound.to_vec();
            bytes[end..].fill(0);
            let error = state.with_last_segment(bytes).open(log.segment_bytes).0.unwrap_err();
            assert!(matches!(error, StorageError::Damaged { offset, .. } if offset == end as u64), "{error}");
            let lost = match count - kept {
                1 => format!("at least 1 frame from frame {} on is lost", kept + 1),
                lost => format!("at least {lost} frames from frame {} on are lost", kept + 1),
            };
            assert!(error.to_string().contains(&lost), "{error}");
            let synced = format!("shows that frame {count} was synced and ended at byte {}", log.frames[count - 1].1);
            assert!(error.to_string().contains(&synced), "{error}");
            cases += 1;
        }
    }
    assert!(cases > 30, "{cases} cases");
}

#[test]
fn evidence_of_another_segment_is_not_valid() {
    let log = RecordedDisk::write(6, 16, 200, 3072);
    let begins: Vec<usize> = (0..log.count()).filter(|&frame| log.frames[frame].0 == FRAMES_AT).collect();
    let (before, after) = (&log.states[begins[1]], &log.states[begins[1] + 1]);
    let mut bytes = after.last_segment().1.to_vec();
    bytes[SECTOR..FRAMES_AT].copy_from_slice(&before.last_segment().1[SECTOR..FRAMES_AT]);
    let error = after.with_last_segment(bytes).open(log.segment_bytes).0.unwrap_err();
    assert!(error.to_string().contains("neither of the segment's evidence slots can be read"), "{error}");
}
