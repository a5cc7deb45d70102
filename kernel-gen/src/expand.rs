//! A family and a profile make units: one per distinct set of dimensions and variant.

use crate::check::compile_time_only;
use crate::decl::{Family, Grid, Variant};
use crate::{Arch, At, Comparison, Diagnostic, EvalError, Expr, Layout, Profile, Width};

/// One kernel to compile: a family with every dimension and constant resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Family name.
    pub family: String,
    /// Unit name and `extern "C"` entry: family, dimensions and variant.
    pub name: String,
    /// Variant name.
    pub variant: String,
    /// The only architecture that it is built for; all of them, if none.
    pub on: Option<Arch>,
    /// Dimensions.
    pub dims: Vec<(String, i64)>,
    /// Tunables, then constants, each with its formula and value.
    pub constants: Vec<(String, Expr, i64)>,
    /// Shared memory.
    pub layout: Layout,
    /// Threads of a CTA.
    pub block: i64,
    /// CTAs per SM that the registers must leave room for.
    pub min_ctas: i64,
    /// CTAs of a cluster.
    pub cluster: i64,
}

impl Unit {
    /// The value of a dimension, tunable or constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        let dims = self.dims.iter().map(|(dim, value)| (dim, *value));
        let constants = self.constants.iter().map(|(constant, _, value)| (constant, *value));
        dims.chain(constants).find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Whether the unit is built for `arch`.
    pub fn runs_on(&self, arch: &Arch) -> bool {
        self.on.is_none_or(|only| only == *arch)
    }

    /// Checks the unit against the limits of `arch`, before any compiler runs.
    ///
    /// # Errors
    /// Shared memory over the limit of a CTA; `min_ctas` CTAs with more threads than an SM holds, or, in a cooperative
    /// launch of a grid that does not adapt, with more shared memory.
    pub fn fits(&self, family: &Family, arch: &Arch) -> Result<(), Diagnostic> {
        let fail = |at, message: String| Err(Diagnostic::new(&family.file, at, message));
        let (bytes, unit, name) = (self.layout.bytes, &self.name, arch.name);
        let at = family.smem.first().map_or(family.at, |member| member.at);
        if bytes > arch.smem_per_cta {
            let (limit, formula) = (arch.smem_per_cta, self.layout.explain());
            return fail(
                at,
                format!("{unit}: shared memory {bytes} B is over the {limit} B of {name} ({formula})"),
            );
        }
        if self.min_ctas * self.block > arch.threads_per_sm {
            let (ctas, block, limit) = (self.min_ctas, self.block, arch.threads_per_sm);
            return fail(
                family.launch.at,
                format!(
                    "{unit}: min_ctas {ctas} of {block} threads are over the {limit} threads of an SM of {name}"
                ),
            );
        }
        let fitted = matches!(family.launch.grid, Grid::Resident);
        let resident = self.min_ctas.saturating_mul(bytes + Arch::SMEM_RESERVED);
        if family.launch.cooperative && !fitted && bytes > 0 && resident > arch.smem_per_sm {
            let (limit, formula) = (arch.smem_per_sm, self.layout.explain());
            let reserved = Arch::SMEM_RESERVED;
            return fail(
                at,
                format!(
                    "{unit}: {} CTAs of {bytes} + {reserved} B are over the {limit} B of an SM of {name} ({formula})",
                    self.min_ctas
                ),
            );
        }
        Ok(())
    }
}

/// Every unit of `family` in `profile`, in declaration order. None if the profile lacks a part (a drafter) that all
/// alternatives of a dimension name, or if no variant of an optional family can run its dimensions.
///
/// # Errors
/// A dimension without a value, an unmet `require`, dimensions that no variant can run, a bad size.
pub fn expand(family: &Family, profile: &Profile) -> Result<Vec<Unit>, Diagnostic> {
    let in_profile = |at: At, message: &str| {
        Diagnostic::new(&family.file, at, format!("{} for profile {}: {message}", family.name, profile.name))
    };
    let mut units = Vec::new();
    for dims in dimension_sets(family, profile).map_err(|error| in_profile(error.at, &error.message))? {
        let before = units.len();
        for variant in &family.variants {
            if let Some(unit) =
                unit(family, variant, &dims).map_err(|error| in_profile(error.at, &error.message))?
            {
                units.push(unit);
            }
        }
        if units.len() == before && !family.launch.optional {
            return Err(in_profile(family.at, &format!("no variant can run {}", spell(&dims))));
        }
    }
    Ok(units)
}

/// The distinct combinations of the alternatives of every dimension.
fn dimension_sets(family: &Family, profile: &Profile) -> Result<Vec<Vec<(String, i64)>>, EvalError> {
    let mut sets = vec![Vec::new()];
    for (name, alternatives) in &family.dims {
        let mut values = Vec::new();
        for alternative in alternatives {
            if alternative.names().iter().any(|(field, _)| profile.field(field).is_none()) {
                continue;
            }
            let value = alternative.eval(Width::I32, &|field| profile.field(field))?;
            if value <= 0 {
                let message = format!("{name} = {alternative} = {value}, but a dimension must be positive");
                return Err(EvalError { at: alternative.at(), message });
            }
            exact_division(alternative, profile)?;
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let extend = |set: &Vec<(String, i64)>| {
            let set = set.clone();
            values
                .iter()
                .map(move |value| [set.clone(), vec![(name.clone(), *value)]].concat())
                .collect::<Vec<_>>()
        };
        sets = sets.iter().flat_map(extend).collect();
    }
    Ok(sets)
}

/// A dimension split over ranks must split evenly: `I = expert_width / tp` is refused where it would lose columns.
fn exact_division(dimension: &Expr, profile: &Profile) -> Result<(), EvalError> {
    let Expr::Apply(op, left, right, at) = dimension else { return Ok(()) };
    exact_division(left, profile)?;
    exact_division(right, profile)?;
    if *op != crate::Op::Div {
        return Ok(());
    }
    let value = |side: &Expr| side.eval(Width::I32, &|field| profile.field(field));
    let (a, b) = (value(left)?, value(right)?);
    if a % b == 0 {
        Ok(())
    } else {
        Err(EvalError { at: *at, message: format!("{dimension}: {b} does not divide {a}") })
    }
}

fn unit(family: &Family, variant: &Variant, dims: &[(String, i64)]) -> Result<Option<Unit>, EvalError> {
    let find = |constants: &[(String, Expr, i64)], name: &str| {
        let constant = constants.iter().find(|(known, ..)| known == name).map(|(.., value)| *value);
        constant.or_else(|| dims.iter().find(|(known, _)| known == name).map(|(_, value)| *value))
    };
    for condition in compile_time_only(family, &variant.when).0 {
        if !condition.eval(&|name| find(&[], name))?.0 {
            return Ok(None);
        }
    }
    let mut constants: Vec<(String, Expr, i64)> = Vec::new();
    for (name, value) in variant.tunables.iter().chain(&family.constants) {
        let resolved = value.eval(Width::I32, &|name| find(&constants, name))?;
        constants.push((name.clone(), value.clone(), resolved));
    }
    let lookup = |name: &str| find(&constants, name);
    for requirement in &family.require {
        require(requirement, dims, &variant.name, &lookup)?;
    }
    let launch = &family.launch;
    let positive = |what: &str, size: &Expr, most: i64| {
        let value = size.eval(Width::I32, &lookup)?;
        let fail =
            || format!("{what} {size} = {value} in variant {}, but must be in 1..={most}", variant.name);
        if (1..=most).contains(&value) {
            Ok(value)
        } else {
            Err(EvalError { at: launch.at, message: fail() })
        }
    };
    let key: Vec<String> = dims.iter().map(|(name, value)| format!("{name}{value}")).collect();
    Ok(Some(Unit {
        family: family.name.clone(),
        name: [family.name.as_str(), &key.join("_"), &variant.name].join("__"),
        variant: variant.name.clone(),
        on: variant.on,
        dims: dims.to_vec(),
        layout: Layout::of(&family.smem, &lookup)?,
        block: positive("block", &launch.block, Arch::MAX_BLOCK)?,
        min_ctas: positive("min_ctas", &launch.min_ctas, 32)?,
        cluster: launch.cluster.as_ref().map_or(Ok(1), |size| positive("cluster", size, 8))?,
        constants,
    }))
}

fn require(
    requirement: &Comparison,
    dims: &[(String, i64)],
    variant: &str,
    lookup: &dyn Fn(&str) -> Option<i64>,
) -> Result<(), EvalError> {
    let (holds, left, right) = requirement.eval(lookup)?;
    if holds {
        return Ok(());
    }
    let dims = spell(dims);
    let message =
        format!("requires {requirement}, but the sides are {left} and {right} (variant {variant}, {dims})");
    Err(EvalError { at: requirement.at, message })
}

fn spell(dims: &[(String, i64)]) -> String {
    dims.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
}
