//! A layer of random experts on the device.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::selftest::{Failure, Random, units};
use kd_kernels::{Device, Kernels, Stream};
use kd_tensor::Int4Matrix;

use crate::gpu::{DeviceExperts, ExpertKernels, Form, GpuError, Packer, Shape, layout};
use crate::{Expert, Experts};

/// Different experts; the others of a layer are their copies.
const DISTINCT: usize = 8;

/// The packed layer, and what it was packed from.
pub(super) struct Layer {
    pub(super) stream: Stream,
    pub(super) unit: String,
    pub(super) kernels: ExpertKernels,
    pub(super) packed: DeviceExperts,
    pub(super) experts: Experts,
}

impl Layer {
    pub(super) fn new(device: &Device, kernels: &Kernels, row: &Row, seed: u64) -> Result<Self, Failure> {
        let failed = |what: String| Failure::Wrong { unit: row.unit.clone(), rows: 0, what };
        let gpu = |error: GpuError| failed(error.to_string());
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let group = units(kernels, "moe_group").next().ok_or_else(|| failed("no moe_group".to_owned()))?;
        let shape = Shape {
            hidden: row.dim("H")?.1,
            width: row.dim("I")?.1,
            experts: group.dim("E")?.1,
            top_k: group.dim("T")?.1,
        };
        let distinct = DISTINCT.min(shape.experts);
        let experts = (0..distinct).map(|_| expert(&mut random, &shape)).collect::<Result<Vec<_>, _>>();
        let experts = experts.map_err(|error| failed(error.to_string()))?;
        let mut packed = DeviceExperts::new(&stream, shape).map_err(gpu)?;
        let mut packer = Packer::new(&stream, kernels, shape).map_err(gpu)?;
        for (index, expert) in experts.iter().enumerate() {
            packer.pack(&stream, &mut packed, index, expert).map_err(gpu)?;
            let found = packed.read(&stream, index).map_err(gpu)?;
            let pair = layout::pack_gate_up(&expert.gate, &expert.up).map_err(|e| failed(e.to_string()))?;
            let down = layout::pack_down(&expert.down).map_err(|e| failed(e.to_string()))?;
            if found != [pair, down] {
                return Err(failed(format!("expert {index} was packed differently on the device")));
            }
        }
        for index in distinct..shape.experts {
            packed.copy(&stream, index % distinct, index).map_err(gpu)?;
        }
        Ok(Self {
            unit: row.unit.clone(),
            kernels: ExpertKernels::load(kernels, shape).map_err(gpu)?,
            packed,
            experts: Experts(experts),
            stream,
        })
    }

    /// The form whose first product is `row`, where the second has it too.
    pub(super) fn form(&self, row: &Row) -> Option<Form> {
        // Slabs of 48 rows have a variant of another name where the width asks for it.
        match row.family.as_str() {
            "moe_gate_up_many" if row.variant != Form::Middle.name() => return Some(Form::Many),
            "moe_gate_up_wgmma" => return self.kernels.has(Form::Wgmma).then_some(Form::Wgmma),
            _ => {}
        }
        Form::ALL.into_iter().find(|form| form.name() == row.variant && self.kernels.has(*form))
    }
}

/// An expert whose products neither vanish nor grow.
pub(super) fn expert(random: &mut Random, shape: &Shape) -> Result<Expert, kd_tensor::ShapeError> {
    let mut matrix = |rows: usize, cols: usize| {
        let words: Vec<i32> = (0..rows * cols / 8).map(|_| random.bits() as i32).collect();
        let scale = 0.25 / (cols as f32).sqrt();
        let scales: Vec<bf16> =
            (0..rows * cols / 32).map(|_| bf16::from_f32(scale * (1.0 + 0.5 * random.unit()))).collect();
        Int4Matrix::new(rows, cols, words, scales)
    };
    let (hidden, width) = (shape.hidden, shape.width);
    Ok(Expert { gate: matrix(width, hidden)?, up: matrix(width, hidden)?, down: matrix(hidden, width)? })
}
