//! One buffer that a launch would both read and write.

use std::error::Error;

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_kernels::families::rms_norm::{Args, RmsNorm};
use kd_kernels::{Choice, Stream, TensorMut, TensorRef};

fn launch(norm: &RmsNorm, stream: &Stream, gain: &CudaSlice<bf16>, x: &mut CudaSlice<bf16>) -> Result<(), Box<dyn Error>> {
    let args = Args {
        x: TensorRef::new(stream, x.as_view(), [1, 512])?,
        gain: TensorRef::new(stream, gain.as_view(), [512])?,
        eps: 1e-5,
        y: TensorMut::new(stream, x.as_view_mut(), [1, 512])?,
    };
    norm.launch(stream, Choice::Auto, args)?;
    Ok(())
}

fn main() {}
