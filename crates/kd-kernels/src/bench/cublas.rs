//! The same product through cuBLASLt with its own heuristics, to compare with.

use cudarc::cublaslt::{CudaBlasLT, Matmul, MatmulConfig, sys};
use cudarc::driver::CudaSlice;
use half::bf16;

use crate::{KernelError, Stream};

/// cuBLASLt on one stream.
pub(super) struct Cublas(CudaBlasLT);

impl Cublas {
    /// `None` on a machine without the library.
    ///
    /// # Errors
    /// A library that does not start.
    pub(super) fn open(stream: &Stream) -> Result<Option<Self>, KernelError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        CudaBlasLT::new(stream.cuda().clone()).map(|handle| Some(Self(handle))).map_err(failed)
    }

    /// `y[m, n] = x[m, k] w[n, k]^T`.
    ///
    /// # Errors
    /// A size that the slices do not have, or a call that the library refuses.
    pub(super) fn product(
        &self,
        x: &CudaSlice<bf16>,
        w: &CudaSlice<bf16>,
        y: &mut CudaSlice<bf16>,
        [m, n, k]: [usize; 3],
    ) -> Result<(), KernelError> {
        let short = x.len() < m * k || w.len() < n * k || y.len() < m * n;
        let (Ok(k_pitch), Ok(n_pitch), false) = (i64::try_from(k), i64::try_from(n), short) else {
            let what = "memory is smaller than the product".to_owned();
            return Err(KernelError::BadTensor { shape: vec![m, n, k], what });
        };
        // The library stores columns: y^T = w x^T.
        let config = MatmulConfig {
            transa: true,
            transb: false,
            transc: false,
            m: n as u64,
            n: m as u64,
            k: k as u64,
            alpha: 1.0,
            lda: k_pitch,
            ldb: k_pitch,
            beta: 0.0,
            ldc: n_pitch,
            stride_a: None,
            stride_b: None,
            stride_c: None,
            stride_bias: None,
            batch_size: None,
        };
        // SAFETY: the slices hold the matrices that the configuration describes, as checked above.
        unsafe { self.0.matmul(config, w, x, y, None, None) }.map_err(failed)
    }
}

fn failed(error: impl std::fmt::Debug) -> KernelError {
    KernelError::Driver { what: "cuBLASLt".to_owned(), code: format!("{error:?}") }
}
