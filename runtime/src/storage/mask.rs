//! Masks payloads, so that no written sector is ever zero.
//!
//! A torn write is recognized by the sectors of its frame that are still zero. So a frame must not
//! contain a zero sector by itself. A payload may: keys and values are any bytes, including zeros.
//! Therefore the payload is masked with a pseudo-random stream (chosen by the frame's sequence
//! number and a salt), and the writer changes the salt until every full sector has enough bytes
//! that are not zero. The first salt practically always suffices; the writer checks it
//! nevertheless, so that the reader may rely on it for any payload.
//!
//! Masking is not encryption: it hides nothing.

/// The unit in which a disk writes, in bytes. A sector is written as a whole or not at all.
pub(super) const SECTOR: usize = 512;

/// Minimum number of nonzero bytes in every full sector of a frame, so that a few flipped bits
/// cannot make it look like a sector that was never written.
const MIN_NONZERO: usize = 16;

/// Masks or unmasks a payload: the operation is its own inverse.
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

/// Whether every full sector inside `frame`, to be written at `offset` of its file, is
/// distinguishable from a sector that was never written.
pub(super) fn is_dense(frame: &[u8], offset: u64) -> bool {
    let into_sector = usize::try_from(offset % SECTOR as u64).unwrap_or(0);
    let first_full = (SECTOR - into_sector) % SECTOR;
    let sectors = frame.get(first_full..).unwrap_or_default().chunks_exact(SECTOR);
    sectors.into_iter().all(|sector| sector.iter().filter(|byte| **byte != 0).take(MIN_NONZERO).count() == MIN_NONZERO)
}

/// SplitMix64: fast, and every bit of the state influences every bit of the output.
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
    fn density_is_checked_only_in_full_sectors() {
        let mut frame = vec![1; 3 * SECTOR];
        frame[SECTOR..2 * SECTOR].fill(0);
        assert!(!is_dense(&frame, 0), "the second sector is empty");
        assert!(is_dense(&frame, 100), "no sector is empty: the zeros are in two sectors");
        frame[SECTOR + 20..SECTOR + 20 + MIN_NONZERO].fill(1);
        assert!(is_dense(&frame, 0));
        assert!(is_dense(&[0; 100], 3), "there is no full sector");
    }
}
