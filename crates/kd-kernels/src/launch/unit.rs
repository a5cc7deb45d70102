//! An image in the driver, and its launch: the unsafe part.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute, CUlaunchAttributeID, CUresult};
use cudarc::driver::{CudaContext, result};

use super::{Geometry, KernelError, Params, Stream};
use crate::Device;
use crate::bundle::Row;
use crate::error::code;

/// Shared memory that a kernel may use without asking, in bytes.
const SMEM_WITHOUT_OPT_IN: u32 = 48 * 1024;

/// A loaded unit.
#[derive(Debug)]
pub struct LoadedUnit {
    row: Row,
    variant: &'static str,
    /// Shared memory of a launch, at least that of the row.
    smem: u32,
    function: sys::CUfunction,
    module: sys::CUmodule,
    context: Arc<CudaContext>,
    resident: u32,
    /// Clusters that the device holds at once; none where a cluster is one CTA.
    clusters: Option<u32>,
}

// SAFETY: module and function handles may be used from any thread that has the context current; every use here makes
// it current first, and nothing changes the function after loading.
unsafe impl Send for LoadedUnit {}
// SAFETY: as for Send.
unsafe impl Sync for LoadedUnit {}

impl LoadedUnit {
    /// Loads `image`, the SASS or PTX that `row` describes, for launches with `smem` bytes of shared memory.
    pub(super) fn load(
        device: &Device,
        arch: &str,
        row: &Row,
        variant: &'static str,
        smem: u32,
        image: &[u8],
    ) -> Result<Self, KernelError> {
        let context = device.context().clone();
        let failed = |error| KernelError::driver(format!("loading {}", row.unit), error);
        context.bind_to_thread().map_err(failed)?;
        // PTX is read up to a zero byte; for SASS, whose size is in its own header, one more byte changes nothing.
        let image = [image, &[0]].concat();
        // SAFETY: `image` is a whole image (its hash was checked) and outlives the call, which copies it.
        let loaded = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let module = loaded.map_err(|error| refused(device, arch, row, error))?;
        let mut unit = Self {
            row: row.clone(),
            variant,
            smem,
            function: std::ptr::null_mut(),
            module,
            context: context.clone(),
            resident: 0,
            clusters: None,
        };
        let entry = CString::new(row.unit.as_str()).map_err(|_| KernelError::Driver {
            what: format!("loading {:?}", row.unit),
            code: "the entry name holds a zero byte".to_owned(),
        })?;
        // SAFETY: `module` was loaded above and lives as long as `unit`.
        unit.function = unsafe { result::module::get_function(module, entry) }.map_err(failed)?;
        if smem > SMEM_WITHOUT_OPT_IN {
            let limit = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(smem).unwrap_or(i32::MAX);
            // SAFETY: the function belongs to the module above; the driver refuses a size it cannot give.
            unsafe { sys::cuFuncSetAttribute(unit.function, limit, bytes) }.result().map_err(failed)?;
        }
        if prefers_shared(&row.family) {
            let carveout = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: as above; this is a hint, in percent.
            unsafe { sys::cuFuncSetAttribute(unit.function, carveout, 100) }.result().map_err(failed)?;
        }
        unit.resident = unit.count_resident().map_err(failed)?;
        if unit.row.cluster > 1 {
            unit.clusters = Some(unit.count_clusters(device.sms()).map_err(failed)?);
        }
        Ok(unit)
    }

    /// CTAs that an SM holds at once, as the driver counts them.
    fn count_resident(&self) -> Result<u32, cudarc::driver::DriverError> {
        let (mut count, block) = (0, i32::try_from(self.row.block).unwrap_or(i32::MAX));
        // SAFETY: writes one int; the function belongs to the module that this unit holds.
        let status = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut count,
                self.function,
                block,
                self.smem as usize,
            )
        };
        status.result().map(|()| u32::try_from(count).unwrap_or_default())
    }

    /// Clusters that the device holds at once, as the driver counts them: a cluster lies in one group of SMs, so the last SMs of a
    /// group may stay without one.
    fn count_clusters(&self, sms: u32) -> Result<u32, cudarc::driver::DriverError> {
        let mut count = 0;
        let config = sys::CUlaunchConfig {
            // As many clusters as there are SMs: more than fit.
            gridDimX: sms.saturating_mul(self.row.cluster),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.row.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.smem,
            hStream: std::ptr::null_mut(),
            // The image says how large a cluster is.
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        // SAFETY: writes one int; the function belongs to the module that this unit holds.
        let status = unsafe { sys::cuOccupancyMaxActiveClusters(&mut count, self.function, &config) };
        status.result().map(|()| u32::try_from(count).unwrap_or_default())
    }

    /// CTAs that a device of `sms` SMs holds at once, in whole clusters, at most `min_ctas` an SM.
    pub(crate) fn held(&self, sms: u32) -> u32 {
        held(sms, self.resident(), self.row.cluster, self.clusters)
    }

    /// CTAs that an SM holds at once, at most `min_ctas`.
    pub(crate) fn resident(&self) -> u32 {
        self.resident.min(self.row.min_ctas)
    }

    /// The manifest row of the image.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// The variant.
    pub fn variant(&self) -> &'static str {
        self.variant
    }

    /// A dimension, tunable or constant of the unit.
    pub(crate) fn constant(&self, name: &str) -> Option<i64> {
        self.row.constants.get(name).or_else(|| self.row.dims.get(name)).copied()
    }

    /// Launches the unit, unless the stream does not admit its family; returns at once.
    ///
    /// # Safety
    /// `params` must match the entry's parameters in number, order and type, and the memory that the kernel reads and
    /// writes through them must be valid on the device of `stream` until the launch has finished there.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        geometry: &Geometry,
        params: &Params,
    ) -> Result<(), KernelError> {
        if geometry.is_empty() || !stream.admits(&self.row.family) {
            return Ok(());
        }
        let failed = |error| KernelError::driver(format!("launching {}", self.row.unit), error);
        if **stream.cuda().context() != *self.context {
            let code = "the stream belongs to another device".to_owned();
            return Err(KernelError::Driver { what: format!("launching {}", self.row.unit), code });
        }
        self.context.bind_to_thread().map_err(failed)?;
        let mut attributes = Vec::with_capacity(2);
        if geometry.cooperative {
            let mut value = no_value();
            value.cooperative = 1;
            attributes.push(attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value));
        }
        if geometry.pdl {
            let mut value = no_value();
            value.programmaticStreamSerializationAllowed = 1;
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes.push(attribute(id, value));
        }
        let [x, y, z] = geometry.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.row.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.smem,
            hStream: stream.cuda().cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: u32::try_from(attributes.len()).unwrap_or_default(),
        };
        let mut pointers: Vec<*mut c_void> = params.pointers();
        // SAFETY: config, attributes and parameter cells live across the call, which copies them; that they fit the
        // kernel is the caller's promise.
        let status = unsafe {
            sys::cuLaunchKernelEx(&config, self.function, pointers.as_mut_ptr(), std::ptr::null_mut())
        };
        status.result().map_err(failed)
    }
}

impl Drop for LoadedUnit {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the module was loaded in this context and is not used after this. An error here has nowhere to go
            // and frees nothing more.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

fn held(sms: u32, resident: u32, cluster: u32, clusters: Option<u32>) -> u32 {
    let cluster = cluster.max(1);
    let places = sms.saturating_mul(resident) / cluster;
    places.min(clusters.unwrap_or(places)) * cluster
}

/// Whether an SM that runs `family` is to have all of its memory as shared memory, however little the family needs. An SM divides its
/// memory anew only when it is empty: where a small kernel had it divided for itself, the larger one behind or beside it, which could
/// have started early, would wait for it to leave.
fn prefers_shared(family: &str) -> bool {
    !family.starts_with("moe_") || family == "moe_one"
}

fn no_value() -> sys::CUlaunchAttributeValue {
    sys::CUlaunchAttributeValue { pad: [0; 64] }
}

fn attribute(id: CUlaunchAttributeID, value: sys::CUlaunchAttributeValue) -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute { id, pad: [0; 4], value }
}

/// The two refusals that mean "an image for another device", made readable.
fn refused(device: &Device, arch: &str, row: &Row, error: cudarc::driver::DriverError) -> KernelError {
    match error.0 {
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => KernelError::ImageRefused {
            unit: row.unit.clone(),
            image: arch.to_owned(),
            device: device.name().to_owned(),
            arch: device.arch().to_owned(),
            code: code(error),
        },
        _ => KernelError::driver(format!("loading {}", row.unit), error),
    }
}

#[cfg(test)]
mod tests {
    use super::held;

    #[test]
    fn clusters_that_do_not_fill_the_device_count_as_they_are() {
        assert_eq!(held(132, 2, 1, None), 264);
        assert_eq!(held(133, 2, 4, None), 264);
        assert_eq!(held(132, 1, 4, Some(30)), 120);
        // Several CTAs would fit on an SM, but the declaration asks for one.
        assert_eq!(held(132, 1, 4, Some(60)), 132);
        assert_eq!(held(1, 1, 8, Some(0)), 0);
    }
}
