//! The header of a safetensors file, trusted for nothing: every extent is checked against the file.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use ::safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::SafeTensorsError;
use crate::dtype::DType;

/// Bytes before the header: its length as a little-endian u64.
const LENGTH_FIELD: usize = 8;
/// The format's own limit on a header.
const MAX_HEADER: usize = 100_000_000;

/// Where one tensor lies in the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Bytes of the whole file, inside it.
    pub(super) bytes: Range<usize>,
}

/// Reads and checks the header of the file `path`, whose content is `bytes`.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Entry>, SafeTensorsError> {
    let file = || path.to_path_buf();
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_FIELD>() else {
        return Err(SafeTensorsError::TooShort { file: file(), found: bytes.len() as u64 });
    };
    let found = u64::from_le_bytes(*length);
    let limit = rest.len().min(MAX_HEADER);
    let too_long = || SafeTensorsError::HeaderLength { file: file(), found, limit: limit as u64 };
    let header_len = usize::try_from(found).ok().filter(|&len| len <= limit).ok_or_else(too_long)?;
    let (header, data) = rest.split_at(header_len);
    let header: Header =
        serde_json::from_slice(header).map_err(|reason| SafeTensorsError::Header { file: file(), reason })?;
    check(path, header.0, LENGTH_FIELD + header_len, data.len())
}

/// Turns offsets into byte ranges of the file, refusing any that the data does not hold exactly.
fn check(
    path: &Path,
    mut tensors: Vec<(String, TensorInfo)>,
    data_start: usize,
    data_len: usize,
) -> Result<BTreeMap<String, Entry>, SafeTensorsError> {
    let file = || path.to_path_buf();
    let outside = |(_, info): &(String, TensorInfo)| {
        let (begin, end) = info.data_offsets;
        begin > end || end > data_len
    };
    if let Some(i) = tensors.iter().position(outside) {
        let (tensor, info) = tensors.swap_remove(i);
        let (begin, end) = info.data_offsets;
        return Err(SafeTensorsError::OutOfFile { file: file(), tensor, begin, end, data_len });
    }
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut entries = BTreeMap::new();
    let mut expected = 0;
    for (tensor, info) in tensors {
        let (begin, end) = info.data_offsets;
        if begin != expected {
            return Err(SafeTensorsError::NotContiguous { file: file(), tensor, found: begin, expected });
        }
        let Some(dtype) = DType::from_safetensors(info.dtype) else {
            return Err(SafeTensorsError::UnknownDType {
                file: file(),
                tensor,
                found: format!("{:?}", info.dtype),
            });
        };
        let size = dtype.byte_len(&info.shape);
        if size != Some(end - begin) {
            return Err(SafeTensorsError::SizeMismatch {
                file: file(),
                tensor,
                found: end - begin,
                expected: size.map_or_else(|| "a size that can exist".to_owned(), |size| size.to_string()),
                dtype,
                shape: info.shape,
            });
        }
        expected = end;
        entries
            .insert(tensor, Entry { dtype, shape: info.shape, bytes: data_start + begin..data_start + end });
    }
    if expected != data_len {
        return Err(SafeTensorsError::TrailingBytes { file: file(), found: data_len, expected });
    }
    Ok(entries)
}

/// The tensors of a header in the order in which they stand there.
///
/// A map type would silently keep the last of two tensors of one name.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors: Vec<(String, TensorInfo)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor `{name}` occurs twice")));
            }
            if name == "__metadata__" {
                map.next_value::<Option<HashMap<String, String>>>()?;
            } else {
                let info = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
                tensors.push((name, info));
            }
        }
        Ok(Header(tensors))
    }
}
