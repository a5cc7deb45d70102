//! The router of K2.6: products, scores and choice in one launch, which is all the same on every number of ranks.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::dense::{REPLAYS, WORKING_SET};
use super::{Rates, median, samples};
use crate::families::router;
use crate::selftest::{Random, upload};
use crate::{Device, KernelError, Kernels, RouterProduct, Stream, TensorMut, TensorRef};

/// K2.6: hidden width, experts, experts of a token, factor of their weights.
const HIDDEN: usize = 7168;
const EXPERTS: usize = 384;
const CHOSEN: usize = 8;
const SCALING: f32 = 2.827;
/// Launches of a graph.
const LAUNCHES: usize = 100;
/// Microseconds that a launch of so many rows may take at most, as asked for.
const TARGETS: [(std::ops::RangeInclusive<usize>, f64); 2] = [(1..=33, 6.0), (528..=528, 12.0)];

/// The router at one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterLine {
    /// Rows.
    pub rows: usize,
    /// The variant that was launched.
    pub variant: &'static str,
    /// Microseconds of a launch with weights from memory, a value for each replay of a graph of many.
    pub samples: Vec<f64>,
    /// The same with weights in L2.
    pub cached: Vec<f64>,
}

impl RouterLine {
    /// Median microseconds of a launch with weights from memory.
    pub fn micros(&self) -> f64 {
        median(&self.samples)
    }

    /// Bytes that a launch must move: weights, rows, scores and choices once.
    pub fn bytes(&self) -> f64 {
        (2 * HIDDEN * (EXPERTS + self.rows) + self.rows * (4 * EXPERTS + 8 * CHOSEN)) as f64
    }

    /// Operations of its products.
    pub fn operations(&self) -> f64 {
        (2 * self.rows * HIDDEN * EXPERTS) as f64
    }

    /// The least time that they can take, in microseconds, and what sets it.
    pub fn floor_micros(&self, rates: &Rates) -> (f64, &'static str) {
        rates.floor_micros(self.bytes(), self.operations())
    }

    /// Microseconds that were asked for, where they were.
    pub fn target(&self) -> Option<f64> {
        TARGETS.iter().find(|(rows, _)| rows.contains(&self.rows)).map(|(_, most)| *most)
    }
}

struct Operands {
    rows: usize,
    copies: usize,
    kernel: RouterProduct,
    x: CudaSlice<bf16>,
    weights: Vec<CudaSlice<bf16>>,
    bias: CudaSlice<f32>,
    slots: CudaSlice<i32>,
    arrived: CudaSlice<i32>,
    scores: CudaSlice<f32>,
    ids: CudaSlice<i32>,
    chosen: CudaSlice<f32>,
    /// The variant of the last launch.
    variant: &'static str,
}

/// Measures the router at every number of rows, on random ones.
///
/// # Errors
/// A bundle without it, memory that does not suffice, a launch that fails.
pub fn router(device: &Device, kernels: &Kernels, rows: &[usize]) -> Result<Vec<RouterLine>, KernelError> {
    let (stream, most) = (device.stream()?, rows.iter().copied().max().unwrap_or_default());
    let mut own = Operands::new(&stream, kernels, most)?;
    let all = own.weights.len();
    let mut time = |rows, copies| {
        (own.rows, own.copies) = (rows, copies);
        let times = samples(&stream.capture(&mut own, |stream, own| own.launches(stream))?, REPLAYS)?;
        let each = times.into_iter().map(|time| time / LAUNCHES as f64).collect();
        Ok((own.variant, each))
    };
    rows.iter()
        .map(|&rows| {
            let ((variant, samples), (_, cached)) = (time(rows, all)?, time(rows, 1)?);
            Ok(RouterLine { rows, variant, samples, cached })
        })
        .collect()
}

impl Operands {
    fn new(stream: &Stream, kernels: &Kernels, rows: usize) -> Result<Self, KernelError> {
        let mut random = Random::new(1);
        let weight = random.values(EXPERTS * HIDDEN, 4.0 / (HIDDEN as f32).sqrt());
        let bias: Vec<f32> = (0..EXPERTS).map(|_| 0.2 * random.unit()).collect();
        let slots: Vec<i32> = (0..rows).map(|row| i32::try_from(row).unwrap_or(i32::MAX)).collect();
        let copies = WORKING_SET / (EXPERTS * HIDDEN * size_of::<bf16>()) + 1;
        let dims = router::Dims { h: HIDDEN as i64, e: EXPERTS as i64, t: CHOSEN as i64 };
        Ok(Self {
            rows,
            copies,
            kernel: RouterProduct::load(kernels, dims)?,
            x: upload(stream, &random.values(rows * HIDDEN, 1.0))?,
            weights: (0..copies).map(|_| upload(stream, &weight)).collect::<Result<_, _>>()?,
            bias: upload(stream, &bias)?,
            slots: upload(stream, &slots)?,
            arrived: upload(stream, &vec![0; rows * EXPERTS])?,
            scores: upload(stream, &vec![0.0; rows * EXPERTS])?,
            ids: upload(stream, &vec![0; rows * CHOSEN])?,
            chosen: upload(stream, &vec![0.0; rows * CHOSEN])?,
            variant: "",
        })
    }

    fn launches(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let rows = self.rows;
        for launch in 0..LAUNCHES {
            let args = router::Args {
                x: TensorRef::new(stream, self.x.slice(..rows * HIDDEN), [rows, HIDDEN])?,
                w: TensorRef::new(stream, self.weights[launch % self.copies].as_view(), [EXPERTS, HIDDEN])?,
                bias: TensorRef::new(stream, self.bias.as_view(), [EXPERTS])?,
                slots: TensorRef::new(stream, self.slots.slice(..rows), [rows])?,
                groups: 1,
                top_groups: 1,
                normalize: 1,
                scaling: SCALING,
                arrived: TensorMut::new(stream, self.arrived.slice_mut(..rows * EXPERTS), [rows, EXPERTS])?,
                scores: TensorMut::new(stream, self.scores.slice_mut(..rows * EXPERTS), [rows, EXPERTS])?,
                ids: TensorMut::new(stream, self.ids.slice_mut(..rows * CHOSEN), [rows, CHOSEN])?,
                weights: TensorMut::new(stream, self.chosen.slice_mut(..rows * CHOSEN), [rows, CHOSEN])?,
            };
            self.variant = self.kernel.launch(stream, args)?.variant;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_is_held_to_what_was_asked_for_at_those_rows_alone() {
        let line = |rows| RouterLine { rows, variant: "", samples: vec![5.0, 7.0, 6.0], cached: Vec::new() };
        assert_eq!(
            [1, 33, 34, 264, 528, 529].map(|rows| line(rows).target()),
            [Some(6.0), Some(6.0), None, None, Some(12.0), None]
        );
        let rates = Rates { bytes: 4.4e12, operations: 640e12, launch: 1.0 };
        let ((few, bytes), (many, mma)) = (line(1).floor_micros(&rates), line(4096).floor_micros(&rates));
        assert!((few - 1.255).abs() < 0.001 && bytes == "bytes", "{few} {bytes}");
        assert!((many - 35.235).abs() < 0.01 && mma == "mma", "{many} {mma}");
        assert_eq!(line(1).micros(), 6.0);
    }
}
