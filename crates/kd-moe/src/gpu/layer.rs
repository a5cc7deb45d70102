//! The launches of one layer.

use half::bf16;
use kd_kernels::families::{
    moe_combine, moe_down, moe_down_many, moe_few, moe_gate_up, moe_gate_up_many, moe_group,
};
use kd_kernels::{Choice, Int4Ref, Kernels, Stream, TensorMut, TensorRef, Units};
use kd_tensor::int4::GROUP;

use super::scratch::{MANY_SLAB, MIDDLE_SLAB};
use super::wgmma::Wgmma;
use super::{DeviceExperts, GpuError, MOST_ROWS, Scratch, Shape};

/// Most rows of [`Form::Few`].
const FEW_ROWS: usize = 64;

/// Fewest rows, and least width, that [`Form::Wgmma`] is taken for where there is one: as [`Form::preferred`].
const WGMMA_ROWS: usize = 768;
const WGMMA_WIDTH: usize = 256;

/// The loaded kernels of one shape.
#[derive(Debug)]
pub struct ExpertKernels {
    shape: Shape,
    few: moe_few::MoeFew,
    group: moe_group::MoeGroup,
    gate_up: moe_gate_up::MoeGateUp,
    down: moe_down::MoeDown,
    many: Many,
    wgmma: Option<Wgmma>,
    combine: moe_combine::MoeCombine,
}

/// Both products of [`Form::Middle`] and [`Form::Many`].
#[derive(Debug)]
struct Many {
    gate_up: moe_gate_up_many::MoeGateUpMany,
    down: moe_down_many::MoeDownMany,
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

/// Forms of a layer; all give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As narrow, in one launch that groups the rows itself: at most 64 rows.
    Few,
    /// K split over the warps of a CTA.
    Narrow,
    /// Units split over the warps of a CTA, which share the rows.
    Wide,
    /// As many, for fewer rows: up to 32 rows a warp, three CTAs an SM instead of two.
    Middle,
    /// Blocked in registers: 64 rows of weights and up to 48 rows a warp.
    Many,
    /// Products of warpgroups, on devices of architecture sm_90a alone.
    Wgmma,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Few, Self::Narrow, Self::Wide, Self::Middle, Self::Many, Self::Wgmma];

    /// The variant of the two products.
    pub fn name(self) -> &'static str {
        match self {
            Self::Few => "few",
            Self::Narrow => "narrow",
            Self::Wide => "wide",
            Self::Middle => "middle",
            Self::Many => "many",
            Self::Wgmma => "wgmma",
        }
    }

    /// `SLAB` of the variant.
    fn slab(self) -> i32 {
        match self {
            Self::Few | Self::Narrow => 8,
            Self::Wide => 16,
            Self::Middle => MIDDLE_SLAB as i32,
            Self::Many | Self::Wgmma => MANY_SLAB as i32,
        }
    }

    /// Most rows of a run in this form.
    pub fn most_rows(self) -> usize {
        if self == Self::Few { FEW_ROWS } else { MOST_ROWS }
    }

    /// The one to take for `rows` rows of experts of `width`: where their times cross on the measured device
    /// (docs/kernels/moe.md).
    fn preferred(rows: usize, width: usize) -> Self {
        match rows {
            0..=FEW_ROWS if rows * width <= 33 * 256 => Self::Few,
            0..=288 => Self::Narrow,
            289..=352 if width <= 256 => Self::Narrow,
            289..=640 if width > 256 => Self::Wide,
            289..=1280 => Self::Middle,
            _ => Self::Many,
        }
    }
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
        Ok(Self {
            shape,
            wgmma: Wgmma::load(kernels, h, i)?,
            many: Many {
                gate_up: moe_gate_up_many::MoeGateUpMany::load(kernels, moe_gate_up_many::Dims { h, i })?,
                down: moe_down_many::MoeDownMany::load(kernels, moe_down_many::Dims { h, i })?,
            },
            few: moe_few::MoeFew::load(kernels, moe_few::Dims { h, i, e, t })?,
            group: moe_group::MoeGroup::load(kernels, moe_group::Dims { h, e, t })?,
            gate_up: moe_gate_up::MoeGateUp::load(kernels, moe_gate_up::Dims { h, i })?,
            down: moe_down::MoeDown::load(kernels, moe_down::Dims { h, i })?,
            combine: moe_combine::MoeCombine::load(kernels, moe_combine::Dims { h, t })?,
        })
    }

    /// Whether this shape has `form` on this device; all but [`Form::Wide`], [`Form::Middle`] and [`Form::Wgmma`] always are,
    /// [`Form::Few`] for up to 64 rows.
    pub fn has(&self, form: Form) -> bool {
        let of = |units: &Units| units.iter().any(|unit| unit.variant() == form.name());
        match form {
            Form::Few | Form::Many => true,
            Form::Narrow | Form::Wide => of(self.gate_up.units()) && of(self.down.units()),
            Form::Middle => of(self.many.gate_up.units()) && of(self.many.down.units()),
            Form::Wgmma => self.wgmma.is_some(),
        }
    }

    /// The form that `rows` rows are run in unless another is asked for.
    pub fn form(&self, rows: usize) -> Form {
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
    /// More rows than the scratch was planned for or the form takes, operands of another shape, a form that this shape
    /// lacks, a refused launch.
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
        let args = moe_few::Args {
            gate_up: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            down: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            x: batch.x,
            ids: batch.ids,
            weights: batch.weights,
            first_expert,
            h: TensorMut::new(stream, scratch.hidden.slice_mut(..choices * width), [choices, width])?,
            parts: TensorMut::new(stream, scratch.parts.slice_mut(..choices * hidden), [choices, hidden])?,
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
            lifted: TensorMut::new(stream, scratch.lifted.slice_mut(..rows * hidden), [rows, hidden])?,
            starts: TensorMut::new(
                stream,
                scratch.starts.slice_mut(..rows * (hidden / GROUP)),
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
        let combine = moe_combine::Args {
            parts: TensorRef::new(stream, scratch.parts.slice(..choices * hidden), [choices, hidden])?,
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
        let gate_up = moe_gate_up::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            x: TensorRef::new(stream, scratch.lifted.slice(..rows * hidden), [rows, hidden])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            entries: TensorRef::new(stream, scratch.entries.slice(..held * 4), [held, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, scratch.hidden.slice_mut(..choices * width), [choices, width])?,
        };
        self.gate_up.launch(stream, choice, gate_up)?;
        let down = moe_down::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            h: TensorRef::new(stream, scratch.hidden.slice(..choices * width), [choices, width])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            entries: TensorRef::new(stream, scratch.entries.slice(..held * 4), [held, 4])?,
            parts: TensorMut::new(stream, scratch.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, choice, down)?;
        Ok(())
    }
}

impl Many {
    /// Both products of `rows` rows, grouped for `form`.
    fn run(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let Shape { hidden, width, top_k, .. } = scratch.plan.shape;
        let (choices, held, lists) = (rows * top_k, experts.shape().experts, scratch.plan.lists());
        let (groups, h_groups) = (hidden / GROUP, width / GROUP);
        // Slabs of 48 rows have the variants that every shape has, one of them each.
        let choice = if form == Form::Middle { Choice::Forced(form.name()) } else { Choice::Auto };
        let gate_up = moe_gate_up_many::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            x: TensorRef::new(stream, scratch.lifted.slice(..rows * hidden), [rows, hidden])?,
            starts: TensorRef::new(stream, scratch.starts.slice(..rows * groups), [rows, groups])?,
            plan: TensorRef::new(stream, scratch.totals.slice(..2), [2])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, scratch.hidden.slice_mut(..choices * width), [choices, width])?,
            h_starts: TensorMut::new(
                stream,
                scratch.hidden_starts.slice_mut(..choices * h_groups),
                [choices, h_groups],
            )?,
        };
        self.gate_up.launch(stream, choice, gate_up)?;
        let down = moe_down_many::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            h: TensorRef::new(stream, scratch.hidden.slice(..choices * width), [choices, width])?,
            starts: TensorRef::new(
                stream,
                scratch.hidden_starts.slice(..choices * h_groups),
                [choices, h_groups],
            )?,
            plan: TensorRef::new(stream, scratch.totals.slice(..2), [2])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            parts: TensorMut::new(stream, scratch.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, choice, down)?;
        Ok(())
    }
}
