//! Pages of either format on the device.

use half::bf16;
use kd_kernels::selftest::{driver, upload};
use kd_kernels::{CudaSlice, KernelError, Stream};

use super::case::Widths;
use crate::{Fp8Entry, PAGE_TOKENS};

/// The pages of one layer.
#[derive(Debug)]
pub(crate) enum Pages {
    Bf16(CudaSlice<bf16>),
    Fp8(CudaSlice<u8>),
}

impl Pages {
    /// So many, of which every value is NaN.
    pub(crate) fn poisoned(stream: &Stream, widths: Widths, pages: usize) -> Result<Self, KernelError> {
        let tokens = pages * PAGE_TOKENS;
        Ok(if widths.fp8 {
            Self::Fp8(upload(stream, &vec![u8::MAX; tokens * widths.entry().bytes()])?)
        } else {
            Self::Bf16(upload(stream, &vec![bf16::NAN; tokens * widths.key()])?)
        })
    }

    /// So many zeroed ones: more than are worth a copy from the host.
    pub(crate) fn zeroed(stream: &Stream, widths: Widths, pages: usize) -> Result<Self, KernelError> {
        let (tokens, cuda) = (pages * PAGE_TOKENS, stream.cuda());
        Ok(if widths.fp8 {
            Self::Fp8(cuda.alloc_zeros(tokens * widths.entry().bytes()).map_err(driver)?)
        } else {
            Self::Bf16(cuda.alloc_zeros(tokens * widths.key()).map_err(driver)?)
        })
    }

    /// Writes entries `[tokens, key]` from token `first` of the pages on.
    pub(crate) fn write(
        &mut self,
        stream: &Stream,
        widths: Widths,
        first: usize,
        entries: &[bf16],
    ) -> Result<(), KernelError> {
        let (cuda, key) = (stream.cuda(), widths.key());
        match self {
            Self::Bf16(pages) => {
                let mut to = pages.slice_mut(first * key..first * key + entries.len());
                cuda.memcpy_htod(entries, &mut to).map_err(driver)
            }
            Self::Fp8(pages) => {
                let bytes = encoded(widths.entry(), entries);
                let at = first * widths.entry().bytes();
                let mut to = pages.slice_mut(at..at + bytes.len());
                cuda.memcpy_htod(&bytes, &mut to).map_err(driver)
            }
        }
    }
}

/// Entries `[tokens, key]` as pages hold them.
pub(crate) fn encoded(entry: Fp8Entry, entries: &[bf16]) -> Vec<u8> {
    let mut bytes = vec![0; entries.len() / entry.width() * entry.bytes()];
    for (values, to) in entries.chunks_exact(entry.width()).zip(bytes.chunks_exact_mut(entry.bytes())) {
        let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
        entry.encode(&values, to);
    }
    bytes
}

/// Makes of entries `[tokens, key]` what pages would give back of them.
pub(crate) fn rounded(entry: Fp8Entry, entries: &mut [bf16]) {
    for values in entries.chunks_exact_mut(entry.width()) {
        let mut wide: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
        entry.round(&mut wide);
        values.iter_mut().zip(wide).for_each(|(value, wide)| *value = bf16::from_f32(wide));
    }
}
