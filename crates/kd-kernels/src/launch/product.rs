//! Large matrix products through cuBLASLt, for prompt chunks: `y = x Wᵀ`, bf16 in and out, f32 sums.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::CudaContext;
use half::bf16;

use super::{KernelError, Stream, TensorMut, TensorRef};
use crate::Device;
use crate::selftest::{Random, upload};

/// Numbers of rows that cuBLASLt is asked for an algorithm for, besides the largest.
const SIZES: [usize; 5] = [128, 256, 512, 1024, 2048];
/// Rows and columns of products that algorithms are compared by.
const PROBE: usize = 256;
/// Distinct values of their operands.
const VALUES: usize = 65_537;

/// A product of rows with one matrix `[N, K]`.
///
/// A row's bits do not depend on how many rows there are. The algorithm that cuBLASLt names for the largest number of rows would serve
/// every number; those that it names for fewer are faster there, and may add in another order. So each is compared with the first when
/// the product is made, on sums that leave nothing but what rounding left, and is taken only if it gives the same bits. Algorithms that
/// need a workspace or add parts of a sum atomically are excluded.
#[derive(Debug)]
pub struct Product {
    handle: Handle,
    /// With the most rows that each is for, fewest first.
    algorithms: Vec<(usize, sys::cublasLtMatmulAlgo_t)>,
    operation: Operation,
    n: usize,
    k: usize,
    stride: usize,
    most: usize,
    context: Arc<CudaContext>,
}

impl Product {
    /// A product of up to `most` rows of `k` values, `stride` values apart, with `[n, k]`.
    ///
    /// # Errors
    /// No library, sizes that it does not support.
    pub fn new(device: &Device, n: usize, k: usize, stride: usize, most: usize) -> Result<Self, KernelError> {
        // SAFETY: only tries to load the library by its names.
        if !unsafe { sys::is_culib_present() } {
            return Err(KernelError::NoLibrary {
                library: "cuBLASLt (libcublasLt)",
                purpose: "prompt chunks",
            });
        }
        let failed = |error| failed(n, k, error);
        let context = device.context().clone();
        context.bind_to_thread().map_err(|error| KernelError::driver("cuCtxSetCurrent", error))?;
        let handle = Handle(result::create_handle().map_err(failed)?);
        let operation = Operation::new().map_err(failed)?;
        let preference = Preference::new().map_err(failed)?;
        let named = |rows: usize| {
            let shape = Layouts::new(n, k, stride, rows)?;
            // SAFETY: every descriptor lives until the end of the call.
            let found = unsafe {
                result::get_matmul_algo_heuristic(
                    handle.0,
                    operation.0,
                    shape.w,
                    shape.x,
                    shape.y,
                    shape.y,
                    preference.0,
                )
            };
            found.map(|found| found.algo)
        };
        let largest = (most, named(most).map_err(failed)?);
        let smaller: Result<Vec<_>, _> =
            SIZES.into_iter().filter(|rows| *rows < most).map(|rows| Ok((rows, named(rows)?))).collect();
        let mut algorithms = smaller.map_err(failed)?;
        algorithms.push(largest);
        let mut product = Self { handle, algorithms, operation, n, k, stride, most, context };
        product.keep_same_bits(&device.stream()?)?;
        Ok(product)
    }

    /// Drops every algorithm that gives other bits than the one for the most rows.
    fn keep_same_bits(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let (rows, columns) = (PROBE.min(self.most), PROBE.min(self.n));
        let (x, w) = (probe(rows, self.k, self.stride, false), probe(columns, self.k, self.k, true));
        let (x, w) = (upload(stream, &x)?, upload(stream, &w)?);
        let x = TensorRef::new(stream, x.as_view(), [rows, self.stride])?;
        let w = TensorRef::new(stream, w.as_view(), [columns, self.k])?;
        let bits = |algorithm: &sys::cublasLtMatmulAlgo_t| -> Result<Vec<u16>, KernelError> {
            let mut memory = upload(stream, &vec![bf16::NAN; rows * columns])?;
            let y = TensorMut::new(stream, memory.slice_mut(..), [rows, columns])?;
            self.multiply(stream, algorithm, &x, &w, &y)?;
            let y = stream.cuda().clone_dtoh(&memory);
            let y = y.map_err(|error| KernelError::driver("comparing products", error))?;
            Ok(y.into_iter().map(bf16::to_bits).collect())
        };
        let Some((_, largest)) = self.algorithms.last() else { return Ok(()) };
        let expected = bits(largest)?;
        let kept: Result<Vec<bool>, _> =
            self.algorithms.iter().map(|(_, algorithm)| Ok(bits(algorithm)? == expected)).collect();
        let mut kept = kept?.into_iter();
        self.algorithms.retain(|_| kept.next().unwrap_or_default());
        Ok(())
    }

    /// `y[m] = W x[m][..k]` for the rows of `x` `[M, stride]`, `w` `[n, k]` and `y` `[M, n]`. Safe to capture in a graph.
    ///
    /// # Errors
    /// Operands of other sizes, more rows than were announced, a refused launch.
    pub fn launch(
        &self,
        stream: &Stream,
        x: &TensorRef<'_, bf16, 2>,
        w: &TensorRef<'_, bf16, 2>,
        y: &mut TensorMut<'_, bf16, 2>,
    ) -> Result<(), KernelError> {
        let rows = x.dim(0);
        let shape = |operand, axis, formula, found: i64, expected: i64| {
            let error = || KernelError::Shape {
                family: "product",
                operand,
                axis,
                formula,
                expected: expected.to_string(),
                found,
            };
            if found == expected { Ok(()) } else { Err(error()) }
        };
        let int = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        shape("x", 1, "the stride", x.dim(1), int(self.stride))?;
        shape("w", 0, "N", w.dim(0), int(self.n))?;
        shape("w", 1, "K", w.dim(1), int(self.k))?;
        shape("y", 0, "M", y.dim(0), rows)?;
        shape("y", 1, "N", y.dim(1), int(self.n))?;
        let count = usize::try_from(rows).unwrap_or(usize::MAX);
        if count > self.most {
            let unit = format!("product with [{}, {}]", self.n, self.k);
            return Err(KernelError::Limit { unit, what: "rows", value: rows, limit: int(self.most) });
        }
        if count == 0 {
            return Ok(());
        }
        let named = self.algorithms.iter().find(|(most, _)| count <= *most);
        named.map_or(Ok(()), |(_, algorithm)| self.multiply(stream, algorithm, x, w, y))
    }

    /// The same by `algorithm`, for any number of rows of `w`, whose operands have been checked.
    fn multiply(
        &self,
        stream: &Stream,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        x: &TensorRef<'_, bf16, 2>,
        w: &TensorRef<'_, bf16, 2>,
        y: &TensorMut<'_, bf16, 2>,
    ) -> Result<(), KernelError> {
        let failed = |error| failed(self.n, self.k, error);
        self.context.bind_to_thread().map_err(|error| KernelError::driver("cuCtxSetCurrent", error))?;
        let [rows, ..] = x.shape();
        let [columns, ..] = w.shape();
        let shape = Layouts::new(columns, self.k, self.stride, rows).map_err(failed)?;
        let (one, zero) = (1.0f32, 0.0f32);
        let out = y.address as *mut c_void;
        // SAFETY: the descriptors live across the call, which copies them and the factors; the operands have the sizes
        // that the layouts say, and live on this device.
        let status = unsafe {
            result::matmul(
                self.handle.0,
                self.operation.0,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                w.address as *const c_void,
                shape.w,
                x.address as *const c_void,
                shape.x,
                out,
                shape.y,
                out,
                shape.y,
                algorithm,
                std::ptr::null_mut(),
                0,
                stream.cuda().cu_stream().cast(),
            )
        };
        status.map_err(failed)
    }
}

// SAFETY: the library's handles and descriptors may be used from any thread; nothing here changes them after `new`.
unsafe impl Send for Product {}
// SAFETY: as for Send; the library allows concurrent calls with one handle.
unsafe impl Sync for Product {}

/// `rows` rows of `width` values, of which products take `k`. Sums of two such rows, one of them `mirrored`, take the first half of what
/// they add off again: what is left is what was rounded on the way, in the order in which it was added.
fn probe(rows: usize, k: usize, width: usize, mirrored: bool) -> Vec<bf16> {
    let (values, half) = (Random::new(1).values(VALUES, 1.0), k.div_ceil(2));
    let value = |row: usize, i: usize| {
        let value = values[(row * k + i % half) % VALUES];
        if mirrored && i >= half { -value } else { value }
    };
    (0..rows).flat_map(|row| (0..width).map(move |i| (row, i))).map(|(row, i)| value(row, i)).collect()
}

fn failed(n: usize, k: usize, error: CublasError) -> KernelError {
    KernelError::Driver { what: format!("cuBLASLt, product with [{n}, {k}]"), code: error.to_string() }
}

#[derive(Debug)]
struct Handle(sys::cublasLtHandle_t);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `create_handle`, destroyed once. An error has nowhere to go.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// f32 sums; the library's matrices are column-major, so the row-major `[N, K]` is a `[K, N]` to be transposed.
#[derive(Debug)]
struct Operation(sys::cublasLtMatmulDesc_t);

impl Operation {
    fn new() -> Result<Self, CublasError> {
        let operation = Self(result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType::CUDA_R_32F,
        )?);
        let transposed: i32 = 1; // CUBLAS_OP_T
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let bytes = size_of_val(&transposed);
        // SAFETY: the attribute is an int32, copied by the call.
        unsafe {
            result::set_matmul_desc_attribute(
                operation.0,
                attribute,
                std::ptr::from_ref(&transposed).cast(),
                bytes,
            )?;
        }
        Ok(operation)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made by `create_matmul_desc`, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// No workspace and no split sums.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self, CublasError> {
        let preference = Self(result::create_matmul_pref()?);
        let (workspace, reductions) = (0u64, 0u32);
        let (bytes, schemes) = (size_of_val(&workspace), size_of_val(&reductions));
        // SAFETY: a u64 and a u32 attribute, copied by the calls.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&workspace).cast(),
                bytes,
            )?;
            result::set_matmul_pref_attribute(
                preference.0,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                std::ptr::from_ref(&reductions).cast(),
                schemes,
            )?;
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `create_matmul_pref`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// The three matrices as the library sees them, for one number of rows.
struct Layouts {
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    y: sys::cublasLtMatrixLayout_t,
}

impl Layouts {
    fn new(n: usize, k: usize, stride: usize, rows: usize) -> Result<Self, CublasError> {
        let layout = |height: usize, width: usize, step: usize| {
            let step = i64::try_from(step).unwrap_or(-1); // refused by the library
            result::create_matrix_layout(sys::cudaDataType::CUDA_R_16BF, height as u64, width as u64, step)
        };
        let mut layouts = Self { w: std::ptr::null_mut(), x: std::ptr::null_mut(), y: std::ptr::null_mut() };
        layouts.w = layout(k, n, k)?;
        layouts.x = layout(k, rows, stride)?;
        layouts.y = layout(n, rows, n)?;
        Ok(layouts)
    }
}

impl Drop for Layouts {
    fn drop(&mut self) {
        for layout in [self.w, self.x, self.y] {
            if !layout.is_null() {
                // SAFETY: made by `create_matrix_layout`, destroyed once.
                let _ = unsafe { result::destroy_matrix_layout(layout) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of products of two rows, `parts` runs of terms added one by one and then together.
    fn sum(x: &[bf16], w: &[bf16], parts: usize) -> bf16 {
        let terms: Vec<f32> = x.iter().zip(w).map(|(x, w)| x.to_f32() * w.to_f32()).collect();
        let runs = terms.chunks(terms.len().div_ceil(parts)).map(|run| run.iter().sum::<f32>());
        bf16::from_f32(runs.sum())
    }

    #[test]
    fn a_probe_shows_in_which_order_it_was_added() {
        for k in [1536, 7168] {
            let (x, w) = (probe(16, k, k, false), probe(16, k, k, true));
            let row = |from: &[bf16], at: usize| from[at * k..][..k].to_vec();
            // Squares, row by row, are sums without rounding.
            let pairs: Vec<_> = (0..256).map(|pair| (pair / 16, pair % 16)).filter(|(a, b)| a != b).collect();
            let shows = |parts: usize, (a, b): (usize, usize)| {
                let (x, w) = (row(&x, a), row(&w, b));
                sum(&x, &w, 1).to_bits() != sum(&x, &w, parts).to_bits()
            };
            for parts in [3, 4, 8] {
                let shown = pairs.iter().filter(|pair| shows(parts, **pair)).count();
                assert!(shown > 200, "{shown} of 240 sums of {k} terms show {parts} parts");
            }
        }
    }
}
