//! Reading files no larger than they may be, and writing files whole or not at all.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Reads the regular file `path`, which may hold `limit` bytes at most.
///
/// # Errors
/// What the system says; [`io::ErrorKind::FileTooLarge`] with both numbers; a directory, pipe or device is refused before
/// it is opened, because opening a pipe waits for a writer and a device may never end.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    read_up_to(path, limit)
}

/// As [`read_limited`], for a file that a user named: it may also be a pipe.
///
/// # Errors
/// What the system says, and [`io::ErrorKind::FileTooLarge`].
pub fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let too_large = |found: String| {
        let what = format!("{found} bytes long, at most {limit} expected");
        io::Error::new(io::ErrorKind::FileTooLarge, what)
    };
    let len = file.metadata()?.len();
    if len > limit {
        return Err(too_large(len.to_string()));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that there are too many: a pipe has no length.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(format!("more than {limit}")));
    }
    Ok(bytes)
}

/// Writes `bytes` to a file beside `path` and renames it over `path`: a reader sees the old file or the new one, and a
/// map of the old one stays valid. A link is followed; a device or pipe is written to directly.
///
/// # Errors
/// What the system says; `path` is as it was then, and nothing is left beside it.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // Renaming over a device would replace the device.
        Ok(found) if !found.is_file() => File::options().write(true).open(path)?.write_all(bytes),
        Ok(_) => replace(&path.canonicalize()?, bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(path, bytes),
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file"));
    };
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let mut file = File::create_new(&temporary)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: the error that matters is the first one.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_limit_is_read_and_one_byte_more_is_refused_with_both_numbers() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("f");
        std::fs::write(&path, b"12345").expect("written");
        assert_eq!(read_limited(&path, 5).expect("read"), b"12345");
        let error = read_limited(&path, 4).expect_err("too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "5 bytes long, at most 4 expected");
        assert!(read_limited(dir.path(), 4).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_no_files_and_never_replaced() {
        let zero = Path::new("/dev/zero");
        assert_eq!(read_limited(zero, 4).expect_err("a device").to_string(), "not a regular file");
        assert_eq!(read_up_to(zero, 4).expect_err("endless").kind(), io::ErrorKind::FileTooLarge);
        write_atomically(Path::new("/dev/null"), b"gone").expect("written");
        assert!(!std::fs::metadata("/dev/null").expect("still there").is_file());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_a_failure_leaves_nothing() {
        let dir = tempfile::tempdir().expect("folder");
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, b"old").expect("written");
        std::os::unix::fs::symlink(&real, &link).expect("linked");
        write_atomically(&link, b"new").expect("written");
        assert_eq!(std::fs::read(&real).expect("read"), b"new");
        assert!(link.is_symlink());
        assert!(write_atomically(&dir.path().join("absent/out"), b"x").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 2);
    }
}
