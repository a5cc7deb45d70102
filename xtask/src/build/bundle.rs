//! The bundle format, written: every image of one profile and architecture in one file.
//!
//! ```text
//! "KDBUNDLE"  u32 format  u32 header length  header (JSON)  zstd(images, one after another)
//! ```
//!
//! Integers are little-endian. `kd_kernels::bundle` reads it; a test here writes for that reader.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::key::sha256_hex;

pub(crate) const MAGIC: &[u8; 8] = b"KDBUNDLE";
/// Raised when the header or the payload changes its meaning.
pub(crate) const FORMAT: u32 = 1;
/// Compression level: the payload is small and is read often.
const LEVEL: i32 = 19;
/// A level that copies: it hardly looks for repetitions, and leaves the bytes as they are.
const STORED: i32 = -100_000;

/// What a bundle says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) profile: String,
    pub(crate) arch: String,
    /// `cubin` or `ptx`.
    pub(crate) kind: String,
    pub(crate) toolchain: String,
    /// Whether every lane of a warp arrives where one stands for it: images for racecheck.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) every_lane_arrives: bool,
    /// Bytes of the payload before compression.
    pub(crate) payload: u64,
    pub(crate) units: Vec<Row>,
}

/// One image: the manifest row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) family: String,
    pub(crate) unit: String,
    pub(crate) variant: String,
    /// Fingerprint of the declaration.
    pub(crate) contract: String,
    /// Hash of all inputs of the image.
    pub(crate) source: String,
    pub(crate) dims: BTreeMap<String, i64>,
    pub(crate) constants: BTreeMap<String, i64>,
    pub(crate) block: u32,
    pub(crate) min_ctas: u32,
    pub(crate) cluster: u32,
    pub(crate) smem: u32,
    pub(crate) registers: u32,
    pub(crate) spill_bytes: u32,
    /// Place in the payload.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl Header {
    /// The header with the places and hashes of `images`, one a unit.
    pub(crate) fn placed(mut self, images: &[&[u8]]) -> Self {
        self.payload = 0;
        for (row, image) in self.units.iter_mut().zip(images) {
            row.offset = self.payload;
            row.bytes = image.len() as u64;
            row.sha256 = sha256_hex(image);
            self.payload += row.bytes;
        }
        self
    }
}

/// The bytes of the bundle of `images` that `header`, already [`Header::placed`], describes.
pub(crate) fn encode(header: &Header, images: &[&[u8]]) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(header)?;
    let length = u32::try_from(json.len()).context("the bundle header is over 4 GiB")?;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(&zstd::encode_all(images.concat().as_slice(), LEVEL)?);
    Ok(bytes)
}

/// The same bundle with its payload as good as uncompressed: an archive of several finds what their images share.
pub(crate) fn stored(bundle: &[u8]) -> Result<Vec<u8>> {
    let length = bundle.get(12..16).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let payload = length.and_then(|length| 16usize.checked_add(length as usize));
    let (start, payload) =
        payload.and_then(|at| bundle.split_at_checked(at)).context("the bundle ends in its header")?;
    Ok([start, &zstd::encode_all(zstd::decode_all(payload)?.as_slice(), STORED)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_reads_what_is_written() {
        let row = |unit: &str| Row {
            family: "rms_norm".to_owned(),
            unit: unit.to_owned(),
            variant: "v2".to_owned(),
            contract: "c".to_owned(),
            source: "s".to_owned(),
            dims: BTreeMap::from([("H".to_owned(), 7168)]),
            constants: BTreeMap::from([("WARPS".to_owned(), 14)]),
            block: 448,
            min_ctas: 1,
            cluster: 1,
            smem: 56,
            registers: 40,
            spill_bytes: 0,
            offset: 0,
            bytes: 0,
            sha256: String::new(),
        };
        let header = Header {
            profile: "k26-tp8".to_owned(),
            arch: "sm_90a".to_owned(),
            kind: "cubin".to_owned(),
            toolchain: "t".to_owned(),
            every_lane_arrives: false,
            payload: 0,
            units: vec![row("first"), row("second")],
        };
        let images: [&[u8]; 2] = [b"one image", b"another"];
        let header = header.placed(&images);
        let bytes = encode(&header, &images).expect("encoded");
        assert_eq!(bytes, encode(&header, &images).expect("encoded"), "the same bytes every time");
        let read = kd_kernels::Bundle::parse("test.kdb".as_ref(), &bytes).expect("read");
        let as_written = serde_json::to_value(&header).expect("JSON");
        for (row, (image, written)) in read.header().units.iter().zip(images.iter().zip(&header.units)) {
            assert_eq!(read.image(row).expect("the image"), *image);
            assert_eq!(
                (&row.unit, row.block, row.smem, &row.dims),
                (&written.unit, written.block, written.smem, &written.dims)
            );
            assert_eq!((&row.constants, row.registers), (&written.constants, written.registers));
        }
        assert_eq!(as_written["units"][1]["offset"], 9);
        assert!(as_written.get("every_lane_arrives").is_none(), "bundles of a release do not speak of it");
        let checked = encode(&Header { every_lane_arrives: true, ..header }, &images).expect("encoded");
        let checked = kd_kernels::Bundle::parse("test.kdb".as_ref(), &checked).expect("read");
        assert!(checked.header().every_lane_arrives && !read.header().every_lane_arrives);
        assert_eq!(read.header().units.len(), 2);
        let stored = stored(&bytes).expect("stored");
        assert!(stored.windows(images[0].len()).any(|window| window == images[0]), "found as it is");
        let read = kd_kernels::Bundle::parse("test.kdb".as_ref(), &stored).expect("read");
        assert_eq!(read.image(&read.header().units[1]).expect("the image"), images[1]);
        assert!(super::stored(&bytes[..20]).is_err());
    }
}
