//! What can be wrong with a safetensors file.

use std::io;
use std::path::PathBuf;

use crate::dtype::DType;

/// Why a safetensors file, or one tensor of it, cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafeTensorsError {
    /// The operating system refused.
    #[error("{}: {reason}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system says.
        reason: io::Error,
    },
    /// A directory, pipe or device where a file was expected.
    #[error("{}: not a regular file", file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
    },
    /// Shorter than the eight bytes that hold the header's length.
    #[error("{}: not a safetensors file: {found} bytes long, at least 8 expected", file.display())]
    TooShort {
        /// The file.
        file: PathBuf,
        /// Its length in bytes.
        found: u64,
    },
    /// The header claims more bytes than the file has, or than any sane header has.
    #[error("{}: header of {found} bytes, at most {limit} expected (truncated, or not a safetensors file)", file.display())]
    HeaderLength {
        /// The file.
        file: PathBuf,
        /// The length that the file claims.
        found: u64,
        /// The most that is possible here.
        limit: u64,
    },
    /// The header is not the JSON object that it should be.
    #[error("{}: malformed header: {reason}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// Where and why parsing stopped; names a tensor that occurs twice.
        reason: serde_json::Error,
    },
    /// Offsets that run backwards or past the end of the file.
    #[error(
        "{}: tensor `{tensor}` lies at bytes {begin}..{end} of the data, which is {data_len} bytes long \
         (truncated or damaged file)", file.display()
    )]
    OutOfFile {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// First byte, counted from the end of the header.
        begin: usize,
        /// Byte after the last.
        end: usize,
        /// Bytes that the file really has after the header.
        data_len: usize,
    },
    /// Offsets that do not hold exactly the shape.
    #[error("{}: tensor `{tensor}` has {found} bytes, expected {expected} for {dtype} {shape:?}", file.display())]
    SizeMismatch {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Bytes between its offsets.
        found: usize,
        /// Bytes that type and shape ask for, or why they ask for none.
        expected: String,
        /// Declared type.
        dtype: DType,
        /// Declared shape.
        shape: Vec<usize>,
    },
    /// Tensors that overlap or leave a hole: the format lays them end to end.
    #[error("{}: tensor `{tensor}` begins at byte {found} of the data, expected {expected} (overlap or gap)", file.display())]
    NotContiguous {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        found: usize,
        /// Where the tensor before it ends.
        expected: usize,
    },
    /// Bytes after the last tensor.
    #[error("{}: {found} bytes of data, but the tensors end at byte {expected}", file.display())]
    TrailingBytes {
        /// The file.
        file: PathBuf,
        /// Bytes after the header.
        found: usize,
        /// Where the last tensor ends.
        expected: usize,
    },
    /// An element type that this engine has no name for.
    #[error("{}: tensor `{tensor}` has an unknown element type {found}", file.display())]
    UnknownDType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type as the header names it.
        found: String,
    },
    /// No tensor of that name.
    #[error("{}: no tensor `{tensor}`", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Another element type than the caller needs.
    #[error("{}: tensor `{tensor}` is {found}, expected {expected}", file.display())]
    WrongDType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the file holds.
        found: DType,
        /// What is needed.
        expected: &'static str,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{}: tensor `{tensor}` element {index} is {found}, expected 0 or 1", file.display())]
    NotABool {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Flat index of the element.
        index: usize,
        /// The byte.
        found: u8,
    },
    /// Two entries of one name in what should be written.
    #[error("{}: tensor `{tensor}` is given twice", file.display())]
    DuplicateEntry {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The safetensors crate refused to write.
    #[error("{}: cannot be written: {reason}", file.display())]
    Serialize {
        /// The file.
        file: PathBuf,
        /// Its reason.
        reason: ::safetensors::SafeTensorError,
    },
}
