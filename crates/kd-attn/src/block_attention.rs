//! Attention of all rows of a prompt chunk over one block of expanded keys, by whichever family the device has.

use kd_kernels::families::{prefill_attention, prefill_wgmma};
use kd_kernels::{Choice, KernelError, Kernels, LoadedUnit, Stream, if_built};

/// The families for one layer shape; their bits are the same.
#[derive(Debug)]
pub(crate) struct BlockAttention {
    anywhere: prefill_attention::PrefillAttention,
    /// Faster in all sizes measured (512 rows and more), where the architecture has it.
    groups: Option<prefill_wgmma::PrefillWgmma>,
}

impl BlockAttention {
    /// # Errors
    /// A bundle without units for `dims`, or a driver that refuses one.
    pub(crate) fn load(kernels: &Kernels, dims: prefill_attention::Dims) -> Result<Self, KernelError> {
        let prefill_attention::Dims { n, r, vd, c } = dims;
        let groups = prefill_wgmma::PrefillWgmma::load(kernels, prefill_wgmma::Dims { n, r, vd, c });
        let anywhere = prefill_attention::PrefillAttention::load(kernels, dims)?;
        Ok(Self { anywhere, groups: if_built(groups)? })
    }

    /// Variants of both families.
    pub(crate) fn variants(&self) -> impl Iterator<Item = &'static str> {
        let groups = self.groups.iter().flat_map(|groups| groups.units().iter().map(LoadedUnit::variant));
        groups.chain(self.anywhere.units().iter().map(LoadedUnit::variant))
    }

    /// `choice` is among the variants of both families.
    ///
    /// # Errors
    /// Operands of other sizes, a variant that is not there, a refused launch.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        choice: Choice<'_>,
        args: prefill_attention::Args<'_>,
    ) -> Result<(), KernelError> {
        let takes = |groups: &&prefill_wgmma::PrefillWgmma| match choice {
            Choice::Auto => true,
            Choice::Forced(variant) => groups.units().iter().any(|unit| unit.variant() == variant),
        };
        let Some(groups) = self.groups.as_ref().filter(takes) else {
            return self.anywhere.launch(stream, choice, args).map(drop);
        };
        let prefill_attention::Args { q, kv, entries, ahead, scale, resumed, finished, part_o, part_ml, y } =
            args;
        let kv = kv.as_matrix();
        let args =
            prefill_wgmma::Args { q, kv, entries, ahead, scale, resumed, finished, part_o, part_ml, y };
        groups.launch(stream, choice, args).map(drop)
    }
}
