//! Tensor maps: matrices that kernels copy to shared memory in boxes.

use std::ptr;

use cudarc::driver::sys;
use half::bf16;

use super::{KernelError, TensorRef};

/// Most rows of a box (CUDA driver API, cuTensorMapEncodeTiled).
const MOST_ROWS: i64 = 256;

/// What the driver makes of a matrix and the rows and columns of its boxes: a kernel parameter. In shared memory, rows follow
/// each other without gaps and their vectors of 16 bytes are permuted; outside of the matrix there are zeros.
///
/// # Errors
/// Boxes of other than 32 or 64 columns or of more than 256 rows; rows that are not whole vectors; a driver that refuses.
pub(super) fn tensor_map(
    matrix: &TensorRef<'_, bf16, 2>,
    [rows, columns]: [i64; 2],
) -> Result<[u64; 16], KernelError> {
    let bad = |what: &str| KernelError::BadTensor { shape: matrix.shape().to_vec(), what: what.to_owned() };
    let swizzle = match columns {
        32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => return Err(bad("a box has 32 or 64 columns")),
    };
    if !(1..=MOST_ROWS).contains(&rows) {
        return Err(bad("a box has 1 to 256 rows"));
    }
    let [height, width] = matrix.shape().map(|size| size as u64);
    if !width.is_multiple_of(8) {
        return Err(bad("rows must be whole vectors of 16 bytes"));
    }
    let (sizes, pitch) = ([width, height], [width * size_of::<bf16>() as u64]);
    let (size, steps) = ([columns, rows].map(|side| side as u32), [1, 1]);
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: every pointer is to a local of the length that two axes need; the matrix's address is only noted.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            ptr::with_exposed_provenance_mut(matrix.address as usize),
            sizes.as_ptr(),
            pitch.as_ptr(),
            size.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(|error| KernelError::driver("describing a matrix in boxes", error))?;
    Ok(map.opaque)
}
