//! The form of the resource's log. The file begins with [`HEADER`]. Each frame after it holds the writes that were synced
//! together:
//!
//! ```text
//! LLLLLLLLCCCCCCCCHHHHHHHH [{"key":"k","token":7,"op":"put","body":"…"}]\n
//! ```
//!
//! L: length of the JSON text; C: its CRC-32C; H: CRC-32C of the sixteen digits before it; all in
//! hexadecimal. A frame is written after the frame before it was synced. So a crash can spoil the
//! last frame only, which no client was told of: it is shorter than its header says, or all zero where
//! the file system had not written a sector (JSON text contains no zero byte). [`recover`] cuts
//! such a frame. All other damage may have cost an acknowledged token, and is an error.
//!
//! What the log cannot tell from a torn frame: a last frame that was synced and then shortened.

use std::ops::Range;

use super::Entry;

pub(super) const HEADER: &[u8] = b"palisade-lab resource log, version 1\n";
/// Three checksums or lengths of eight digits, and a space.
const FRAME_HEADER: usize = 25;
/// What a file system writes at least, in bytes: the end of what it has not written is a multiple.
const SECTOR: usize = 512;

/// Damage that is no torn last frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) offset: usize,
    pub(super) what: String,
}

/// Encodes writes that are synced together.
pub(super) fn frame(entries: &[Entry]) -> Vec<u8> {
    let json = serde_json::to_vec(entries).expect("entries have names and numbers only");
    let mut frame = format!("{:08x}{:08x}", json.len(), crc32c::crc32c(&json)).into_bytes();
    frame.extend(format!("{:08x} ", crc32c::crc32c(&frame)).into_bytes());
    frame.extend(json);
    frame.push(b'\n');
    frame
}

/// The entries of a file, and the length of its whole frames.
pub(super) fn recover(bytes: &[u8]) -> Result<(Vec<Entry>, usize), Damage> {
    if bytes.len() < HEADER.len() && (HEADER.starts_with(bytes) || bytes.iter().all(|byte| *byte == 0)) {
        return Ok((Vec::new(), 0));
    }
    if !bytes.starts_with(HEADER) {
        return Err(Damage { offset: 0, what: "it does not begin as a log of the resource does".to_owned() });
    }
    let mut entries = Vec::new();
    let mut at = HEADER.len();
    while at < bytes.len() {
        let damage = |what: &str| Err(Damage { offset: at, what: what.to_owned() });
        let rest = &bytes[at..];
        let Some((length, checksum)) = frame_header(rest) else {
            if rest.len() < FRAME_HEADER || is_unwritten(bytes, at) {
                break;
            }
            return damage("a frame's header is wrong");
        };
        let body = FRAME_HEADER..FRAME_HEADER.saturating_add(length);
        let Some(json) = rest.get(body.clone()).filter(|_| rest.len() > body.end) else { break };
        if crc32c::crc32c(json) != checksum || rest[body.end] != b'\n' {
            if is_unwritten(bytes, at) && rest.len() == body.end + 1 {
                break;
            }
            return damage("a frame's checksum is wrong");
        }
        match serde_json::from_slice::<Vec<Entry>>(json) {
            Ok(more) => entries.extend(more),
            Err(error) => return damage(&format!("a frame is not a list of writes: {error}")),
        }
        at += body.end + 1;
    }
    Ok((entries, at))
}

/// Length and checksum of the frame's text, if the header is whole.
fn frame_header(rest: &[u8]) -> Option<(usize, u32)> {
    let header = rest.get(..FRAME_HEADER)?;
    let number = |digits: Range<usize>| {
        header[digits].iter().try_fold(0, |number: u32, digit| {
            let value = b"0123456789abcdef".iter().position(|known| known == digit)?;
            Some(number << 4 | u32::try_from(value).ok()?)
        })
    };
    let whole = number(16..24)? == crc32c::crc32c(&header[..16]) && header[24] == b' ';
    whole.then_some((usize::try_from(number(0..8)?).ok()?, number(8..16)?))
}

/// Whether the bytes from `at` are one frame with sectors that were never written: all of a sector's
/// part of it is zero, and no frame begins after it.
fn is_unwritten(bytes: &[u8], at: usize) -> bool {
    let sectors = (at / SECTOR * SECTOR..bytes.len()).step_by(SECTOR);
    let mut parts = sectors.map(|sector| &bytes[sector.max(at)..bytes.len().min(sector + SECTOR)]);
    let newlines = (at..bytes.len()).filter(|index| bytes[*index] == b'\n');
    parts.any(|part| part.iter().all(|byte| *byte == 0))
        && newlines.into_iter().all(|newline| frame_header(&bytes[newline + 1..]).is_none())
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::*;

    fn entry(token: u64) -> Entry {
        Entry { key: "k".to_owned(), token, op: Op::Put, body: format!("value {token}\n") }
    }

    fn file(frames: &[&[Entry]]) -> Vec<u8> {
        frames.iter().fold(HEADER.to_vec(), |mut bytes, entries| {
            bytes.extend(frame(entries));
            bytes
        })
    }

    #[test]
    fn a_file_that_is_cut_anywhere_has_all_whole_frames() {
        let bytes = file(&[&[entry(1)], &[entry(2), entry(3)], &[entry(4)]]);
        let ends =
            [HEADER.len(), file(&[&[entry(1)]]).len(), file(&[&[entry(1)], &[entry(2), entry(3)]]).len(), bytes.len()];
        for length in 0..=bytes.len() {
            let (entries, whole) = recover(&bytes[..length]).unwrap();
            let expected = ends.iter().rposition(|end| *end <= length);
            assert_eq!(entries.len(), expected.map_or(0, |frames| [0, 1, 3, 4][frames]), "cut at {length}");
            assert_eq!(whole, expected.map_or(0, |frames| ends[frames]), "cut at {length}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_damage() {
        let bytes = file(&[&[entry(1)], &[entry(2)]]);
        let second = file(&[&[entry(1)]]).len();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let damage = recover(&bytes).expect_err(&format!("bit {bit} of byte {at}"));
                let frame = if at < HEADER.len() { 0 } else { if at < second { HEADER.len() } else { second } };
                assert_eq!(damage.offset, frame, "{damage:?} with bit {bit} of byte {at} flipped");
            }
        }
    }

    #[test]
    fn unwritten_sectors_of_the_last_frame_are_cut() {
        let long = Entry { body: "x".repeat(3000), ..entry(2) };
        let bytes = file(&[&[entry(1)], &[long]]);
        let last = file(&[&[entry(1)]]).len();
        let bounds: Vec<_> =
            [last].into_iter().chain((SECTOR..bytes.len()).step_by(SECTOR)).chain([bytes.len()]).collect();
        for (number, begin) in bounds.iter().enumerate() {
            for end in &bounds[number + 1..] {
                let mut bytes = bytes.clone();
                bytes[*begin..*end].fill(0);
                let (entries, whole) = recover(&bytes).unwrap_or_else(|damage| panic!("{begin}..{end}: {damage:?}"));
                assert_eq!((entries, whole), (vec![entry(1)], last), "{begin}..{end}");
            }
        }
    }

    #[test]
    fn an_unwritten_sector_before_another_frame_is_damage() {
        let long = Entry { body: "x".repeat(3000), ..entry(1) };
        let mut bytes = file(&[&[long], &[entry(2)]]);
        bytes[SECTOR..2 * SECTOR].fill(0);
        assert_eq!(recover(&bytes).unwrap_err().offset, HEADER.len());
        bytes[HEADER.len()..SECTOR].fill(0);
        assert_eq!(recover(&bytes).unwrap_err().offset, HEADER.len());
    }
}
