//! Reading a bundle: every image of one profile and architecture in one file.
//!
//! ```text
//! "KDBUNDLE"  u32 format  u32 header length  header (JSON)  zstd(images, one after another)
//! ```
//!
//! Integers are little-endian. `cargo xtask build-kernels` writes it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::KernelError;

const MAGIC: &[u8; 8] = b"KDBUNDLE";
const FORMAT: u32 = 1;
/// The largest payload that is unpacked; a profile has a few megabytes.
const MOST_PAYLOAD: u64 = 1 << 30;

/// What a bundle says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Header {
    /// Model shape.
    pub profile: String,
    /// Architecture of the images.
    pub arch: String,
    /// `cubin` or `ptx`.
    pub kind: String,
    /// The compiler's build.
    pub toolchain: String,
    /// Whether every lane of a warp arrives at a barrier where one stands for it: images for racecheck, not for serving.
    #[serde(default)]
    pub every_lane_arrives: bool,
    /// Bytes of the payload.
    pub payload: u64,
    /// One row per image.
    pub units: Vec<Row>,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Row {
    /// Family.
    pub family: String,
    /// Unit, also the name of the entry.
    pub unit: String,
    /// Variant.
    pub variant: String,
    /// Fingerprint of the declaration.
    pub contract: String,
    /// Hash of everything that the image was made from.
    pub source: String,
    /// Dimensions.
    pub dims: BTreeMap<String, i64>,
    /// Tunables and constants.
    pub constants: BTreeMap<String, i64>,
    /// Threads of a CTA.
    pub block: u32,
    /// CTAs per SM that the image leaves room for.
    pub min_ctas: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Bytes of dynamic shared memory.
    pub smem: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes spilled.
    pub spill_bytes: u32,
    /// Place in the payload.
    pub offset: u64,
    /// Size in the payload.
    pub bytes: u64,
    /// Hash of the image.
    pub sha256: String,
}

impl Row {
    /// The dimension `name`, as a launcher's `Dims` takes it and as a length.
    ///
    /// # Errors
    /// A unit without that dimension.
    pub fn dim(&self, name: &str) -> Result<(i64, usize), KernelError> {
        let value = self.dims.get(name).copied();
        let length = value.and_then(|value| usize::try_from(value).ok());
        let missing = || KernelError::NoDimension { unit: self.unit.clone(), name: name.to_owned() };
        value.zip(length).ok_or_else(missing)
    }
}

/// A bundle in memory.
#[derive(Clone, Debug)]
pub struct Bundle {
    path: PathBuf,
    header: Header,
    payload: Vec<u8>,
}

impl Bundle {
    /// Reads the bundle at `path`.
    ///
    /// # Errors
    /// A file that cannot be read, or that is no whole bundle of this format.
    pub fn open(path: &Path) -> Result<Self, KernelError> {
        let bytes = kd_tensor::file::read_limited(path, MOST_PAYLOAD)
            .map_err(|error| KernelError::BadBundle { path: path.to_owned(), what: error.to_string() })?;
        Self::parse(path, &bytes)
    }

    /// Reads a bundle from `bytes`; `path` is used in messages.
    ///
    /// # Errors
    /// As [`Bundle::open`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, KernelError> {
        let bad = |what: String| KernelError::BadBundle { path: path.to_owned(), what };
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("not a kernel bundle".to_owned()))?;
        let (format, rest) = take_u32(rest).ok_or_else(|| bad("cut short".to_owned()))?;
        if format != FORMAT {
            return Err(bad(format!("format {format}, but this program reads {FORMAT}")));
        }
        let (length, rest) = take_u32(rest).ok_or_else(|| bad("cut short".to_owned()))?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (json, packed) = rest.split_at_checked(length).ok_or_else(|| bad("cut short".to_owned()))?;
        let header: Header = serde_json::from_slice(json).map_err(|error| bad(format!("header: {error}")))?;
        if header.payload > MOST_PAYLOAD {
            return Err(bad(format!("payload of {} bytes, the most is {MOST_PAYLOAD}", header.payload)));
        }
        let mut payload = Vec::new();
        let stream = zstd::Decoder::new(packed).map_err(|error| bad(format!("payload: {error}")))?;
        // One byte more than promised is enough to see that the promise is broken.
        stream
            .take(header.payload + 1)
            .read_to_end(&mut payload)
            .map_err(|error| bad(format!("payload: {error}")))?;
        if payload.len() as u64 != header.payload {
            return Err(bad(format!("payload is not the {} bytes that the header promises", header.payload)));
        }
        for row in &header.units {
            if row.offset.checked_add(row.bytes).is_none_or(|end| end > header.payload) {
                return Err(bad(format!("{} ends beyond the payload", row.unit)));
            }
        }
        Ok(Self { path: path.to_owned(), header, payload })
    }

    /// What the bundle says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where the bundle came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The image of `row`, checked against its hash.
    ///
    /// # Errors
    /// A row of another bundle, or an image that was altered.
    pub fn image(&self, row: &Row) -> Result<&[u8], KernelError> {
        let bad = |what: &str| KernelError::BadBundle {
            path: self.path.clone(),
            what: format!("{}: {what}", row.unit),
        };
        let range = usize::try_from(row.offset).ok().zip(usize::try_from(row.bytes).ok());
        let image = range.and_then(|(offset, bytes)| self.payload.get(offset..offset.checked_add(bytes)?));
        let image = image.ok_or_else(|| bad("not in this bundle"))?;
        let hash: String = Sha256::digest(image).iter().map(|byte| format!("{byte:02x}")).collect();
        if hash == row.sha256 { Ok(image) } else { Err(bad("the image does not match its hash")) }
    }
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*head), rest))
}
