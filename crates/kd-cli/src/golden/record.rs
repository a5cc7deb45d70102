//! Recording forward passes, and collecting arrays under their golden names.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use kd_model::Trace;
use kd_moe::Routing;
use kd_tensor::Matrix;
use kd_tensor::safetensors::{SafeTensors, TensorData, write_safetensors};

/// Arrays to be written, by name.
#[derive(Default)]
pub(crate) struct Arrays(Vec<(String, TensorData<'static>)>);

impl Arrays {
    /// A float array of the given shape.
    pub(crate) fn floats(&mut self, name: String, shape: &[usize], values: &[f32]) {
        self.0.push((name, TensorData::owned(shape, values)));
    }

    /// A list of 64-bit integers.
    pub(crate) fn integers(&mut self, name: String, values: &[i64]) {
        self.0.push((name, TensorData::owned(&[values.len()], values)));
    }

    /// A 32-bit integer array of the given shape.
    pub(crate) fn ids(&mut self, name: String, shape: &[usize], values: &[i32]) {
        self.0.push((name, TensorData::owned(shape, values)));
    }

    /// Writes the file, or fails if there is nothing to write: inputs that match nothing are a mistake.
    pub(crate) fn write(self, inputs: &SafeTensors, out: &Path) -> anyhow::Result<()> {
        if self.0.is_empty() {
            bail!("{} holds no golden inputs that this command knows", inputs.path().display());
        }
        write_safetensors(out, self.0).with_context(|| format!("cannot write {}", out.display()))
    }
}

/// The middle part of every input named `group.<name>.field`, in order.
pub(crate) fn names(inputs: &SafeTensors, group: &str) -> Vec<String> {
    let middle = |name: &str| {
        let mut parts = name.split('.');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(first), Some(middle), Some(_)) if first == group => Some(middle.to_owned()),
            _ => None,
        }
    };
    inputs.names().filter_map(middle).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A list of token ids.
pub(crate) fn token_ids(inputs: &SafeTensors, name: &str) -> anyhow::Result<Vec<u32>> {
    let values = inputs.integers(name)?;
    values
        .iter()
        .map(|&id| u32::try_from(id).with_context(|| format!("{name} holds {id}, which is no token id")))
        .collect()
}

/// Rows of several passes, one below the other.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) width: usize,
    pub(crate) data: Vec<f32>,
}

impl Rows {
    pub(crate) fn extend(&mut self, rows: &Matrix) {
        self.width = rows.cols();
        self.data.extend_from_slice(rows.data());
    }

    /// Row `i`.
    pub(crate) fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..][..self.width]
    }
}

/// What a target computed for the rows of one or several passes.
#[derive(Default)]
pub(crate) struct Recorder {
    /// By depth, the embedding first.
    pub(crate) hidden: Vec<Rows>,
    /// By MoE layer.
    pub(crate) routing: Vec<RoutingRows>,
}

/// The routing of one layer.
#[derive(Default)]
pub(crate) struct RoutingRows {
    pub(crate) layer: usize,
    pub(crate) top_k: usize,
    pub(crate) ids: Vec<u32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) scores: Rows,
}

impl Trace for Recorder {
    fn hidden(&mut self, depth: usize, hidden: &Matrix) {
        if self.hidden.len() <= depth {
            self.hidden.resize_with(depth + 1, Rows::default);
        }
        self.hidden[depth].extend(hidden);
    }

    fn routing(&mut self, layer: usize, routing: &Routing) {
        let at = self.routing.iter().position(|r| r.layer == layer).unwrap_or_else(|| {
            self.routing.push(RoutingRows { layer, top_k: routing.top_k, ..RoutingRows::default() });
            self.routing.len() - 1
        });
        let rows = &mut self.routing[at];
        rows.ids.extend(&routing.ids);
        rows.weights.extend(&routing.weights);
        rows.scores.extend(&routing.scores);
    }
}
