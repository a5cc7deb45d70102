//! CTAs per SM, and launching on one architecture with as many as another would have.

use std::path::PathBuf;

use cudarc::driver::sys::CUdevice_attribute;

use super::KernelError;
use crate::bundle::Row;
use crate::{Bundle, Device};

/// What an SM has (CUDA C++ Programming Guide, technical specifications per compute capability).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sm {
    threads: u32,
    ctas: u32,
    registers: u32,
    /// Shared memory in bytes; each CTA takes [`RESERVED`] more than it asks for.
    smem: u32,
}

/// Shared memory that the system takes from each CTA, in bytes.
const RESERVED: u32 = 1024;
/// Registers of a warp come in multiples of this.
const REGISTER_UNIT: u32 = 256;

/// Architectures that others may be measured as.
const KNOWN: [(&str, Sm); 1] = [("sm_120", Sm { threads: 1536, ctas: 24, registers: 65_536, smem: 102_400 })];

/// The CTAs per SM of another architecture, forced on this device.
#[derive(Debug)]
pub(super) struct Residency {
    sm: Sm,
    /// Units as compiled for the other architecture.
    units: Vec<Row>,
    path: PathBuf,
    device: DeviceSmem,
}

/// Shared memory of an SM and of the largest CTA of a device, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceSmem {
    per_sm: u32,
    per_cta: u32,
}

/// The constant with which a declaration limits its CTAs on an SM.
const MOST: &str = "MAX_CTAS";

impl DeviceSmem {
    pub(super) fn of(device: &Device) -> Result<Self, KernelError> {
        let attribute = |which| {
            let value = device.context().attribute(which);
            let value = value.map_err(|error| KernelError::driver("asking for shared memory", error))?;
            Ok(u32::try_from(value).unwrap_or_default())
        };
        Ok(Self {
            per_sm: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            per_cta: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        })
    }

    /// Shared memory with which an SM holds no more CTAs of `row` than it declares.
    pub(super) fn declared(&self, row: &Row) -> u32 {
        let most = row.constants.get(MOST).and_then(|most| u32::try_from(*most).ok());
        most.map_or(row.smem, |most| self.padded(most, row.smem))
    }

    /// The most shared memory with which `wanted` CTAs still fit, but not less than `smem`.
    fn padded(&self, wanted: u32, smem: u32) -> u32 {
        let share = (self.per_sm / wanted.max(1)).saturating_sub(RESERVED) / 128 * 128;
        share.min(self.per_cta).max(smem)
    }
}

impl Residency {
    pub(super) fn new(device: &Device, other: &Bundle) -> Result<Self, KernelError> {
        let header = other.header();
        let Some((_, sm)) = KNOWN.iter().find(|(arch, _)| *arch == header.arch) else {
            let what = format!("the CTAs per SM of {} are not known", header.arch);
            return Err(KernelError::BadBundle { path: other.path().to_owned(), what });
        };
        let (units, path) = (header.units.clone(), other.path().to_owned());
        Ok(Self { sm: *sm, units, path, device: DeviceSmem::of(device)? })
    }

    /// Whether the other architecture has `row` too.
    pub(super) fn has(&self, row: &Row) -> bool {
        self.units.iter().any(|there| there.unit == row.unit)
    }

    /// Shared memory with which no more CTAs of `row` fit on an SM of this device than on the other.
    pub(super) fn smem(&self, row: &Row) -> Result<u32, KernelError> {
        let Some(there) = self.units.iter().find(|there| there.unit == row.unit) else {
            let what = format!("has no {}, whose CTAs per SM are asked for", row.unit);
            return Err(KernelError::BadBundle { path: self.path.clone(), what });
        };
        let wanted = ctas(&self.sm, there.block, there.registers, there.smem);
        Ok(self.device.padded(wanted, row.smem))
    }
}

/// CTAs of `block` threads, with `registers` a thread and `smem` bytes, that fit on `sm`; at least 1.
fn ctas(sm: &Sm, block: u32, registers: u32, smem: u32) -> u32 {
    let warps = block.div_ceil(32).max(1);
    let registers = (registers.max(1) * 32).div_ceil(REGISTER_UNIT) * REGISTER_UNIT * warps;
    let limits = [sm.ctas, sm.threads / (warps * 32), sm.registers / registers, sm.smem / (smem + RESERVED)];
    limits.into_iter().min().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SM_120: Sm = KNOWN[0].1;

    #[test]
    fn the_scarcest_resource_limits_the_ctas() {
        assert_eq!(ctas(&SM_120, 64, 16, 0), 24, "CTAs");
        assert_eq!(ctas(&SM_120, 512, 32, 0), 3, "threads");
        assert_eq!(ctas(&SM_120, 256, 128, 0), 2, "registers");
        assert_eq!(ctas(&SM_120, 256, 129, 0), 1, "registers of a warp are rounded up");
        assert_eq!(ctas(&SM_120, 128, 64, 49_152), 2, "shared memory");
        assert_eq!(ctas(&SM_120, 128, 64, 101_376), 1, "shared memory of the largest CTA");
    }

    #[test]
    fn padding_leaves_room_for_just_as_many() {
        let sm = DeviceSmem { per_sm: 233_472, per_cta: 232_448 };
        for wanted in 1..=24 {
            for smem in [0, 4_096, 8_192] {
                let padded = sm.padded(wanted, smem);
                assert_eq!(
                    sm.per_sm / (padded + RESERVED),
                    wanted,
                    "{wanted} CTAs of {smem} bytes: {padded}"
                );
            }
        }
        assert_eq!(sm.padded(24, 101_376), 101_376, "never less than the kernel needs");
    }
}
