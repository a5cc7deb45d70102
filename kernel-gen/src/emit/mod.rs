//! What a family and its units are written out as.

mod cuda;
mod launcher;
mod profiles;

pub use cuda::{layout_header, source};
pub use launcher::{launcher, module};
pub use profiles::profiles;

use crate::Family;

/// The fingerprint that ties an image to the launcher it was declared with: FNV-1a over the declaration.
///
/// It guards against an old bundle under a new launcher, not against malice.
pub fn contract(family: &Family) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash =
        family.canonical.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}
