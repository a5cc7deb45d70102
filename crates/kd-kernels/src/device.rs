//! Probing and opening a device without ever panicking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUdevice_attribute};
use cudarc::driver::{CudaContext, CudaStream, result};

use crate::KernelError;

/// Images of this release are made by CUDA 13.0, which needs a driver of the same major version.
const NEEDED: i32 = 13_000;

/// Architectures with images, and the compute capabilities that run them: SASS of an `a` architecture runs on that
/// capability alone, other SASS on later minors as well.
const ARCHS: [(&str, i32, std::ops::RangeInclusive<i32>); 2] =
    [("sm_90a", 9, 0..=0), ("sm_120", 12, 0..=i32::MAX)];

/// An open CUDA device.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    name: String,
    arch: &'static str,
    sms: u32,
    frozen: Arc<AtomicBool>,
}

/// A stream of a device, on which launches are ordered.
#[derive(Clone, Debug)]
pub struct Stream {
    cuda: Arc<CudaStream>,
    sms: u32,
    frozen: Arc<AtomicBool>,
    /// Families whose launches are made; all if there is no such choice.
    admitted: Option<fn(&str) -> bool>,
}

/// The CUDA version that the driver supports, as 1000 × major + 10 × minor.
///
/// # Errors
/// No driver library, or one that does not answer.
pub fn driver_version() -> Result<i32, KernelError> {
    // SAFETY: only tries to load the library by name. Every other driver call of the wrapper panics without it.
    if !unsafe { sys::is_culib_present() } {
        return Err(KernelError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: writes one int; needs no initialised driver, and exists in every driver since CUDA 2.2.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    status.result().map_err(|error| KernelError::driver("cuDriverGetVersion", error))?;
    Ok(version)
}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// No driver, an old driver, no such device, a device that no image is made for.
    pub fn open(ordinal: usize) -> Result<Self, KernelError> {
        let version = driver_version()?;
        usable_driver(version)?;
        result::init().map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => KernelError::NoDevice { ordinal, count: 0 },
            _ => KernelError::driver("cuInit", error),
        })?;
        let count =
            CudaContext::device_count().map_err(|error| KernelError::driver("cuDeviceGetCount", error))?;
        let count = usize::try_from(count).unwrap_or_default();
        if ordinal >= count {
            return Err(KernelError::NoDevice { ordinal, count });
        }
        let failed = |error| KernelError::driver(format!("opening CUDA device {ordinal}"), error);
        let context = CudaContext::new(ordinal).map_err(failed)?;
        // SAFETY: nothing has been allocated in this context yet. Streams are ordered by the callers from here on; the
        // events that the wrapper would record make a stream capture fail.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(failed)?;
        let (major, minor) = context.compute_capability().map_err(failed)?;
        let arch = arch_of(&name, major, minor)?;
        let sms = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(failed)?;
        let sms = u32::try_from(sms).unwrap_or(1);
        Ok(Self { context, name, arch, sms, frozen: Arc::default() })
    }

    /// A new stream.
    ///
    /// # Errors
    /// A driver that cannot make one.
    pub fn stream(&self) -> Result<Stream, KernelError> {
        let cuda = self.context.new_stream().map_err(|error| KernelError::driver("cuStreamCreate", error))?;
        Ok(Stream { cuda, sms: self.sms, frozen: self.frozen.clone(), admitted: None })
    }

    /// Ends the warm-up: from here on loading a kernel, making a [`crate::Buffer`] and capturing a graph on any stream of this
    /// device are errors, so that serving neither compiles nor allocates. There is no way back.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Fails after [`freeze`](Self::freeze); `what` is called for the message.
    pub(crate) fn warming_up(&self, what: impl FnOnce() -> String) -> Result<(), KernelError> {
        warming_up(&self.frozen, what)
    }

    /// The device's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The architecture whose SASS the device runs.
    pub fn arch(&self) -> &'static str {
        self.arch
    }

    /// Streaming multiprocessors.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// Bytes of the device that this process's buffers keep, now and at most so far, whatever other processes take; kernels and graphs
    /// are not among them.
    ///
    /// # Errors
    /// A device without pools of memory, a failed call.
    pub fn kept(&self) -> Result<(u64, u64), KernelError> {
        use sys::CUmemPool_attribute::{
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as NOW, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as MOST,
        };
        let failed = |error| KernelError::driver("asking a pool of memory", error);
        self.context.bind_to_thread().map_err(failed)?;
        // SAFETY: the device is that of an open context.
        let pool = unsafe { result::device::get_mem_pool(self.context.cu_device()) }.map_err(failed)?;
        let ask = |attribute| {
            let mut bytes = 0_u64;
            // SAFETY: the pool is the device's own; both attributes are of 64 bits.
            unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) }
                .map_err(failed)?;
            Ok(bytes)
        };
        Ok((ask(NOW)?, ask(MOST)?))
    }

    /// The driver wrapper's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Stream {
    /// The driver wrapper's stream, for allocation and copies.
    pub fn cuda(&self) -> &Arc<CudaStream> {
        &self.cuda
    }

    /// The same stream, on which launches of other families than `admits` are left out as if there were nothing to do: a
    /// part of a pass, to be timed alone. What such a part computes means nothing.
    pub fn admitting(&self, admits: fn(&str) -> bool) -> Self {
        Self { admitted: Some(admits), ..self.clone() }
    }

    /// The same stream, admitting what `other` admits.
    pub(crate) fn admitting_as(&self, other: &Self) -> Self {
        Self { admitted: other.admitted, ..self.clone() }
    }

    /// Whether launches of `family` are made.
    pub(crate) fn admits(&self, family: &str) -> bool {
        self.admitted.is_none_or(|admits| admits(family))
    }

    /// Waits for all work on the stream.
    ///
    /// # Errors
    /// A failed launch or copy surfaces here.
    pub fn synchronize(&self) -> Result<(), KernelError> {
        self.cuda.synchronize().map_err(|error| KernelError::driver("cuStreamSynchronize", error))
    }

    /// Another stream of the same device.
    pub(crate) fn beside(&self) -> Result<Self, cudarc::driver::DriverError> {
        Ok(Self { cuda: self.cuda.context().new_stream()?, ..self.clone() })
    }

    pub(crate) fn sms(&self) -> u32 {
        self.sms
    }

    /// As [`Device::warming_up`], for the device of this stream.
    pub(crate) fn warming_up(&self, what: impl FnOnce() -> String) -> Result<(), KernelError> {
        warming_up(&self.frozen, what)
    }
}

fn warming_up(frozen: &AtomicBool, what: impl FnOnce() -> String) -> Result<(), KernelError> {
    if frozen.load(Ordering::Acquire) { Err(KernelError::Frozen { what: what() }) } else { Ok(()) }
}

fn usable_driver(version: i32) -> Result<(), KernelError> {
    let spell = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    if version >= NEEDED {
        return Ok(());
    }
    Err(KernelError::DriverTooOld { found: spell(version), needed: spell(NEEDED) })
}

pub(crate) fn arch_of(device: &str, major: i32, minor: i32) -> Result<&'static str, KernelError> {
    let runs = |(_, image_major, minors): &&(&str, i32, std::ops::RangeInclusive<i32>)| {
        *image_major == major && minors.contains(&minor)
    };
    let found = ARCHS.iter().find(runs).map(|(name, ..)| *name);
    found.ok_or_else(|| KernelError::UnsupportedArch {
        device: device.to_owned(),
        major,
        minor,
        supported: ARCHS.map(|(name, ..)| name).join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_never_panics() {
        // Whatever this machine has: an answer or a typed error.
        match Device::open(0) {
            Ok(device) => assert!(device.sms() > 0),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(Device::open(usize::MAX).is_err());
    }

    #[test]
    fn an_old_driver_is_a_typed_error() {
        let message = usable_driver(12_080).expect_err("too old").to_string();
        assert!(message.contains("CUDA 12.8") && message.contains("13.0"), "{message}");
        assert!(usable_driver(13_000).is_ok());
    }

    #[test]
    fn a_freeze_refuses_and_says_what() {
        let frozen = AtomicBool::new(false);
        assert_eq!(warming_up(&frozen, || unreachable!()), Ok(()));
        frozen.store(true, Ordering::Release);
        let message = warming_up(&frozen, || "loading rms_norm".to_owned()).expect_err("frozen").to_string();
        assert!(message.starts_with("loading rms_norm: the device is frozen"), "{message}");
    }

    #[test]
    fn a_foreign_architecture_is_a_typed_error() {
        assert_eq!(arch_of("H200", 9, 0), Ok("sm_90a"));
        assert_eq!(arch_of("RTX PRO 6000", 12, 0), Ok("sm_120"));
        for (major, minor) in [(8, 0), (9, 1), (10, 0), (13, 0)] {
            let message = arch_of("other", major, minor).expect_err("foreign").to_string();
            assert!(message.contains(&format!("{major}.{minor}")) && message.contains("sm_120"), "{message}");
        }
    }
}
