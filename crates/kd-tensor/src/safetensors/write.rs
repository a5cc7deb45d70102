//! Writing a safetensors file whole or not at all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ::safetensors::{Dtype, View};

use super::SafeTensorsError;
use crate::dtype::{DType, Element};

/// One tensor to be written.
#[derive(Clone, Debug)]
pub struct TensorData<'a> {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> TensorData<'a> {
    /// A tensor of `T`s; whether `values` fills `shape` is checked on writing.
    pub fn new<T: Element>(shape: &[usize], values: &'a [T]) -> Self {
        Self { dtype: T::DTYPE, shape: shape.to_vec(), bytes: Cow::Borrowed(bytemuck::cast_slice(values)) }
    }

    /// As [`TensorData::new`], keeping the values.
    pub fn owned<T: Element>(shape: &[usize], values: &[T]) -> TensorData<'static> {
        TensorData {
            dtype: T::DTYPE,
            shape: shape.to_vec(),
            bytes: Cow::Owned(bytemuck::cast_slice(values).to_vec()),
        }
    }

    /// A tensor of any element type from its raw little-endian bytes.
    pub fn raw(dtype: DType, shape: &[usize], bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes: bytes.into() }
    }
}

impl View for &TensorData<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype.to_safetensors()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes `entries` to `path`, replacing what is there only once the new file is complete.
///
/// # Errors
/// [`SafeTensorsError::DuplicateEntry`], [`SafeTensorsError::SizeMismatch`] when values do not fill their shape,
/// [`SafeTensorsError::Io`] and [`SafeTensorsError::Serialize`].
pub fn write_safetensors<'a, N: Into<String>>(
    path: impl AsRef<Path>,
    entries: impl IntoIterator<Item = (N, TensorData<'a>)>,
) -> Result<(), SafeTensorsError> {
    let path = path.as_ref();
    let file = || path.to_path_buf();
    let mut tensors = BTreeMap::new();
    for (name, data) in entries {
        let tensor = name.into();
        let size = data.dtype.byte_len(&data.shape);
        if size != Some(data.bytes.len()) {
            let expected = size.map_or_else(|| "a size that can exist".to_owned(), |size| size.to_string());
            let TensorData { dtype, shape, bytes } = data;
            return Err(SafeTensorsError::SizeMismatch {
                file: file(),
                tensor,
                found: bytes.len(),
                expected,
                dtype,
                shape,
            });
        }
        if tensors.contains_key(&tensor) {
            return Err(SafeTensorsError::DuplicateEntry { file: file(), tensor });
        }
        tensors.insert(tensor, data);
    }
    let bytes = ::safetensors::serialize(tensors.iter(), None)
        .map_err(|reason| SafeTensorsError::Serialize { file: file(), reason })?;
    write_atomically(path, &bytes).map_err(|reason| SafeTensorsError::Io { file: file(), reason })
}

/// Writes a sibling file and renames it over `path`: a map of the old file stays valid, a reader sees old or new.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file"));
    };
    let mut temporary_name = name.to_owned();
    temporary_name.push(format!(".{}.tmp", std::process::id()));
    let temporary: PathBuf = path.with_file_name(temporary_name);
    let mut file = File::create_new(&temporary)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: the error that matters is the first one.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
