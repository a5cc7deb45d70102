//! Ratchets: registers and spills of every unit may fall, never rise unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail};
use kernel_gen::{ARCHS, Catalog, Profile};
use serde::{Deserialize, Serialize};

use super::table::Row;
use crate::paths;
use crate::toolchain::RELEASE;

const HOW_TO_RAISE: &str = "find the cause, or accept it with `cargo xtask build-kernels --update-ratchets`";

/// `kernel-gen/ratchets.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ratchets {
    /// Compiler series that the numbers hold for.
    toolchain: String,
    /// By architecture, then unit.
    archs: BTreeMap<String, BTreeMap<String, Limit>>,
}

/// The most a unit may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Limit {
    registers: u32,
    spill_bytes: u32,
}

fn file() -> PathBuf {
    paths::workspace().join("kernel-gen/ratchets.json")
}

fn committed() -> Result<Ratchets> {
    let empty = || Ratchets { toolchain: RELEASE.to_owned(), archs: BTreeMap::new() };
    let path = file();
    if path.exists() { Ok(serde_json::from_str(&paths::read(&path)?)?) } else { Ok(empty()) }
}

/// Compares `rows` with the committed limits, and looks for limits of units that no profile has any more.
pub(crate) fn check_committed(catalog: &Catalog, rows: &[Row<'_>]) -> Result<()> {
    let ratchets = committed()?;
    let mut faults = exceeded(&ratchets, rows);
    let alive = alive(catalog)?;
    for (arch, units) in &ratchets.archs {
        let alive = alive.get(arch.as_str());
        let gone = units.keys().filter(|unit| alive.is_none_or(|alive| !alive.contains(*unit)));
        faults.extend(gone.map(|unit| format!("{unit} on {arch}: has a ratchet but no longer exists")));
    }
    if faults.is_empty() { Ok(()) } else { bail!("{}\n{HOW_TO_RAISE}", faults.join("\n")) }
}

/// Names of the units of all profiles, by architecture.
fn alive(catalog: &Catalog) -> Result<BTreeMap<&'static str, BTreeSet<String>>> {
    let mut alive = BTreeMap::<_, BTreeSet<_>>::new();
    for arch in &ARCHS {
        for profile in Profile::all() {
            let units = catalog.units(&profile, arch)?;
            alive.entry(arch.name).or_default().extend(units.into_iter().map(|(_, unit)| unit.name));
        }
    }
    Ok(alive)
}

fn exceeded(ratchets: &Ratchets, rows: &[Row<'_>]) -> Vec<String> {
    let mut faults = Vec::new();
    for row in rows {
        let (unit, arch) = (&row.unit.name, row.arch);
        let Some(limit) = ratchets.archs.get(arch).and_then(|units| units.get(unit)) else {
            faults.push(format!("{unit} on {arch}: has no ratchet"));
            continue;
        };
        let measured = [row.report.registers, row.report.spill_bytes];
        let limits = [limit.registers, limit.spill_bytes];
        for ((what, used), most) in ["registers", "spilled bytes"].into_iter().zip(measured).zip(limits) {
            if used > most {
                faults.push(format!("{unit} on {arch}: {used} {what}, ratchet {most}"));
            }
        }
    }
    faults
}

/// What `check_committed` would say of a unit whose ratchet allows its registers and no spill.
#[cfg(test)]
pub(super) fn faults_of_new(
    unit: &kernel_gen::Unit,
    arch: &'static str,
    report: &super::ptxas::Report,
) -> Vec<String> {
    let limit = Limit { registers: report.registers, spill_bytes: 0 };
    let archs = BTreeMap::from([(arch.to_owned(), BTreeMap::from([(unit.name.clone(), limit)]))]);
    exceeded(&Ratchets { toolchain: RELEASE.to_owned(), archs }, &[Row { unit, arch, report, bytes: 1 }])
}

/// Sets the limits of `rows` to what was measured, and drops those of units that no profile has any more.
pub(crate) fn update(catalog: &Catalog, rows: &[Row<'_>]) -> Result<()> {
    let mut ratchets = committed()?;
    let alive = alive(catalog)?;
    for (arch, units) in &mut ratchets.archs {
        units.retain(|unit, _| alive.get(arch.as_str()).is_some_and(|alive| alive.contains(unit)));
    }
    ratchets.toolchain = RELEASE.to_owned();
    for row in rows {
        let limit = Limit { registers: row.report.registers, spill_bytes: row.report.spill_bytes };
        ratchets.archs.entry(row.arch.to_owned()).or_default().insert(row.unit.name.clone(), limit);
    }
    // A line for each unit: a change shows which, and the file stays small.
    let json = serde_json::to_string(&ratchets)?.replace("},", "},\n") + "\n";
    paths::write_atomic(&file(), json.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use kernel_gen::{expand, kernels_dir};

    use super::*;
    use crate::build::ptxas::Report;

    #[test]
    fn a_rise_a_spill_and_an_unknown_unit_are_caught() {
        let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
        let profile = Profile::named("demo-tp1").expect("a profile");
        let units = expand(&catalog.families[0], &profile).expect("units");
        let limit = Limit { registers: 40, spill_bytes: 0 };
        let archs = BTreeMap::from([("sm_120".to_owned(), BTreeMap::from([(units[0].name.clone(), limit)]))]);
        let ratchets = Ratchets { toolchain: RELEASE.to_owned(), archs };
        let faults = |arch, registers, spill_bytes| {
            let report = Report { registers, spill_bytes, stack_bytes: 0 };
            exceeded(&ratchets, &[Row { unit: &units[0], arch, report: &report, bytes: 1 }])
        };
        assert_eq!(faults("sm_120", 40, 0), Vec::<String>::new());
        assert_eq!(faults("sm_120", 32, 0), Vec::<String>::new());
        assert!(faults("sm_120", 41, 0)[0].contains("41 registers, ratchet 40"));
        assert!(faults("sm_120", 40, 8)[0].contains("8 spilled bytes, ratchet 0"));
        // The same source may differ by architecture, so a limit of one says nothing of another.
        assert!(faults("sm_90a", 1, 0)[0].contains("has no ratchet"));
    }
}
