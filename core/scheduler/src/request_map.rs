//! Maps whose keys are requests: looked into several times for each row of each step.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::RequestId;

/// A map from requests. Iteration is in no order that anything may depend on.
pub type RequestMap<V> = HashMap<RequestId, V, BuildHasherDefault<RequestIdHasher>>;

/// The hash of a [`RequestMap`]: one multiplication. The scheduler counts its requests, so that nobody can choose names which
/// collide, and the standard hash, which defends against that, would be an eighth of the instructions of a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestIdHasher(u64);

/// 2^64 divided by the golden ratio, odd: products of consecutive numbers differ in their low bits, which choose the place in
/// the table, and lie far apart in their high bits, by which the table tells the names of one place apart.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for RequestIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(SPREAD);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn consecutive_names_share_neither_places_nor_tags() {
        let hasher = BuildHasherDefault::<RequestIdHasher>::default();
        for first in [0, 1 << 20, u64::MAX - 255] {
            let hashes = (0..256).map(|offset| hasher.hash_one(RequestId(first + offset)));
            let (places, tags): (HashSet<u64>, HashSet<u64>) = hashes.map(|hash| (hash % 256, hash >> 57)).unzip();
            assert_eq!((places.len(), tags.len()), (256, 128), "names from {first}");
        }
    }
}
