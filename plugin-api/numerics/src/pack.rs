//! Two E2M1 codes per byte: the element with the even index in the low nibble, the next one in the high nibble.

/// The byte that holds the codes of an even element and its successor. Only the low four bits of each count.
#[inline]
#[must_use]
pub const fn pair(even: u8, odd: u8) -> u8 {
    even & 15 | odd << 4
}

/// The two codes in a byte, the even element first.
#[inline]
#[must_use]
pub const fn split(byte: u8) -> [u8; 2] {
    [byte & 15, byte >> 4]
}

/// Packs `codes` (one per byte, low four bits) into `packed`, half as long.
///
/// # Panics
///
/// If `codes.len() != 2 * packed.len()`.
pub fn pack(codes: &[u8], packed: &mut [u8]) {
    assert_two_per_byte(codes.len(), packed.len());
    for (byte, codes) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
        *byte = pair(codes[0], codes[1]);
    }
}

/// Unpacks `packed` into `codes`, one code per byte with the upper four bits clear.
///
/// # Panics
///
/// If `codes.len() != 2 * packed.len()`.
pub fn unpack(packed: &[u8], codes: &mut [u8]) {
    assert_two_per_byte(codes.len(), packed.len());
    for (codes, &byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
        *codes = split(byte);
    }
}

fn assert_two_per_byte(codes: usize, packed: usize) {
    assert!(codes == 2 * packed, "{codes} E2M1 codes need exactly half as many packed bytes, got {packed}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_a_round_trip() {
        let packed: Vec<u8> = (0..=u8::MAX).collect();
        let (mut codes, mut again) = ([0; 512], [0; 256]);
        unpack(&packed, &mut codes);
        pack(&codes, &mut again);
        assert_eq!(packed, again);
        assert!(codes.iter().all(|&code| code < 16));
    }

    #[test]
    fn the_even_element_is_in_the_low_nibble() {
        let mut packed = [0; 2];
        pack(&[0x1, 0x2, 0xF, 0x8], &mut packed);
        assert_eq!(packed, [0x21, 0x8F]);
        assert_eq!(pair(0xF1, 0xF2), 0x21);
    }

    #[test]
    #[should_panic(expected = "3 E2M1 codes need exactly half as many packed bytes, got 1")]
    fn an_odd_number_of_codes_panics() {
        pack(&[0; 3], &mut [0; 1]);
    }
}
