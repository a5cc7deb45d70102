//! How fast the disk of a model folder reads.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Finding;

/// Bytes of one read. Direct reads want aligned memory and whole blocks.
const CHUNK: usize = 8 << 20;
const ALIGN: usize = 4096;
/// The measurement ends at the first of these.
const MOST_BYTES: u64 = 2 << 30;
const MOST_TIME: Duration = Duration::from_secs(2);
/// Less than this says nothing about a rate.
const LEAST_BYTES: u64 = 64 << 20;

pub(super) fn speed(dir: &Path) -> Finding {
    match measure(dir) {
        Ok(text) => text,
        Err(error) => Finding::bad("disk", format!("{}: {error}", dir.display())),
    }
}

fn measure(dir: &Path) -> io::Result<Finding> {
    let Some((file, size)) = largest(dir)? else {
        return Ok(Finding::note("disk", format!("{}: no .safetensors file to read", dir.display())));
    };
    let (mut open, direct) = match open_direct(&file) {
        Ok(open) => (open, true),
        Err(_) => (File::open(&file)?, false),
    };
    let begin = Instant::now();
    let bytes = read(&mut open)?;
    let rate = bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9) / 1e9;
    let name = file.display();
    if bytes < LEAST_BYTES {
        let text = format!("{name} reads; {:.1} MB are too few to measure", size as f64 / 1e6);
        return Ok(Finding::ok("disk", text));
    }
    let how = if direct { "past the page cache" } else { "maybe from the page cache" };
    Ok(Finding::ok(
        "disk",
        format!("{rate:.2} GB/s sequential, {how} ({:.2} GB of {name})", bytes as f64 / 1e9),
    ))
}

fn largest(dir: &Path) -> io::Result<Option<(PathBuf, u64)>> {
    let mut best: Option<(PathBuf, u64)> = None;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let Ok(found) = std::fs::metadata(&path) else { continue };
        let weights = found.is_file() && path.extension().is_some_and(|ext| ext == "safetensors");
        if weights && best.as_ref().is_none_or(|(_, size)| found.len() > *size) {
            best = Some((path, found.len()));
        }
    }
    Ok(best)
}

#[cfg(target_os = "linux")]
fn open_direct(file: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_DIRECT).open(file)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_file: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

fn read(file: &mut File) -> io::Result<u64> {
    let mut buffer = vec![0u8; CHUNK + ALIGN];
    let start = buffer.as_ptr().align_offset(ALIGN).min(ALIGN);
    let chunk = &mut buffer[start..start + CHUNK];
    let (begin, mut bytes) = (Instant::now(), 0);
    while bytes < MOST_BYTES && begin.elapsed() < MOST_TIME {
        match file.read(chunk)? {
            0 => break,
            n => bytes += n as u64,
        }
    }
    Ok(bytes)
}
