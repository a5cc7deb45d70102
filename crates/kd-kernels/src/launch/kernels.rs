//! The kernels of one device and profile.

use super::residency::{DeviceSmem, Residency};
use super::select::choose;
use super::{Choice, Family, KernelError, LoadedUnit, Selection};
use crate::bundle::Row;
use crate::{Bundle, Device, Search};

/// A bundle opened for a device.
#[derive(Debug)]
pub struct Kernels {
    device: Device,
    bundle: Bundle,
    residency: Option<Residency>,
}

/// The loaded units of one family and one set of dimensions, preferred first.
#[derive(Debug)]
pub struct Units {
    family: &'static str,
    units: Vec<LoadedUnit>,
    description: Family,
}

/// A unit that was chosen for a launch.
pub(crate) struct Chosen<'a> {
    pub(crate) loaded: &'a LoadedUnit,
    pub(crate) selection: Selection,
}

impl Kernels {
    /// Opens the bundle of `profile` for the architecture of `device`.
    ///
    /// # Errors
    /// No bundle for this profile and architecture, or a damaged one.
    pub fn open(device: &Device, profile: &str, search: &Search) -> Result<Self, KernelError> {
        let bundle = Bundle::open(&search.find(profile, device.arch())?)?;
        Self::with_bundle(device, bundle)
    }

    /// Uses `bundle`, which may hold SASS for the device or PTX (which the driver compiles when it is loaded).
    ///
    /// # Errors
    /// SASS for another architecture.
    pub fn with_bundle(device: &Device, bundle: Bundle) -> Result<Self, KernelError> {
        let header = bundle.header();
        if header.kind == "cubin" && header.arch != device.arch() {
            let what = format!("holds SASS for {}, but {} is {}", header.arch, device.name(), device.arch());
            return Err(KernelError::BadBundle { path: bundle.path().to_owned(), what });
        }
        Ok(Self { device: device.clone(), bundle, residency: None })
    }

    /// These kernels, with as many CTAs on an SM as they would have on the architecture of `other`, a bundle of the same
    /// profile: shared memory that a launch does not use keeps the rest away. For measuring; results do not change.
    ///
    /// # Errors
    /// An architecture whose limits are not known, a driver that does not tell those of this device.
    pub fn at_residency_of(self, other: &Bundle) -> Result<Self, KernelError> {
        let residency = Some(Residency::new(&self.device, other)?);
        Ok(Self { residency, ..self })
    }

    /// Ends the warm-up of the device: see [`Device::freeze`].
    pub fn freeze(&self) {
        self.device.freeze();
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The bundle.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Whether `row` can be loaded: kernels that are measured as another architecture's are those that it has too.
    pub(crate) fn has(&self, row: &Row) -> bool {
        self.residency.as_ref().is_none_or(|residency| residency.has(row))
    }

    /// Loads every variant of `family` for `dims`.
    pub(crate) fn load(&self, family: &Family, dims: &[(&str, i64)]) -> Result<Units, KernelError> {
        self.device.warming_up(|| format!("loading {}", family.name))?;
        let rows = matching(&self.bundle, family, dims, |row| self.has(row))?;
        let arch = &self.bundle.header().arch;
        let sm = DeviceSmem::of(&self.device)?;
        let load = |(variant, row): (&'static str, &Row)| {
            let smem = match &self.residency {
                Some(residency) => residency.smem(row)?,
                None => sm.declared(row),
            };
            LoadedUnit::load(&self.device, arch, row, variant, smem, self.bundle.image(row)?)
        };
        let units = rows.into_iter().map(load).collect::<Result<_, _>>()?;
        Ok(Units { family: family.name, units, description: *family })
    }
}

/// The rows of `family` with exactly `dims` among those that `has` admits, in the order of its variants.
fn matching<'a>(
    bundle: &'a Bundle,
    family: &Family,
    dims: &[(&str, i64)],
    has: impl Fn(&Row) -> bool,
) -> Result<Vec<(&'static str, &'a Row)>, KernelError> {
    let header = bundle.header();
    let of_family = || header.units.iter().filter(|row| row.family == family.name && has(row));
    let fits = |row: &&Row| dims.iter().all(|(name, value)| row.dims.get(*name) == Some(value));
    let rows: Vec<&Row> = of_family().filter(fits).collect();
    if let Some(row) = rows.iter().find(|row| row.contract != family.contract) {
        let (unit, found) = (row.unit.clone(), row.contract.clone());
        return Err(KernelError::StaleImage { unit, found, expected: family.contract });
    }
    let variant =
        |name: &&'static str| rows.iter().find(|row| row.variant == **name).map(|row| (*name, *row));
    let found: Vec<_> = family.variants.iter().filter_map(variant).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let spell = |row: &Row| {
        row.dims.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
    };
    let mut available: Vec<String> = of_family().map(spell).collect();
    available.dedup();
    Err(KernelError::NoUnit {
        family: family.name,
        wanted: dims.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", "),
        profile: header.profile.clone(),
        available: if available.is_empty() { "none".to_owned() } else { available.join("; ") },
    })
}

impl Units {
    /// The units, preferred first.
    pub fn iter(&self) -> impl Iterator<Item = &LoadedUnit> {
        self.units.iter()
    }

    /// Whether the device of `kernels` holds as many CTAs of each unit at once as the constants `names` add up to: what a family asks
    /// for whose CTAs wait for each other. Not so where a unit has no such constant.
    pub fn held_at_once(&self, kernels: &Kernels, names: &[&str]) -> bool {
        self.iter().all(|unit| {
            let needed: Option<i64> = names.iter().map(|name| unit.constant(name)).sum();
            needed.is_some_and(|needed| i64::from(unit.held(kernels.device.sms())) >= needed)
        })
    }

    /// Family name.
    pub fn family(&self) -> &'static str {
        self.family
    }

    /// Chooses a unit by the launcher's conditions.
    pub(crate) fn select(
        &self,
        choice: Choice<'_>,
        eligible: impl Fn(&str) -> Option<bool>,
        preferred: impl Fn(&str) -> Option<bool>,
    ) -> Result<Chosen<'_>, KernelError> {
        let available: Vec<&'static str> = self.units.iter().map(LoadedUnit::variant).collect();
        let (index, selection) = choose(&self.description, &available, choice, eligible, preferred)?;
        Ok(Chosen { loaded: &self.units[index], selection })
    }
}
