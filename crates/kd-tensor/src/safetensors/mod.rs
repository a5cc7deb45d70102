//! Safetensors files: memory-mapped reading with every extent checked, and atomic writing.

mod error;
mod header;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

pub use self::error::SafeTensorsError;
pub use self::write::{TensorData, write_safetensors};

use self::header::Entry;
use crate::dtype::{DType, Element};
use crate::storage::{FileMap, Storage};

/// A memory-mapped safetensors file whose header agrees with the file in every byte.
pub struct SafeTensors {
    path: PathBuf,
    map: FileMap,
    entries: BTreeMap<String, Entry>,
}

/// One tensor of a [`SafeTensors`] file.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The raw little-endian elements in row-major order.
    pub bytes: &'a [u8],
}

impl SafeTensors {
    /// Maps `path` and checks its header: no tensor overlaps another, leaves a gap or reaches past the end of the file.
    ///
    /// # Errors
    /// Every variant of [`SafeTensorsError`] that speaks of a file or of a header.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, SafeTensorsError> {
        let path = path.into();
        let io = |reason| SafeTensorsError::Io { file: path.clone(), reason };
        // Asked before opening: opening a pipe would wait for a writer.
        if !std::fs::metadata(&path).map_err(io)?.is_file() {
            return Err(SafeTensorsError::NotAFile { file: path });
        }
        let file = File::open(&path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        // An empty file cannot be mapped everywhere.
        if len == 0 {
            return Err(SafeTensorsError::TooShort { file: path, found: 0 });
        }
        let map = FileMap::new(&file).map_err(io)?;
        let entries = header::read(&path, map.bytes())?;
        Ok(Self { path, map, entries })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the file holds no tensor at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The names, in lexicographic order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// All tensors, in lexicographic order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.entries.iter().map(|(name, entry)| self.view(name, entry))
    }

    /// One tensor.
    ///
    /// # Errors
    /// [`SafeTensorsError::Missing`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, SafeTensorsError> {
        let (name, entry) = self.find(name)?;
        Ok(self.view(name, entry))
    }

    /// The elements of one tensor, in place where the file has them aligned.
    ///
    /// # Errors
    /// [`SafeTensorsError::Missing`], or [`SafeTensorsError::WrongDType`] if the tensor is not of `T`'s type.
    pub fn storage<T: Element>(&self, name: &str) -> Result<Storage<T>, SafeTensorsError> {
        let (_, entry) = self.find(name)?;
        let wrong = || self.wrong_dtype(name, entry.dtype, T::DTYPE.name());
        if entry.dtype != T::DTYPE {
            return Err(wrong());
        }
        Storage::from_map(&self.map, entry.bytes.clone()).ok_or_else(wrong)
    }

    /// The values of an I32 or I64 tensor.
    ///
    /// # Errors
    /// [`SafeTensorsError::Missing`] or [`SafeTensorsError::WrongDType`].
    pub fn integers(&self, name: &str) -> Result<Vec<i64>, SafeTensorsError> {
        let (_, entry) = self.find(name)?;
        match entry.dtype {
            DType::I32 => Ok(self.storage::<i32>(name)?.iter().map(|&value| i64::from(value)).collect()),
            DType::I64 => Ok(self.storage::<i64>(name)?.to_vec()),
            found => Err(self.wrong_dtype(name, found, "I32 or I64")),
        }
    }

    /// The values of a BOOL tensor.
    ///
    /// # Errors
    /// [`SafeTensorsError::Missing`], [`SafeTensorsError::WrongDType`] or [`SafeTensorsError::NotABool`].
    pub fn bools(&self, name: &str) -> Result<Vec<bool>, SafeTensorsError> {
        let tensor = self.tensor(name)?;
        if tensor.dtype != DType::Bool {
            return Err(self.wrong_dtype(name, tensor.dtype, "BOOL"));
        }
        let bool_of = |(index, &byte)| match byte {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(SafeTensorsError::NotABool {
                file: self.path.clone(),
                tensor: name.to_owned(),
                index,
                found,
            }),
        };
        tensor.bytes.iter().enumerate().map(bool_of).collect()
    }

    fn find(&self, name: &str) -> Result<(&str, &Entry), SafeTensorsError> {
        let missing = || SafeTensorsError::Missing { file: self.path.clone(), tensor: name.to_owned() };
        self.entries.get_key_value(name).map(|(name, entry)| (name.as_str(), entry)).ok_or_else(missing)
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> TensorView<'a> {
        let bytes = &self.map.bytes()[entry.bytes.clone()];
        TensorView { name, dtype: entry.dtype, shape: &entry.shape, bytes }
    }

    fn wrong_dtype(&self, name: &str, found: DType, expected: &'static str) -> SafeTensorsError {
        SafeTensorsError::WrongDType { file: self.path.clone(), tensor: name.to_owned(), found, expected }
    }
}

impl std::fmt::Debug for SafeTensors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SafeTensors({}, {} tensors)", self.path.display(), self.len())
    }
}
