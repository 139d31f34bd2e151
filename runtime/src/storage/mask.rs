//! Why no written sector is ever zero.
//!
//! A torn write is recognized by what it did not write: whole sectors of a frame that are still zero. So a frame must
//! not contain such a sector by itself, and a payload may: keys and values are any bytes, zeros too. Therefore the
//! payload is masked with a pseudo-random stream (frame sequence number and a salt choose it), and the salt is
//! changed until every full sector has enough bytes that are not zero. The first salt practically always does; what
//! counts is that the writer has looked, so that the reader may rely on it whatever a client sent.
//!
//! This hides nothing from anybody. It is not encryption.

/// The unit in which a disk writes, or fails to. A sector is written wholly or not at all.
pub(super) const SECTOR: usize = 512;

/// Every full sector of a frame has at least this many bytes that are not zero, so that no few flipped bits make it
/// look like one that was never written.
const ENOUGH: usize = 16;

/// Masks or unmasks, which is the same.
pub(super) fn apply(sequence: u64, salt: u32, payload: &mut [u8]) {
    let mut state = sequence.wrapping_mul(0xD605_1AAF_5F89_2B4D) ^ u64::from(salt).rotate_left(32);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_le_bytes(*word) ^ next(&mut state)).to_le_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(next(&mut state).to_le_bytes()) {
        *byte ^= mask;
    }
}

/// Whether every full sector inside `frame`, which is to be written at `offset` of its file, can be told from one
/// that was never written.
pub(super) fn is_dense(frame: &[u8], offset: u64) -> bool {
    let into_sector = usize::try_from(offset % SECTOR as u64).unwrap_or(0);
    let first_full = (SECTOR - into_sector) % SECTOR;
    let sectors = frame.get(first_full..).unwrap_or_default().chunks_exact(SECTOR);
    sectors.into_iter().all(|sector| sector.iter().filter(|byte| **byte != 0).take(ENOUGH).count() == ENOUGH)
}

/// SplitMix64: fast, and every bit of the state reaches every bit of the output.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masking_twice_gives_the_payload_back() {
        for length in 0..40 {
            let payload: Vec<u8> = (0..length).collect();
            let mut masked = payload.clone();
            apply(7, 3, &mut masked);
            assert_eq!(masked == payload, length == 0);
            apply(7, 3, &mut masked);
            assert_eq!(masked, payload);
        }
    }

    #[test]
    fn only_sectors_wholly_inside_the_frame_count() {
        let mut frame = vec![1; 3 * SECTOR];
        frame[SECTOR..2 * SECTOR].fill(0);
        assert!(!is_dense(&frame, 0), "the second sector is empty");
        assert!(is_dense(&frame, 100), "no sector is empty: the zeros stand in two");
        frame[SECTOR + 20..SECTOR + 20 + ENOUGH].fill(1);
        assert!(is_dense(&frame, 0));
        assert!(is_dense(&[0; 100], 3), "no full sector, nothing to say");
    }
}
