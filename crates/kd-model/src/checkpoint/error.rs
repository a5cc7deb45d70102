//! What can be wrong with the weights of a model.

use std::path::PathBuf;

use kd_tensor::dtype::DType;
use kd_tensor::safetensors::SafeTensorsError;

use crate::share::ShareError;

/// Why a checkpoint cannot be loaded. Every message names the file, the tensor, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A shard is unreadable or damaged.
    #[error(transparent)]
    File(#[from] SafeTensorsError),
    /// Neither an index nor a single file.
    #[error("{}: no weights: expected `model.safetensors.index.json` with its shards, or `model.safetensors`", dir.display())]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
    /// The index cannot be read.
    #[error("{}: {reason}", file.display())]
    IndexIo {
        /// The index.
        file: PathBuf,
        /// What the operating system says.
        reason: std::io::Error,
    },
    /// The index is not what an index should be.
    #[error("{}: malformed index: {reason}", file.display())]
    Index {
        /// The index.
        file: PathBuf,
        /// Where and why parsing stopped.
        reason: serde_json::Error,
    },
    /// A shard name that leads out of the directory.
    #[error("{}: tensor `{tensor}` is in shard {shard:?}, expected the plain name of a `.safetensors` file", file.display())]
    ShardName {
        /// The index.
        file: PathBuf,
        /// A tensor of the shard.
        tensor: String,
        /// The name in the index.
        shard: String,
    },
    /// The index names a tensor that its shard does not hold.
    #[error("{}: no tensor `{tensor}`, although the index places it in this shard", shard.display())]
    NotInShard {
        /// The shard.
        shard: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A shard holds a tensor that the index does not place there.
    #[error("{}: tensor `{tensor}` is in this shard, but the index says {expected}", shard.display())]
    NotInIndex {
        /// The shard.
        shard: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard that the index names, or that it names none.
        expected: String,
    },
    /// The model needs a tensor that the checkpoint does not hold.
    #[error("{}: tensor `{tensor}` is missing, expected {expected}", dir.display())]
    Missing {
        /// The checkpoint.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type and shape.
        expected: String,
    },
    /// A tensor of another type or shape than the configuration calls for.
    #[error("{}: tensor `{tensor}` is {found} {found_shape:?}, expected {expected} {expected_shape:?}", file.display())]
    Mismatch {
        /// The shard.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: DType,
        /// Its shape.
        found_shape: Vec<usize>,
        /// The type that it should have.
        expected: &'static str,
        /// The shape that it should have.
        expected_shape: Vec<usize>,
    },
    /// A value that makes no sense where it stands.
    #[error("{}: tensor `{tensor}` element {index} is {found}, expected {expected}", file.display())]
    Value {
        /// The shard.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Flat index of the element.
        index: usize,
        /// The value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A routed expert that is not packed INT4.
    #[error(
        "{}: routed expert `{tensor}` is stored unquantised as {found}; supported: INT4 as `weight_packed`, \
         `weight_scale` and `weight_shape`", file.display()
    )]
    Unquantized {
        /// The shard.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: DType,
    },
    /// Input columns that do not fall into whole groups of one scale.
    #[error("INT4 matrix `{module}` is {columns} columns wide, expected a multiple of 32")]
    GroupWidth {
        /// The matrix.
        module: String,
        /// Its input columns.
        columns: usize,
    },
    /// A tensor that so many ranks cannot share.
    #[error("{}: tensor `{tensor}` cannot be shared: {problem}; ask for other ranks (--tp)", dir.display())]
    Share {
        /// The checkpoint.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
        /// The dimension and its value.
        problem: ShareError,
    },
    /// Tensors that the model has no place for: it would run without weights that its maker trained.
    #[error("{}: {count} tensor(s) that this model has no place for: {listed}", dir.display())]
    LeftOver {
        /// The checkpoint.
        dir: PathBuf,
        /// How many.
        count: usize,
        /// The first of them, each with its file.
        listed: String,
    },
}
