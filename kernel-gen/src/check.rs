//! What a declaration must be beside well-formed: names that differ and mean something where they stand, a variant and an array at least,
//! variants that set the same constants, and none that is never taken.

use std::collections::BTreeSet;

use crate::decl::{Family, Grid};
use crate::{At, Comparison, Diagnostic, Expr, Profile};

/// Checks every name of `family` and fills in its run-time symbols.
pub(crate) fn resolve(mut family: Family) -> Result<Family, Diagnostic> {
    let file = family.file.clone();
    let fail = |at: At, message: String| Diagnostic::new(&file, at, message);
    unique_names(&family).map_err(|(at, message)| fail(at, message))?;
    if family.variants.is_empty() {
        return Err(fail(family.at, format!("`{}` needs at least one `variant`", family.name)));
    }
    if family.operands.iter().all(|operand| operand.shape.is_none()) {
        return Err(fail(family.at, format!("`{}` has no array operand", family.name)));
    }

    let fields = names(Profile::FIELDS.iter().copied());
    let dims = names(family.dims.iter().map(|(name, _)| name.as_str()));
    family.symbols = run_time_symbols(&family, &dims);
    let symbols = names(family.symbols.iter().map(String::as_str));
    let launch_time: BTreeSet<&str> = dims.union(&symbols).copied().collect();
    let scope = |known: &BTreeSet<&str>, what: &str, found: Vec<(&str, At)>| {
        let Some((name, at)) = found.into_iter().find(|(name, _)| !known.contains(name)) else {
            return Ok(());
        };
        let list = known.iter().copied().collect::<Vec<_>>().join(", ");
        Err(fail(at, format!("`{name}` is unknown in {what}; known here: {list}")))
    };

    for (_, alternatives) in &family.dims {
        for alternative in alternatives {
            scope(&fields, "dims", alternative.names())?;
        }
    }
    let mut compile_time = dims.clone();
    for variant in &family.variants {
        for (_, value) in &variant.tunables {
            scope(&dims, "a variant", value.names())?;
        }
        for comparison in variant.when.iter().chain(&variant.prefer) {
            scope(&launch_time, "when/prefer", comparison.names())?;
        }
        same_tunables(&family, variant).map_err(|message| fail(variant.at, message))?;
    }
    taken(&family).map_err(|(at, message)| fail(at, message))?;
    compile_time.extend(family.variants[0].tunables.iter().map(|(name, _)| name.as_str()));
    for (name, value) in &family.constants {
        scope(&compile_time, "const", value.names())?;
        compile_time.insert(name);
    }
    for comparison in &family.require {
        scope(&compile_time, "require", comparison.names())?;
    }
    for member in &family.smem {
        scope(&compile_time, "smem", member.count.names())?;
        scope(&compile_time, "smem", member.align.as_ref().map(Expr::names).unwrap_or_default())?;
    }
    for axis in family.operands.iter().flat_map(|operand| operand.shape.iter().flatten()) {
        scope(&launch_time, "a shape", axis.names())?;
    }
    for constant in family.operands.iter().flat_map(|operand| operand.boxes.iter().flatten()) {
        scope(&compile_time, "boxes", vec![(&constant.name, constant.at)])?;
    }
    let launch = &family.launch;
    for size in [Some(&launch.block), Some(&launch.min_ctas), launch.cluster.as_ref()].into_iter().flatten() {
        scope(&compile_time, "launch", size.names())?;
    }
    if let Grid::Blocks(axes) = &launch.grid {
        let known: BTreeSet<&str> = compile_time.union(&symbols).copied().collect();
        for axis in axes {
            scope(&known, "grid", axis.names())?;
        }
    }
    Ok(family)
}

/// Variants are asked in order: behind one that can always run and always is preferred none is taken.
fn taken(family: &Family) -> Result<(), (At, String)> {
    let always = |v: &crate::Variant| v.on.is_none() && v.when.is_empty() && v.prefer.is_empty();
    let Some(first) = family.variants.iter().position(always) else { return Ok(()) };
    match family.variants[first + 1..].iter().find(|variant| !variant.prefer.is_empty()) {
        None => Ok(()),
        Some(late) => Err((
            late.at,
            format!(
                "variant `{}` is never preferred: `{}` in front of it always is",
                late.name, family.variants[first].name
            ),
        )),
    }
}

/// Names that stand alone as an axis and are no dimension: sizes that a launch brings.
fn run_time_symbols(family: &Family, dims: &BTreeSet<&str>) -> Vec<String> {
    let mut symbols = Vec::new();
    for axis in family.operands.iter().flat_map(|operand| operand.shape.iter().flatten()) {
        if let Expr::Name(name, _) = axis
            && !dims.contains(name.as_str())
            && !is_compile_time(family, name)
            && !symbols.contains(name)
        {
            symbols.push(name.clone());
        }
    }
    symbols
}

fn is_compile_time(family: &Family, name: &str) -> bool {
    let tunables = family.variants.iter().flat_map(|variant| &variant.tunables);
    family.constants.iter().chain(tunables).any(|(constant, _)| constant == name)
}

fn same_tunables(family: &Family, variant: &crate::Variant) -> Result<(), String> {
    let own = names(variant.tunables.iter().map(|(name, _)| name.as_str()));
    let first = names(family.variants[0].tunables.iter().map(|(name, _)| name.as_str()));
    if own == first {
        return Ok(());
    }
    Err(format!("variant `{}` sets {own:?}, but `{}` sets {first:?}", variant.name, family.variants[0].name))
}

/// Names must differ within a family, and their case tells compile-time constants from operands.
fn unique_names(family: &Family) -> Result<(), (At, String)> {
    let mut seen = BTreeSet::new();
    let constants = family.dims.iter().map(|(name, _)| name);
    let constants = constants.chain(family.constants.iter().map(|(name, _)| name));
    let constants =
        constants.chain(family.variants.first().into_iter().flat_map(|v| &v.tunables).map(|(name, _)| name));
    for name in constants {
        if !name.starts_with(|c: char| c.is_ascii_uppercase())
            || name.contains(|c: char| c.is_ascii_lowercase())
        {
            return Err((family.at, format!("constant `{name}` must be upper case")));
        }
        if !seen.insert(name.as_str()) {
            return Err((family.at, format!("`{name}` is defined twice")));
        }
    }
    let operands = family.operands.iter().map(|operand| (&operand.name, operand.at));
    for (name, at) in operands.chain(family.smem.iter().map(|member| (&member.name, member.at))) {
        if name.contains(|c: char| c.is_ascii_uppercase()) {
            return Err((at, format!("operand or member `{name}` must be lower case")));
        }
        if !seen.insert(name) {
            return Err((at, format!("`{name}` is defined twice")));
        }
    }
    let mut variants = BTreeSet::new();
    match family.variants.iter().find(|variant| !variants.insert(&variant.name)) {
        Some(variant) => Err((variant.at, format!("variant `{}` is defined twice", variant.name))),
        None => Ok(()),
    }
}

fn names<'a>(list: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    list.collect()
}

/// Splits conditions into those over compile-time names only and those that need a launch.
pub(crate) fn compile_time_only<'a>(
    family: &'a Family,
    conditions: &'a [Comparison],
) -> (Vec<&'a Comparison>, Vec<&'a Comparison>) {
    conditions.iter().partition(|comparison| {
        comparison.names().iter().all(|(name, _)| !family.symbols.iter().any(|s| s == name))
    })
}
