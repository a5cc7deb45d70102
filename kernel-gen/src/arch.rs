//! The architectures that kernels are compiled for.

/// A target architecture and the limits a unit is checked against before the compiler runs.
///
/// Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// The compiler's name, as in `-arch=sm_90a`.
    pub name: &'static str,
    /// Compute capability that runs the image.
    pub capability: (i32, i32),
    /// Largest shared memory of one CTA, in bytes (opt-in).
    pub smem_per_cta: i64,
    /// Shared memory of one SM, in bytes; each resident CTA takes [`Arch::SMEM_RESERVED`] more than it asks for.
    pub smem_per_sm: i64,
    /// Most threads of all CTAs on one SM.
    pub threads_per_sm: i64,
    /// The compiler's name of the virtual architecture that the image is made through.
    pub compute: &'static str,
    /// Whether the PTX is kept beside the SASS, for devices newer than this release. The PTX of an architecture with
    /// the suffix `a` runs on no other, so keeping it would serve nobody.
    pub keeps_ptx: bool,
}

/// Every architecture, in build order.
pub const ARCHS: [Arch; 2] = [
    Arch {
        name: "sm_120",
        capability: (12, 0),
        smem_per_cta: 101_376,
        smem_per_sm: 102_400,
        threads_per_sm: 1536,
        compute: "compute_120",
        keeps_ptx: true,
    },
    Arch {
        name: "sm_90a",
        capability: (9, 0),
        smem_per_cta: 232_448,
        smem_per_sm: 233_472,
        threads_per_sm: 2048,
        compute: "compute_90a",
        keeps_ptx: false,
    },
];

impl Arch {
    /// Shared memory that the system takes from each CTA, in bytes.
    pub const SMEM_RESERVED: i64 = 1024;
    /// Threads that fit on one SM of either architecture at least.
    pub const MAX_BLOCK: i64 = 1024;

    /// The architecture that the compiler calls `name`.
    pub fn named(name: &str) -> Option<Self> {
        ARCHS.into_iter().find(|arch| arch.name == name)
    }
}
