//! A number that two builds share exactly if they were made from the same ops.

use super::catalogue::Catalogue;
use super::describe;

/// FNV-1a (64 bits) over what crosses the boundary. Texts for readers do not count.
pub(crate) fn of(catalogue: &Catalogue) -> u64 {
    let mut text = String::new();
    for op in &catalogue.ops {
        text += &format!("{} {} {} {:?}\n", op.id, op.name, op.version, op.profiles);
        for arg in &op.args {
            let (name, role, optional) = (&arg.name, describe::role(arg), arg.optional);
            text += &format!("{name} {role} {optional} {} {}\n", describe::shape(arg), describe::formats(arg));
        }
    }
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}
