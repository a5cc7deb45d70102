//! Kernels that move rows, past L2: norms, cache append and commit beside the bytes they must move.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::samples;
use crate::families::{add_rms_norm, commit, mla_inputs, rms_norm};
use crate::selftest::{Random, upload};
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};

/// Every operand of many rows has at least so many bytes: four times the L2 of an H200.
const OPERAND: usize = 256 << 20;
const LAUNCHES: usize = 4;
/// Replays of a graph; the fastest counts.
const REPLAYS: usize = 3;
const EPS: f32 = 1e-5;
/// Layers of a commit, as many as K2.6 has.
const LAYERS: usize = 61;
/// Positions of the rotary table.
const POSITIONS: usize = 4096;

/// One kernel past L2.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsLine {
    /// Family.
    pub family: &'static str,
    /// Rows, or entries of all layers.
    pub rows: usize,
    /// Bytes that a launch must read and write.
    pub bytes: usize,
    /// Microseconds of a launch.
    pub micros: f64,
}

impl RowsLine {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.micros * 1e6
    }
}

/// Measures the kernels of the profile's widths: hidden size `hidden`, compressed queries of `query` values, and cache entries
/// of `latent` values and `rope` that rotate.
///
/// # Errors
/// A width without a kernel, memory that does not suffice, a launch that fails.
pub fn rows(
    device: &Device,
    kernels: &Kernels,
    hidden: usize,
    [query, latent, rope]: [usize; 3],
) -> Result<Vec<RowsLine>, KernelError> {
    let stream = device.stream()?;
    let mut lines = norms(&stream, kernels, hidden)?;
    lines.push(append(&stream, kernels, [query, latent, rope])?);
    lines.push(commits(&stream, kernels, latent + rope)?);
    Ok(lines)
}

/// Microseconds of one of the [`LAUNCHES`] that `record` makes.
fn time<R>(
    stream: &Stream,
    resources: R,
    record: fn(&Stream, &mut R) -> Result<(), KernelError>,
) -> Result<f64, KernelError> {
    let graph = stream.capture(resources, record)?;
    let fastest = samples(&graph, REPLAYS)?.into_iter().fold(f64::INFINITY, f64::min);
    Ok(fastest / LAUNCHES as f64)
}

/// Random values, of which a part repeats: what they are does not matter to the time.
fn values(stream: &Stream, count: usize) -> Result<CudaSlice<bf16>, KernelError> {
    let part = Random::new(1).values(count.div_ceil(64), 1.0);
    upload(stream, &part.into_iter().cycle().take(count).collect::<Vec<_>>())
}

fn norms(stream: &Stream, kernels: &Kernels, hidden: usize) -> Result<Vec<RowsLine>, KernelError> {
    struct Operands {
        norm: rms_norm::RmsNorm,
        fused: add_rms_norm::AddRmsNorm,
        rows: usize,
        hidden: usize,
        x: CudaSlice<bf16>,
        h: CudaSlice<bf16>,
        gain: CudaSlice<bf16>,
        y: CudaSlice<bf16>,
    }
    let rows = OPERAND.div_ceil(hidden * size_of::<bf16>());
    let h = i64::try_from(hidden).unwrap_or(i64::MAX);
    let mut own = Operands {
        norm: rms_norm::RmsNorm::load(kernels, rms_norm::Dims { h })?,
        fused: add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h })?,
        rows,
        hidden,
        x: values(stream, rows * hidden)?,
        h: values(stream, rows * hidden)?,
        gain: values(stream, hidden)?,
        y: values(stream, rows * hidden)?,
    };
    let plain = time(stream, &mut own, |stream, own| {
        let shape = [own.rows, own.hidden];
        for _ in 0..LAUNCHES {
            let x = TensorRef::new(stream, own.x.as_view(), shape)?;
            let gain = TensorRef::new(stream, own.gain.as_view(), [own.hidden])?;
            let y = TensorMut::new(stream, own.y.as_view_mut(), shape)?;
            own.norm.launch(stream, Choice::Auto, rms_norm::Args { x, gain, eps: EPS, y })?;
        }
        Ok(())
    })?;
    let fused = time(stream, &mut own, |stream, own| {
        let shape = [own.rows, own.hidden];
        for _ in 0..LAUNCHES {
            let h = TensorMut::new(stream, own.h.as_view_mut(), shape)?;
            let parts = TensorRef::new(stream, own.x.as_view(), [1, own.rows, own.hidden])?;
            let gain = TensorRef::new(stream, own.gain.as_view(), [own.hidden])?;
            let y = TensorMut::new(stream, own.y.as_view_mut(), shape)?;
            own.fused.launch(
                stream,
                Choice::Auto,
                add_rms_norm::Args {
                    h,
                    parts,
                    gain,
                    eps: EPS,
                    early: 0,
                    tap: TensorMut::none([0, own.hidden]),
                    y,
                },
            )?;
        }
        Ok(())
    })?;
    let operand = rows * hidden * size_of::<bf16>();
    Ok(vec![
        RowsLine { family: "rms_norm", rows, bytes: 2 * operand, micros: plain },
        RowsLine { family: "add_rms_norm", rows, bytes: 4 * operand, micros: fused },
    ])
}

fn append(stream: &Stream, kernels: &Kernels, sizes: [usize; 3]) -> Result<RowsLine, KernelError> {
    let [q, c, r] = sizes;
    let (joint, width) = (q + c + r, c + r);
    let rows = OPERAND.div_ceil(width * size_of::<bf16>());
    let [dim_q, dim_c, dim_r] = sizes.map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    let kernel = mla_inputs::MlaInputs::load(kernels, mla_inputs::Dims { q: dim_q, c: dim_c, r: dim_r })?;
    let indices = |modulus: usize| -> Vec<i32> { (0..rows).map(|row| (row % modulus) as i32).collect() };
    let mut own = (
        kernel,
        values(stream, rows * joint)?,
        [values(stream, q)?, values(stream, c)?],
        upload(stream, &vec![0.5f32; POSITIONS * r])?,
        [upload(stream, &indices(POSITIONS))?, upload(stream, &indices(rows))?],
        [values(stream, rows * q)?, values(stream, rows * width)?],
        [rows, q, c, r],
    );
    let micros = time(stream, &mut own, |stream, own| {
        let (kernel, x, gains, rope, [positions, slots], [queries, cache], [rows, q, c, r]) = &mut **own;
        for _ in 0..LAUNCHES {
            let args = mla_inputs::Args {
                x: TensorRef::new(stream, x.as_view(), [*rows, *q + *c + *r])?,
                q_gain: TensorRef::new(stream, gains[0].as_view(), [*q])?,
                kv_gain: TensorRef::new(stream, gains[1].as_view(), [*c])?,
                eps: EPS,
                rope: TensorRef::new(stream, rope.as_view(), [POSITIONS, *r])?,
                positions: TensorRef::new(stream, positions.as_view(), [*rows])?,
                slots: TensorRef::new(stream, slots.as_view(), [*rows])?,
                q: TensorMut::new(stream, queries.as_view_mut(), [*rows, *q])?,
                cache: TensorMut::new(stream, cache.as_view_mut(), [*rows, *c + *r])?,
            };
            kernel.launch(stream, Choice::Auto, args)?;
        }
        Ok(())
    })?;
    Ok(RowsLine { family: "mla_inputs", rows, bytes: 2 * rows * joint * size_of::<bf16>(), micros })
}

fn commits(stream: &Stream, kernels: &Kernels, width: usize) -> Result<RowsLine, KernelError> {
    let tokens = OPERAND.div_ceil(LAYERS * width * size_of::<bf16>());
    let kernel = commit::Commit::load(kernels, commit::Dims { w: i64::try_from(width).unwrap_or(i64::MAX) })?;
    let indices: Vec<i32> = (0..tokens).map(|token| token as i32).collect();
    let mut own = (
        kernel,
        values(stream, LAYERS * tokens * width)?,
        upload(stream, &indices)?,
        values(stream, LAYERS * tokens * width)?,
        [LAYERS, tokens, width],
    );
    let micros = time(stream, &mut own, |stream, own| {
        let (kernel, scratch, indices, pages, shape) = &mut **own;
        for _ in 0..LAUNCHES {
            let args = commit::Args {
                scratch: TensorRef::new(stream, scratch.as_view(), *shape)?,
                from: TensorRef::new(stream, indices.as_view(), [shape[1]])?,
                to: TensorRef::new(stream, indices.as_view(), [shape[1]])?,
                pages: TensorMut::new(stream, pages.as_view_mut(), *shape)?,
            };
            kernel.launch(stream, Choice::Auto, args)?;
        }
        Ok(())
    })?;
    let rows = LAYERS * tokens;
    Ok(RowsLine { family: "commit", rows, bytes: 2 * rows * width * size_of::<bf16>(), micros })
}
