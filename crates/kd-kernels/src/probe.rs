//! What the driver knows about this machine, asked without opening a context.

use cudarc::driver::result;
use cudarc::driver::result::device;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use crate::KernelError;
use crate::device::{arch_of, driver_version};

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number.
    pub ordinal: usize,
    /// Its own name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Whose images it runs; none if no release has images for it.
    pub arch: Option<&'static str>,
    /// Bytes of memory.
    pub memory: usize,
    /// Address on the PCI bus, as the system spells it (`0000:3b:00.0`); empty if the driver does not say.
    pub pci: String,
    /// Ordinals of the GPUs whose memory it can reach directly.
    pub peers: Vec<usize>,
}

/// All GPUs of the driver, without opening any.
///
/// # Errors
/// No driver, or one that does not answer. A machine whose driver sees no GPU has an empty list.
pub fn gpus() -> Result<Vec<Gpu>, KernelError> {
    driver_version()?;
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| KernelError::driver(what, error)
    };
    match result::init() {
        Ok(()) => {}
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Ok(Vec::new()),
        Err(error) => return Err(KernelError::driver("cuInit", error)),
    }
    let count = device::get_count().map_err(failed("cuDeviceGetCount"))?;
    let handles: Vec<CUdevice> =
        (0..count).map(device::get).collect::<Result<_, _>>().map_err(failed("cuDeviceGet"))?;
    handles.iter().enumerate().map(|(ordinal, &handle)| gpu(ordinal, handle, &handles)).collect()
}

fn gpu(ordinal: usize, handle: CUdevice, all: &[CUdevice]) -> Result<Gpu, KernelError> {
    let failed = |error| KernelError::driver(format!("asking CUDA device {ordinal}"), error);
    let name = device::get_name(handle).map_err(failed)?;
    // SAFETY: `handle` came from `cuDeviceGet`.
    let attribute = |which| unsafe { device::get_attribute(handle, which) }.map_err(failed);
    let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // SAFETY: `handle` came from `cuDeviceGet`.
    let memory = unsafe { device::total_mem(handle) }.map_err(failed)?;
    let others = all.iter().enumerate().filter(|&(other, _)| other != ordinal);
    let peers = others.filter(|&(_, &other)| reaches(handle, other)).map(|(other, _)| other).collect();
    let arch = arch_of(&name, major, minor).ok();
    Ok(Gpu { ordinal, name, capability: (major, minor), arch, memory, pci: pci(handle), peers })
}

fn reaches(from: CUdevice, to: CUdevice) -> bool {
    let mut can = 0;
    // SAFETY: writes one int; both handles came from `cuDeviceGet`.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, from, to) };
    status.result().is_ok() && can != 0
}

fn pci(handle: CUdevice) -> String {
    let mut text = [0u8; 32];
    // SAFETY: writes at most as many bytes as it is told, a zero at the end among them.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, handle) };
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    match status.result() {
        Ok(()) => String::from_utf8_lossy(&text[..end]).to_lowercase(),
        Err(_) => String::new(),
    }
}

/// The CUDA libraries that the engine can use, and whether each can be loaded here.
pub fn libraries() -> [(&'static str, bool); 3] {
    // SAFETY: each only tries to load a library by its names.
    unsafe {
        [
            ("libcuda", sys::is_culib_present()),
            ("libcublasLt", cudarc::cublaslt::sys::is_culib_present()),
            ("libnccl", cudarc::nccl::sys::is_culib_present()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_never_panics() {
        let found = libraries();
        match gpus() {
            Ok(gpus) => assert!(gpus.iter().all(|gpu| gpu.memory > 0 && !gpu.name.is_empty())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_eq!(found[0].1, driver_version().is_ok());
    }
}
