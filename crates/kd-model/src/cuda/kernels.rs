//! The kernels of a target's forward, loaded for one rank's sizes.

use kd_kernels::families::{
    absorb_query, absorb_value, add_rms_norm, commit, embed, few_gate, few_route, gather_taps, head_queries,
    head_values, lm_head, mla_inputs, norm_dense, query_rope, rms_norm, router, silu_mul, tree_mla,
    tree_mla_merge,
};
use kd_kernels::{DenseProduct, DenseScratch, KernelError, Kernels, Stream, TensorMut, TensorRef};
use kd_moe::gpu::ExpertKernels;

use half::bf16;

use super::prefill::LibraryProducts;
use super::{CudaError, Dims};

/// Every launcher of a pass.
#[derive(Debug)]
pub(crate) struct TargetKernels {
    pub(crate) embed: embed::Embed,
    pub(crate) rms_norm: rms_norm::RmsNorm,
    pub(crate) add_rms_norm: add_rms_norm::AddRmsNorm,
    pub(crate) products: Products,
    pub(crate) mla_inputs: mla_inputs::MlaInputs,
    pub(crate) query_rope: query_rope::QueryRope,
    pub(crate) absorb_query: absorb_query::AbsorbQuery,
    pub(crate) tree_mla: tree_mla::TreeMla,
    pub(crate) tree_mla_merge: tree_mla_merge::TreeMlaMerge,
    pub(crate) absorb_value: absorb_value::AbsorbValue,
    pub(crate) dense_gate: silu_mul::SiluMul,
    pub(crate) shared_gate: silu_mul::SiluMul,
    pub(crate) router: router::Router,
    pub(crate) experts: ExpertKernels,
    pub(crate) lm_head: lm_head::LmHead,
    pub(crate) commit: commit::Commit,
    pub(crate) gather_taps: gather_taps::GatherTaps,
    few: Option<FewKernels>,
    one: Option<OneKernels>,
}

/// Launches that take the place of several others where rows are few. Results have the same bits.
#[derive(Debug)]
pub(crate) struct FewKernels {
    /// For `mla_inputs`, the product with `q_b_proj`, `query_rope` and `absorb_query`.
    pub(crate) head_queries: head_queries::HeadQueries,
    /// For `tree_mla_merge` and `absorb_value`.
    pub(crate) head_values: head_values::HeadValues,
    /// For the product with the shared expert's first matrices and `silu_mul`.
    pub(crate) shared_gate: few_gate::FewGate,
}

/// Launches for one row that make its residual sum and norm themselves. Results have the same bits.
#[derive(Debug)]
pub(crate) struct OneKernels {
    /// For `add_rms_norm` and the first product of a layer.
    pub(crate) norm_dense: norm_dense::NormDense,
    /// For `add_rms_norm`, `router`, and the whole shared expert.
    pub(crate) few_route: few_route::FewRoute,
}

/// Most rows that count as few: two tiles of tokens, each of which reads a head's weights once more.
pub(crate) const FEW_ROWS: usize = 16;

/// Products of our own dense families, by width of their input.
#[derive(Debug, Default)]
pub(crate) struct Products(Vec<(usize, DenseProduct)>);

impl TargetKernels {
    pub(crate) fn load(kernels: &Kernels, dims: &Dims) -> Result<Self, CudaError> {
        let a = &dims.attention;
        let [h, q, c, r] = [dims.hidden, dims.q_rank, a.latent, a.rope].map(int);
        let [heads, nope, value] = [a.heads, a.nope, a.value].map(int);
        let [e, t] = [dims.experts.experts, dims.experts.top_k].map(int);
        let gate = |width: usize| silu_mul::SiluMul::load(kernels, silu_mul::Dims { i: int(width) });
        let inputs = [dims.hidden, dims.q_rank, dims.values(), dims.dense_width, dims.shared_width];
        Ok(Self {
            embed: embed::Embed::load(kernels, embed::Dims { h })?,
            rms_norm: rms_norm::RmsNorm::load(kernels, rms_norm::Dims { h })?,
            add_rms_norm: add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h })?,
            products: Products::load(kernels, &inputs)?,
            mla_inputs: mla_inputs::MlaInputs::load(kernels, mla_inputs::Dims { q, c, r })?,
            query_rope: query_rope::QueryRope::load(kernels, query_rope::Dims { n: nope, r, w: c })?,
            absorb_query: absorb_query::AbsorbQuery::load(
                kernels,
                absorb_query::Dims { heads, k: nope, n: c, rope: r },
            )?,
            tree_mla: tree_mla::TreeMla::load(kernels, tree_mla::Dims { h: heads, c, r })?,
            tree_mla_merge: tree_mla_merge::TreeMlaMerge::load(
                kernels,
                tree_mla_merge::Dims { h: heads, c },
            )?,
            absorb_value: absorb_value::AbsorbValue::load(
                kernels,
                absorb_value::Dims { heads, k: c, n: value },
            )?,
            dense_gate: gate(dims.dense_width)?,
            shared_gate: gate(dims.shared_width)?,
            router: router::Router::load(kernels, router::Dims { h, e, t })?,
            experts: ExpertKernels::load(kernels, dims.experts)?,
            lm_head: lm_head::LmHead::load(kernels, lm_head::Dims { k: h })?,
            commit: commit::Commit::load(kernels, commit::Dims { w: int(a.cache_width()) })?,
            gather_taps: gather_taps::GatherTaps::load(kernels, gather_taps::Dims { h })?,
            few: FewKernels::load(kernels, dims)?,
            one: OneKernels::load(kernels, dims)?,
        })
    }

    /// The launches for a pass of `rows` rows, if these are few and there are kernels for it.
    pub(crate) fn few(&self, rows: usize) -> Option<&FewKernels> {
        self.few.as_ref().filter(|_| rows <= FEW_ROWS)
    }

    /// The launches for a pass of one row, if it has one and there are kernels for it.
    pub(crate) fn one(&self, rows: usize) -> Option<&OneKernels> {
        self.one.as_ref().filter(|_| rows == 1)
    }
}

impl FewKernels {
    /// Nothing where the declarations have none for these sizes.
    fn load(kernels: &Kernels, dims: &Dims) -> Result<Option<Self>, CudaError> {
        let a = &dims.attention;
        let [h, q, c, n, r, value] = [a.heads, dims.q_rank, a.latent, a.nope, a.rope, a.value].map(int);
        let queries = head_queries::HeadQueries::load(kernels, head_queries::Dims { h, q, c, n, r });
        let values = head_values::HeadValues::load(kernels, head_values::Dims { h, c, n: value });
        let gate = few_gate::Dims { k: int(dims.hidden), i: int(dims.shared_width) };
        let gate = few_gate::FewGate::load(kernels, gate);
        let all = built(queries)?.zip(built(values)?).zip(built(gate)?);
        Ok(all.map(|((head_queries, head_values), shared_gate)| Self {
            head_queries,
            head_values,
            shared_gate,
        }))
    }
}

impl OneKernels {
    /// Nothing where the declarations have none for these sizes.
    fn load(kernels: &Kernels, dims: &Dims) -> Result<Option<Self>, CudaError> {
        let [h, i] = [dims.hidden, dims.shared_width].map(int);
        let [e, t] = [dims.experts.experts, dims.experts.top_k].map(int);
        let product = norm_dense::NormDense::load(kernels, norm_dense::Dims { h });
        let route = few_route::FewRoute::load(kernels, few_route::Dims { h, e, t, i });
        let both = built(product)?.zip(built(route)?);
        let both = both.filter(|(_, route)| route.units().held_at_once(kernels, &["CTAS", "SEGS"]));
        Ok(both.map(|(norm_dense, few_route)| Self { norm_dense, few_route }))
    }
}

/// Nothing for a family that is not built for every size.
fn built<T>(loaded: Result<T, KernelError>) -> Result<Option<T>, KernelError> {
    match loaded {
        Ok(family) => Ok(Some(family)),
        Err(KernelError::NoUnit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Products {
    /// Loads the kernels for inputs of `widths`.
    ///
    /// # Errors
    /// A bundle without them.
    pub(crate) fn load(kernels: &Kernels, widths: &[usize]) -> Result<Self, KernelError> {
        Self::each(widths, |width| DenseProduct::load(kernels, width))
    }

    /// The same without the kernels for many rows, which need scratch.
    ///
    /// # Errors
    /// A bundle without them.
    pub(crate) fn few(kernels: &Kernels, widths: &[usize]) -> Result<Self, KernelError> {
        Self::each(widths, |width| DenseProduct::few(kernels, width))
    }

    fn each(
        widths: &[usize],
        load: impl Fn(usize) -> Result<DenseProduct, KernelError>,
    ) -> Result<Self, KernelError> {
        let mut products = Self::default();
        for &width in widths {
            if products.of(width).is_none() {
                products.0.push((width, load(width)?));
            }
        }
        Ok(products)
    }

    /// `y = x Wᵀ`. A row's bits depend on that row alone. Launches that share `scratch` follow each other.
    ///
    /// # Errors
    /// A width that was not loaded, operands of other sizes, a refused launch.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        scratch: &mut DenseScratch,
        x: TensorRef<'_, bf16, 2>,
        w: TensorRef<'_, bf16, 2>,
        y: TensorMut<'_, bf16, 2>,
    ) -> Result<(), KernelError> {
        let [_, width] = x.shape();
        let product = self.of(width).ok_or_else(|| KernelError::BadTensor {
            shape: x.shape().to_vec(),
            what: "no product of this width was loaded".to_owned(),
        })?;
        product.launch(stream, scratch, x, w, y).map(drop)
    }

    fn of(&self, width: usize) -> Option<&DenseProduct> {
        self.0.iter().find(|(own, _)| *own == width).map(|(_, product)| product)
    }
}

/// Who multiplies.
pub(crate) enum Multiply<'a> {
    /// Our own kernels: every decode and verify row.
    Own(&'a Products, &'a mut DenseScratch),
    /// cuBLASLt: prompt chunks.
    Library(&'a LibraryProducts),
}

impl Multiply<'_> {
    /// `y = x Wᵀ`.
    pub(crate) fn launch(
        &mut self,
        stream: &Stream,
        x: TensorRef<'_, bf16, 2>,
        w: TensorRef<'_, bf16, 2>,
        mut y: TensorMut<'_, bf16, 2>,
    ) -> Result<(), KernelError> {
        match self {
            Self::Own(products, scratch) => products.launch(stream, scratch, x, w, y),
            Self::Library(products) => products.of(w.shape())?.launch(stream, &x, &w, &mut y),
        }
    }
}

/// A size as declarations have it.
pub(crate) fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
