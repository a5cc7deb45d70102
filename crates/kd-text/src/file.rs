//! Reading the files of a model folder, no larger than they may be.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Most bytes of a JSON file or template; real ones have some tens of kilobytes.
pub(crate) const MAX_TEXT_FILE: u64 = 16 << 20;
/// Most bytes of a vocabulary; K2.6's has about 3 MB.
pub(crate) const MAX_VOCAB_FILE: u64 = 256 << 20;

/// Reads the regular file `path`. A pipe or device is refused before it is opened: it may never end.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let too_large = |len: u64| {
        let what = format!("{len} bytes long, at most {limit} expected");
        io::Error::new(io::ErrorKind::FileTooLarge, what)
    };
    if found.len() > limit {
        return Err(too_large(found.len()));
    }
    let mut bytes = Vec::new();
    // The file may have grown since it was asked.
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}
