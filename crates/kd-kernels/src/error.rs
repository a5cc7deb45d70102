//! What can go wrong between a device and a launch.

use std::path::PathBuf;

/// An error of this crate. Each names the thing, the limit and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The machine has no CUDA driver library.
    #[error("no CUDA driver (libcuda) on this machine; use the CPU, or install the NVIDIA driver")]
    NoDriver,
    /// A CUDA library is missing.
    #[error(
        "no {library} on this machine, which {purpose} need; install the CUDA runtime libraries, or set LD_LIBRARY_PATH to them"
    )]
    NoLibrary {
        /// Library.
        library: &'static str,
        /// What needs it.
        purpose: &'static str,
    },
    /// The driver cannot run images of this release.
    #[error("the CUDA driver supports CUDA {found}, images need {needed}; update the NVIDIA driver")]
    DriverTooOld {
        /// What the driver supports.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// The driver is there but the device is not.
    #[error("no CUDA device {ordinal}: the driver sees {count}")]
    NoDevice {
        /// Asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// No images are made for devices of this kind.
    #[error("{device} has compute capability {major}.{minor}; kernels are built for {supported}")]
    UnsupportedArch {
        /// Device name.
        device: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
        /// Architectures with images.
        supported: String,
    },
    /// A driver call failed.
    #[error("{what}: {code}")]
    Driver {
        /// What was being done.
        what: String,
        /// The driver's name for the error.
        code: String,
    },
    /// The driver refuses an image.
    #[error(
        "{unit}: the driver of {device} refuses the {image} image ({code}); build kernels for this device's architecture with `cargo xtask build-kernels --arch {arch}`"
    )]
    ImageRefused {
        /// Unit.
        unit: String,
        /// Architecture of the image.
        image: String,
        /// Device name.
        device: String,
        /// Architecture of the device.
        arch: String,
        /// The driver's name for the error.
        code: String,
    },
    /// No bundle for this profile and architecture.
    #[error(
        "no kernel bundle {file} in {searched}; run `cargo xtask build-kernels --profile {profile} --arch {arch}`"
    )]
    BundleMissing {
        /// File that was looked for.
        file: String,
        /// Where.
        searched: String,
        /// Profile.
        profile: String,
        /// Architecture to build for.
        arch: String,
    },
    /// A bundle that cannot be used.
    #[error("kernel bundle {}: {what}; run `cargo xtask build-kernels`", path.display())]
    BadBundle {
        /// File.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A bundle without the dimensions that are needed.
    #[error("{family}: no image for {wanted} in the bundle of profile {profile}; it has {available}")]
    NoUnit {
        /// Family.
        family: &'static str,
        /// Dimensions asked for.
        wanted: String,
        /// Profile of the bundle.
        profile: String,
        /// Dimensions present.
        available: String,
    },
    /// A unit that is not keyed by a dimension.
    #[error("{unit}: the bundle gives it no dimension {name}; run `cargo xtask build-kernels`")]
    NoDimension {
        /// Unit.
        unit: String,
        /// Dimension.
        name: String,
    },
    /// An image built from another declaration than the launcher.
    #[error(
        "{unit}: the image was built from another declaration ({found}, launcher {expected}); run `cargo xtask build-kernels`"
    )]
    StaleImage {
        /// Unit.
        unit: String,
        /// Fingerprint in the bundle.
        found: String,
        /// Fingerprint in the launcher.
        expected: &'static str,
    },
    /// An operand of the wrong size.
    #[error("{family}: axis {axis} of `{operand}` is {found}, but {formula} = {expected}")]
    Shape {
        /// Family.
        family: &'static str,
        /// Operand.
        operand: &'static str,
        /// Axis, outermost first.
        axis: usize,
        /// Its size in the declaration.
        formula: &'static str,
        /// The value of that.
        expected: String,
        /// What was passed.
        found: i64,
    },
    /// A tensor whose shape and memory disagree, or that a kernel cannot read.
    #[error("tensor of shape {shape:?}: {what}")]
    BadTensor {
        /// Shape.
        shape: Vec<usize>,
        /// Why.
        what: String,
    },
    /// A forced variant that does not exist or was not built for these dimensions.
    #[error("{family}: no variant `{variant}` for these dimensions; there are {known}")]
    UnknownVariant {
        /// Family.
        family: &'static str,
        /// Asked for.
        variant: String,
        /// Loaded variants.
        known: String,
    },
    /// No variant, or not the forced one, can run these operands.
    #[error("{family}: {variant} cannot run these operands")]
    NotEligible {
        /// Family.
        family: &'static str,
        /// Which variant, or that none can.
        variant: String,
    },
    /// A launch that the device cannot make.
    #[error("{unit}: {what} is {value}, the limit is {limit}")]
    Limit {
        /// Unit.
        unit: String,
        /// What.
        what: &'static str,
        /// Its value.
        value: i64,
        /// The most it may be.
        limit: i64,
    },
    /// Partial sums of ranks that could not be brought together.
    #[error("exchange between ranks: {what}")]
    Exchange {
        /// What and why.
        what: String,
    },
    /// A load, allocation or capture after [`crate::Device::freeze`].
    #[error(
        "{what}: the device is frozen, nothing may be loaded or allocated while serving; do it before the freeze"
    )]
    Frozen {
        /// What was asked for.
        what: String,
    },
}

impl KernelError {
    /// What a failed driver call becomes.
    pub fn driver(what: impl Into<String>, error: cudarc::driver::DriverError) -> Self {
        Self::Driver { what: what.into(), code: code(error) }
    }
}

/// `CUDA_ERROR_NO_BINARY_FOR_GPU` and the like: the code's own name, without asking the driver.
pub(crate) fn code(error: cudarc::driver::DriverError) -> String {
    format!("{:?}", error.0)
}
