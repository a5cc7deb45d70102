//! Stored costs of passes: written by `kd plan`, read by `--calibration`.

use std::path::Path;

use anyhow::{Context, bail};
use kd_attn::KvCacheDtype;
use kd_engine::budget::{Stored, StoredCell};
use kd_engine::{Engine, Models};
use kd_tensor::file::write_atomically;
use serde::{Deserialize, Serialize};

use crate::args::cache_name;
use crate::{input, models};

/// Version of the file's layout.
const VERSION: u32 = 3;

/// A calibration file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    /// What it holds for.
    models: String,
    device: String,
    threads: usize,
    ranks: usize,
    /// What the target's pages held; files from before there was a choice do not say.
    #[serde(default = "auto")]
    kv_cache_dtype: String,
    verify: Vec<Cell>,
    draft: Vec<Cell>,
    /// Seconds of reading one committed token into the drafter's context.
    read_token: Option<f64>,
}

fn auto() -> String {
    cache_name(KvCacheDtype::Auto).to_owned()
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    /// Streams of a pass; they may have several rows each.
    streams: usize,
    /// Rows of a verify pass, or streams that draft.
    size: usize,
    context: usize,
    seconds: f64,
}

/// Writes what was measured with these models at `place`: device and threads.
pub(crate) fn write(
    path: &Path,
    models: &Models,
    (device, threads): &(String, usize),
    stored: &Stored,
) -> anyhow::Result<()> {
    let cells = |cells: &[StoredCell]| {
        let cell = |c: &StoredCell| Cell {
            streams: c.streams,
            size: c.size,
            context: c.context,
            seconds: c.seconds,
        };
        cells.iter().map(cell).collect()
    };
    let file = File {
        version: VERSION,
        models: models::describe(models),
        device: device.clone(),
        threads: *threads,
        ranks: models.target.ranks(),
        kv_cache_dtype: cache_name(models.target.kv_cache_dtype()).to_owned(),
        verify: cells(&stored.verify),
        draft: cells(&stored.draft),
        read_token: stored.read_token,
    };
    let mut text = serde_json::to_string_pretty(&file)?;
    text.push('\n');
    write_atomically(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Lets the engine's automatic budget start from the calibration that a flag names, if it does.
/// `place` is where it runs: device and threads.
pub(crate) fn seed(engine: &mut Engine, place: &(String, usize), path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let read = || -> anyhow::Result<Stored> { check(engine.models(), place, &input::bytes(path)?) };
    let stored = read().with_context(|| format!("cannot use the calibration {}", path.display()))?;
    engine.budget_mut().seed(&stored);
    Ok(())
}

fn check(models: &Models, (device, threads): &(String, usize), bytes: &[u8]) -> anyhow::Result<Stored> {
    let file: File = serde_json::from_slice(bytes)?;
    let present = [
        ("version", file.version.to_string(), VERSION.to_string()),
        ("models", file.models, models::describe(models)),
        ("device", file.device, device.clone()),
        ("threads", file.threads.to_string(), threads.to_string()),
        ("ranks", file.ranks.to_string(), models.target.ranks().to_string()),
        ("kv_cache_dtype", file.kv_cache_dtype, cache_name(models.target.kv_cache_dtype()).to_owned()),
    ];
    for (field, found, wanted) in present {
        if found != wanted {
            bail!(
                "its {field} is {found:?}, but here it is {wanted:?}; measure again with kd plan --calibrate"
            );
        }
    }
    let cells = |name: &str, cells: Vec<Cell>| -> anyhow::Result<Vec<StoredCell>> {
        let checked = cells.into_iter().enumerate().map(|(i, c)| {
            if !(c.seconds > 0.0 && c.seconds.is_finite()) || c.size == 0 {
                bail!("{name} {i} has size {} and {} seconds, which must be positive", c.size, c.seconds);
            }
            Ok(StoredCell { streams: c.streams, size: c.size, context: c.context, seconds: c.seconds })
        });
        checked.collect()
    };
    Ok(Stored {
        verify: cells("verify", file.verify)?,
        draft: cells("draft", file.draft)?,
        read_token: file.read_token,
    })
}
