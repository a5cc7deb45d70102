//! Which tensor is in which shard: `model.safetensors.index.json`, trusted only as far as the shards agree.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use kd_tensor::safetensors::SafeTensors;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::CheckpointError;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The shards of `dir` and, for every tensor, the number of its shard.
pub(super) fn open(dir: &Path) -> Result<(Vec<SafeTensors>, BTreeMap<String, usize>), CheckpointError> {
    let file = dir.join(INDEX);
    match std::fs::read(&file) {
        Ok(bytes) => open_shards(dir, &file, &bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => open_single(dir),
        Err(reason) => Err(CheckpointError::IndexIo { file, reason }),
    }
}

fn open_single(dir: &Path) -> Result<(Vec<SafeTensors>, BTreeMap<String, usize>), CheckpointError> {
    let file = dir.join(SINGLE);
    if !file.exists() {
        return Err(CheckpointError::NoWeights { dir: dir.to_path_buf() });
    }
    let shard = SafeTensors::open(file)?;
    let tensors = shard.names().map(|name| (name.to_owned(), 0)).collect();
    Ok((vec![shard], tensors))
}

fn open_shards(
    dir: &Path,
    file: &Path,
    bytes: &[u8],
) -> Result<(Vec<SafeTensors>, BTreeMap<String, usize>), CheckpointError> {
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|reason| CheckpointError::Index { file: file.to_path_buf(), reason })?;
    let mut shards = Vec::new();
    let mut number_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut tensors = BTreeMap::new();
    for (tensor, name) in &index.weight_map.0 {
        let number = match number_of.get(name.as_str()) {
            Some(&number) => number,
            None => {
                shards.push(SafeTensors::open(shard_path(dir, file, tensor, name)?)?);
                number_of.insert(name, shards.len() - 1);
                shards.len() - 1
            }
        };
        if !shards[number].contains(tensor) {
            let shard = shards[number].path().to_path_buf();
            return Err(CheckpointError::NotInShard { shard, tensor: tensor.clone() });
        }
        tensors.insert(tensor.clone(), number);
    }
    for (number, shard) in shards.iter().enumerate() {
        for tensor in shard.names() {
            let placed = tensors.get(tensor);
            if placed != Some(&number) {
                let expected = placed.map_or_else(
                    || "nothing of it".to_owned(),
                    |&other| shards[other].path().display().to_string(),
                );
                let shard = shard.path().to_path_buf();
                return Err(CheckpointError::NotInIndex { shard, tensor: tensor.to_owned(), expected });
            }
        }
    }
    Ok((shards, tensors))
}

/// A shard lies beside its index: a name that leads anywhere else reads files that are none of the model's.
fn shard_path(dir: &Path, file: &Path, tensor: &str, name: &str) -> Result<PathBuf, CheckpointError> {
    let mut components = Path::new(name).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(part)), None) if part == name);
    if plain && name.ends_with(".safetensors") && !name.contains(['\\', '\0']) {
        return Ok(dir.join(name));
    }
    Err(CheckpointError::ShardName {
        file: file.to_path_buf(),
        tensor: tensor.to_owned(),
        shard: name.to_owned(),
    })
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Tensor name to shard name, with a tensor that is named twice refused: a map would silently keep the last.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut tensors = BTreeMap::new();
        while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
            if tensors.contains_key(&tensor) {
                return Err(A::Error::custom(format!("tensor `{tensor}` occurs twice")));
            }
            tensors.insert(tensor, shard);
        }
        Ok(WeightMap(tensors))
    }
}
