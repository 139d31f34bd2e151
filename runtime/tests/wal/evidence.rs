//! No damage makes an acknowledged frame disappear without a word: zeros, cuts, earlier contents and flipped bits in the
//! frames, in the evidence of them, and in both.
//!
//! One thing cannot be noticed (see `storage::evidence`): that the last frame is missing, where its evidence had not
//! become durable. It is the one exception here, and named as such.

use palisade::storage::StorageError;

use super::disk::Told;
use super::{FRAMES_AT, SECTOR};

/// A log of one segment.
fn told() -> Told {
    Told::tell(5, 7, 130, 4608)
}

/// Ways to change a range of bytes, each with its name.
type Ways = Vec<(String, Vec<u8>)>;

/// What the sector at `at` has ever held, without what it holds.
fn earlier(told: &Told, at: usize) -> Vec<Vec<u8>> {
    let now = &told.states[told.count()].last_segment().1[at..at + SECTOR];
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    for moment in &told.moments {
        let (_, bytes) = moment.state.last_segment();
        let was = &bytes[at..at + SECTOR];
        if was != now && earlier.last().is_none_or(|last| last != was) {
            earlier.push(was.to_vec());
        }
    }
    earlier
}

/// What can become of the frames.
fn damaged_frames(told: &Told) -> Ways {
    let (_, sound) = told.states[told.count()].last_segment();
    let (_, end) = told.frames[told.count() - 1];
    let mut ways: Ways = vec![("sound frames".into(), sound[FRAMES_AT..].to_vec())];
    let mut add = |what: String, change: &dyn Fn(&mut [u8])| {
        let mut bytes = sound.to_vec();
        change(&mut bytes);
        ways.push((what, bytes.split_off(FRAMES_AT)));
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
        for (number, was) in earlier(told, sector).iter().enumerate() {
            let what = format!("content {number} of the sector at {sector}");
            add(what, &|bytes| bytes[sector..sector + SECTOR].copy_from_slice(was));
        }
    }
    for (number, state) in told.states.iter().enumerate() {
        let (_, was) = state.last_segment();
        add(format!("all of them as after frame {number}"), &|bytes| bytes.copy_from_slice(was));
    }
    ways
}

/// What can become of one slot.
fn damaged_slot(told: &Told, at: usize) -> Ways {
    let (_, sound) = told.states[told.count()].last_segment();
    let sound = &sound[at..at + SECTOR];
    let mut ways: Ways = vec![("sound".into(), sound.to_vec()), ("zero".into(), vec![0; SECTOR])];
    for byte in [0, 8, 12, 20, 28, 36, 60, 200, 508, 510] {
        let mut flipped = sound.to_vec();
        flipped[byte] ^= 0x10;
        ways.push((format!("flipped in byte {byte}"), flipped));
    }
    for (number, was) in earlier(told, at).into_iter().enumerate() {
        for torn in [13, 40, 511] {
            let mixed = [&sound[..torn], &was[torn..]].concat();
            ways.push((format!("torn at byte {torn} over content {number}"), mixed));
        }
        ways.push((format!("as in content {number}"), was));
    }
    ways
}

/// What can become of both: one of them is hit, or both are. Both put back together are a power failure a frame ago: to
/// that, no slot can say anything.
fn damaged_slots(told: &Told) -> Ways {
    let (first, second) = (damaged_slot(told, SECTOR), damaged_slot(told, 2 * SECTOR));
    let mut ways = Ways::new();
    for (what, a) in &first {
        ways.push((format!("first slot {what}"), [&a[..], &second[0].1].concat()));
    }
    for (what, b) in &second[1..] {
        ways.push((format!("second slot {what}"), [&first[0].1[..], b].concat()));
    }
    for (a, b) in [(1, 1), (1, 2), (2, 1), (2, 3), (1, second.len() - 1), (first.len() - 1, 1)] {
        let what = format!("first slot {}, second slot {}", first[a].0, second[b].0);
        ways.push((what, [&first[a].1[..], &second[b].1].concat()));
    }
    ways
}

/// What is allowed to be missing: the last frame, if the slots are as a power failure leaves them that comes before it is
/// known to be synced.
fn least(told: &Told, slots: &[u8]) -> usize {
    let (_, before) = told.states[told.count() - 1].last_segment();
    if *slots == before[SECTOR..FRAMES_AT] { told.count() - 1 } else { told.count() }
}

#[test]
fn no_acknowledged_frame_is_lost_without_a_word() {
    let told = told();
    let state = &told.states[told.count()];
    let (name, sound) = state.last_segment();
    let (mut refused, mut whole, mut undecided) = (0, 0, 0);
    let frames = damaged_frames(&told);
    for (slots_are, slots) in damaged_slots(&told) {
        for (frames_are, frames) in &frames {
            let bytes = [&sound[..SECTOR], &slots, frames].concat();
            let scene = format!("{slots_are}; {frames_are}");
            match state.with_last_segment(bytes).open(told.segment_bytes).0 {
                Ok((_, durable, _)) => {
                    let found = told.frames_of(&durable).unwrap_or_else(|| panic!("{scene}: no state of this log"));
                    assert!(found >= least(&told, &slots), "{scene}: {found} frames are left, without a word");
                    *if found == told.count() { &mut whole } else { &mut undecided } += 1;
                }
                Err(StorageError::Damaged { path, .. }) => {
                    assert!(path.ends_with(name), "{scene}: {}", path.display());
                    refused += 1;
                }
                Err(error) => panic!("{scene}: {error}"),
            }
        }
    }
    assert!(refused > 20_000 && whole > 0 && undecided > 0, "{refused} refused, {whole} whole, {undecided} undecided");
}

#[test]
fn damaged_evidence_is_refused_unless_a_torn_write_explains_it() {
    let told = told();
    let state = &told.states[told.count()];
    let (_, sound) = state.last_segment();
    let newest = SECTOR + SECTOR * (told.count() % 2);
    for at in [SECTOR, 2 * SECTOR] {
        let last = earlier(&told, at).len() - 1;
        for (what, slot) in damaged_slot(&told, at) {
            let bytes = [&sound[..at], &slot, &sound[at + SECTOR..]].concat();
            let is_refused = state.with_last_segment(bytes).open(told.segment_bytes).0.is_err();
            // The newest slot may not have been written, or not to its end.
            let was_last = what.ends_with(&format!("content {last}"));
            let is_explained = what == "sound" || (at == newest && was_last);
            assert_eq!(is_refused, !is_explained, "slot at {at}, {what}");
        }
    }
}

/// In every state of a log of several segments: also where a segment has no frame yet, or one.
#[test]
fn a_log_that_ends_too_early_says_what_is_lost() {
    let told = Told::tell(6, 16, 200, 3072);
    let mut first = 0;
    let mut scenes = 0;
    for count in 1..=told.count() {
        if told.frames[count - 1].0 == FRAMES_AT {
            first = count - 1;
        }
        let state = &told.states[count];
        let (_, sound) = state.last_segment();
        for kept in first..count {
            let end = told.frames[kept].0;
            let mut bytes = sound.to_vec();
            bytes[end..].fill(0);
            let error = state.with_last_segment(bytes).open(told.segment_bytes).0.unwrap_err();
            assert!(matches!(error, StorageError::Damaged { offset, .. } if offset == end as u64), "{error}");
            let lost = match count - kept {
                1 => format!("at least 1 frame from frame {} on is lost", kept + 1),
                lost => format!("at least {lost} frames from frame {} on are lost", kept + 1),
            };
            assert!(error.to_string().contains(&lost), "{error}");
            let synced = format!("shows that frame {count} was synced and ended at byte {}", told.frames[count - 1].1);
            assert!(error.to_string().contains(&synced), "{error}");
            scenes += 1;
        }
    }
    assert!(scenes > 30, "{scenes} scenes");
}

#[test]
fn evidence_of_another_segment_is_no_evidence() {
    let told = Told::tell(6, 16, 200, 3072);
    let begins: Vec<usize> = (0..told.count()).filter(|&frame| told.frames[frame].0 == FRAMES_AT).collect();
    let (before, after) = (&told.states[begins[1]], &told.states[begins[1] + 1]);
    let mut bytes = after.last_segment().1.to_vec();
    bytes[SECTOR..FRAMES_AT].copy_from_slice(&before.last_segment().1[SECTOR..FRAMES_AT]);
    let error = after.with_last_segment(bytes).open(told.segment_bytes).0.unwrap_err();
    assert!(error.to_string().contains("neither of the segment's evidence slots can be read"), "{error}");
}
