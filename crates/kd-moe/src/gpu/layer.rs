//! The launches of one layer.

use half::bf16;
use kd_kernels::families::{moe_combine, moe_down, moe_few, moe_gate_up, moe_group, moe_one};
use kd_kernels::{Choice, Int4Ref, KernelError, Kernels, Stream, TensorMut, TensorRef, Units};
use kd_tensor::int4::GROUP;

use super::folded::Folded;
use super::many::Many;
use super::wgmma::Wgmma;
use super::{Arithmetic, DeviceExperts, Form, GpuError, Scratch, Shape};

/// Fewest rows, and least width, that [`Form::Wgmma`] is taken for where there is one: as [`Form::preferred`].
const WGMMA_ROWS: usize = 768;
const WGMMA_WIDTH: usize = 256;
/// Fewest rows that [`Form::FoldedWgmma`] is taken for, likewise.
const FOLDED_WGMMA_ROWS: usize = 512;
/// Fewest rows that [`Form::FoldedTall`] is taken for, likewise: experts begin to have more than 64.
const FOLDED_TALL_ROWS: usize = 2304;
/// Most rows that [`Form::FoldedMiddle`] is taken for, likewise.
const FOLDED_MIDDLE_ROWS: usize = 1280;

/// The loaded kernels of one shape.
#[derive(Debug)]
pub struct ExpertKernels {
    shape: Shape,
    few: moe_few::MoeFew,
    /// Of one row, where its sizes have one.
    one: Option<moe_one::MoeOne>,
    group: moe_group::MoeGroup,
    gate_up: moe_gate_up::MoeGateUp,
    down: moe_down::MoeDown,
    many: Many,
    wgmma: Option<Wgmma>,
    combine: moe_combine::MoeCombine,
    folded: Folded,
}

/// Operands of one run of `rows` rows.
#[derive(Debug)]
pub struct Batch<'a> {
    /// How many rows.
    pub rows: usize,
    /// `[rows, hidden]`.
    pub x: TensorRef<'a, bf16, 2>,
    /// `[rows, top_k]`: expert numbers over all ranks; any that is not this rank's (-1 in padded rows) is left out. Those of a
    /// row differ, as a router's do; from elsewhere they come by [`upload_ids`](super::upload_ids), which refuses others.
    pub ids: TensorRef<'a, i32, 2>,
    /// `[rows, top_k]`.
    pub weights: TensorRef<'a, f32, 2>,
    /// `[rows, hidden]`: the weighted sum of this rank's experts, 0 for a row that has none.
    pub y: TensorMut<'a, bf16, 2>,
}

impl ExpertKernels {
    /// Loads the kernels of `shape`.
    ///
    /// # Errors
    /// A bundle without units of this shape, or a driver that refuses them.
    pub fn load(kernels: &Kernels, shape: Shape) -> Result<Self, GpuError> {
        let size = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let (h, i) = (size(shape.hidden), size(shape.width));
        let (e, t) = (size(shape.experts), size(shape.top_k));
        let one = match moe_one::MoeOne::load(kernels, moe_one::Dims { h, i, e, t }) {
            Err(KernelError::NoUnit { .. }) => None,
            loaded => Some(loaded?),
        };
        Ok(Self {
            shape,
            one,
            wgmma: Wgmma::load(kernels, h, i)?,
            many: Many::load(kernels, h, i)?,
            folded: Folded::load(kernels, [h, i, e, t])?,
            few: moe_few::MoeFew::load(kernels, moe_few::Dims { h, i, e, t })?,
            group: moe_group::MoeGroup::load(kernels, moe_group::Dims { h, e, t })?,
            gate_up: moe_gate_up::MoeGateUp::load(kernels, moe_gate_up::Dims { h, i })?,
            down: moe_down::MoeDown::load(kernels, moe_down::Dims { h, i })?,
            combine: moe_combine::MoeCombine::load(kernels, moe_combine::Dims { h, t })?,
        })
    }

    /// Whether this shape has `form` on this device; all but [`Form::Wide`], [`Form::Middle`], [`Form::Wgmma`],
    /// [`Form::FoldedMiddle`], [`Form::FoldedWgmma`] and [`Form::FoldedTall`] always are, [`Form::Few`] for up to 64 rows.
    pub fn has(&self, form: Form) -> bool {
        let of = |units: &Units| units.iter().any(|unit| unit.variant() == form.name());
        match form {
            Form::Few => true,
            Form::Folded | Form::FoldedMiddle | Form::FoldedWgmma | Form::FoldedTall => self.folded.has(form),
            Form::Narrow | Form::Wide => of(self.gate_up.units()) && of(self.down.units()),
            Form::Middle | Form::Many => self.many.has(form),
            Form::Wgmma => self.wgmma.is_some(),
        }
    }

    /// The form that `rows` rows are run in unless another is asked for.
    pub fn form(&self, rows: usize, arithmetic: Arithmetic) -> Form {
        if arithmetic == Arithmetic::Folded {
            return match rows {
                FOLDED_TALL_ROWS.. if self.has(Form::FoldedTall) => Form::FoldedTall,
                FOLDED_WGMMA_ROWS.. if self.has(Form::FoldedWgmma) => Form::FoldedWgmma,
                0..=FOLDED_MIDDLE_ROWS if self.has(Form::FoldedMiddle) => Form::FoldedMiddle,
                _ => Form::Folded,
            };
        }
        if rows >= WGMMA_ROWS && self.shape.width >= WGMMA_WIDTH && self.has(Form::Wgmma) {
            return Form::Wgmma;
        }
        let preferred = Form::preferred(rows, self.shape.width);
        match preferred {
            _ if self.has(preferred) => preferred,
            Form::Middle => Form::Many,
            _ => Form::Narrow,
        }
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Enqueues one layer in `form`. `first_expert` is the number of this rank's first expert. Safe to capture in a graph; the
    /// launches may overlap their neighbours' ends, so `experts` must have been written before the kernel in front of this
    /// run.
    ///
    /// # Errors
    /// More rows than the scratch was planned for or the form takes, a scratch for another arithmetic, operands of another shape,
    /// a form that this shape lacks, a refused launch.
    pub fn run(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        first_expert: i32,
        scratch: &mut Scratch,
        batch: Batch<'_>,
    ) -> Result<(), GpuError> {
        let rows = batch.rows;
        if rows > scratch.plan.rows || scratch.plan.shape != self.shape {
            let what = "the number of rows of a run with this scratch";
            let limit = if scratch.plan.shape == self.shape { scratch.plan.rows } else { 0 };
            return Err(GpuError::Limit { what, found: rows, limit });
        }
        if rows > form.most_rows() {
            let what = "the number of rows of a run in the form for few rows";
            return Err(GpuError::Limit { what, found: rows, limit: form.most_rows() });
        }
        // A slice of a layer holds fewer experts than its kernels know; the others must not be chosen.
        let (held, count) = (experts.shape().experts, self.shape.experts);
        if held > count || experts.shape() != (Shape { experts: held, ..self.shape }) {
            let what = "the experts of a layer, or a size of theirs,";
            return Err(GpuError::Limit { what, found: held, limit: count });
        }
        match form {
            Form::Few => self.run_few(stream, experts, first_expert, scratch, batch),
            Form::Folded | Form::FoldedMiddle | Form::FoldedWgmma | Form::FoldedTall => {
                self.folded.run(stream, form, experts, first_expert, scratch, batch)
            }
            _ => self.run_grouped(stream, form, experts, first_expert, scratch, batch),
        }
    }

    /// All of the layer at once.
    fn run_few(
        &self,
        stream: &Stream,
        experts: &DeviceExperts,
        first_expert: i32,
        scratch: &mut Scratch,
        batch: Batch<'_>,
    ) -> Result<(), GpuError> {
        let Shape { hidden, width, top_k, .. } = self.shape;
        let (held, choices, counts) = (experts.shape().experts, batch.rows * top_k, scratch.plan.counts());
        let gate_up = Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?;
        let down = Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?;
        if let Some(one) = self.one.as_ref().filter(|_| batch.rows == 1) {
            let told = scratch.plan.told();
            let args = moe_one::Args {
                gate_up,
                down,
                x: batch.x,
                ids: batch.ids,
                weights: batch.weights,
                first_expert,
                told: TensorMut::new(stream, scratch.told.slice_mut(..told), [told])?,
                y: batch.y,
            };
            one.launch(stream, Choice::Auto, args)?;
            return Ok(());
        }
        let values = scratch.values.grouped()?;
        let args = moe_few::Args {
            gate_up,
            down,
            x: batch.x,
            ids: batch.ids,
            weights: batch.weights,
            first_expert,
            h: TensorMut::new(stream, values.hidden.slice_mut(..choices * width), [choices, width])?,
            parts: TensorMut::new(stream, values.parts.slice_mut(..choices * hidden), [choices, hidden])?,
            arrived: TensorMut::new(stream, scratch.arrived.slice_mut(..counts), [counts])?,
            y: batch.y,
        };
        self.few.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Groups the rows by expert, then both products in `form`, then the weighted sum.
    fn run_grouped(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        first_expert: i32,
        scratch: &mut Scratch,
        batch: Batch<'_>,
    ) -> Result<(), GpuError> {
        let Shape { hidden, top_k, .. } = self.shape;
        let (rows, choices) = (batch.rows, batch.rows * top_k);
        let lists = scratch.plan.lists();
        let values = scratch.values.grouped()?;
        let group = moe_group::Args {
            x: batch.x,
            ids: batch.ids,
            first_expert,
            slab: form.slab(),
            turned: i32::from(form == Form::Wgmma),
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            entries: TensorMut::new(stream, scratch.entries.slice_mut(..lists * 4), [lists, 4])?,
            rows: TensorMut::new(stream, scratch.rows.slice_mut(..choices), [choices])?,
            places: TensorMut::new(stream, scratch.places.slice_mut(..choices), [rows, top_k])?,
            lifted: TensorMut::new(stream, values.lifted.slice_mut(..rows * hidden), [rows, hidden])?,
            starts: TensorMut::new(
                stream,
                values.starts.slice_mut(..rows * (hidden / GROUP)),
                [rows, hidden / GROUP],
            )?,
        };
        self.group.launch(stream, Choice::Auto, group)?;
        match form {
            Form::Middle | Form::Many => self.many.run(stream, form, experts, scratch, rows)?,
            Form::Wgmma => {
                let kernels =
                    self.wgmma.as_ref().ok_or(GpuError::Form { form: form.name(), shape: self.shape })?;
                kernels.run(stream, experts, scratch, rows)?;
            }
            _ => self.run_products(stream, form, experts, scratch, rows)?,
        }
        let values = scratch.values.grouped()?;
        let combine = moe_combine::Args {
            parts: TensorRef::new(stream, values.parts.slice(..choices * hidden), [choices, hidden])?,
            weights: batch.weights,
            places: TensorRef::new(stream, scratch.places.slice(..choices), [rows, top_k])?,
            y: batch.y,
        };
        self.combine.launch(stream, Choice::Auto, combine)?;
        Ok(())
    }

    /// Both products in the forms `narrow` and `wide`.
    fn run_products(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let Shape { hidden, width, top_k, .. } = self.shape;
        let (choices, held) = (rows * top_k, experts.shape().experts);
        let choice = Choice::Forced(form.name());
        let values = scratch.values.grouped()?;
        let gate_up = moe_gate_up::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            x: TensorRef::new(stream, values.lifted.slice(..rows * hidden), [rows, hidden])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            entries: TensorRef::new(stream, scratch.entries.slice(..held * 4), [held, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, values.hidden.slice_mut(..choices * width), [choices, width])?,
        };
        self.gate_up.launch(stream, choice, gate_up)?;
        let down = moe_down::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            h: TensorRef::new(stream, values.hidden.slice(..choices * width), [choices, width])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            entries: TensorRef::new(stream, scratch.entries.slice(..held * 4), [held, 4])?,
            parts: TensorMut::new(stream, values.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, choice, down)?;
        Ok(())
    }
}
