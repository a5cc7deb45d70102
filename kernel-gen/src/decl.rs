//! A parsed declaration: what `family! { … }` says, names still unresolved.

use crate::{Arch, At, Comparison, DType, Expr, Kind};

/// One kernel family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name of the family, its launcher module and the prefix of its units.
    pub name: String,
    /// Declaration file, relative to the kernel folder.
    pub file: String,
    /// Where the name stands.
    pub at: At,
    /// Doc lines above the declaration.
    pub doc: Vec<String>,
    /// Template file, relative to the kernel folder.
    pub template: String,
    /// The declaration in canonical spelling, the input of its contract fingerprint.
    pub canonical: String,
    /// Dimensions: name and the alternatives that a profile offers. They alone (with the variant) key a unit.
    pub dims: Vec<(String, Vec<Expr>)>,
    /// Constants that follow from dimensions and the variant's tunables, in order.
    pub constants: Vec<(String, Expr)>,
    /// Tunable variants, preferred first.
    pub variants: Vec<Variant>,
    /// What every unit must satisfy.
    pub require: Vec<Comparison>,
    /// Shared memory, in order.
    pub smem: Vec<SharedMember>,
    /// Instructions that the SASS of every unit must contain, as the disassembler spells them; `A+B|C`: A and B, or C.
    pub sass: Vec<String>,
    /// Kernel operands, in order.
    pub operands: Vec<Operand>,
    /// How the kernel is launched.
    pub launch: Launch,
    /// Sizes known only at a launch (`M`), in order of first appearance; each is passed to the kernel as `int`.
    pub symbols: Vec<String>,
}

/// One tuning of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name, unique in the family.
    pub name: String,
    /// Where the name stands.
    pub at: At,
    /// Tunables; every variant gives the same ones.
    pub tunables: Vec<(String, Expr)>,
    /// The only architecture that it is built for, where it needs one's own instructions; all of them, if none.
    pub on: Option<Arch>,
    /// When the variant can run: over dimensions it decides whether units are built, over symbols whether a launch
    /// may take it.
    pub when: Vec<Comparison>,
    /// When the variant is the better choice; always, if empty.
    pub prefer: Vec<Comparison>,
}

/// One array in shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMember {
    /// Name.
    pub name: String,
    /// Where the name stands.
    pub at: At,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub count: Expr,
    /// Alignment in bytes, where more than the element's (and at least 16) is wanted.
    pub align: Option<Expr>,
}

/// One kernel operand: an array in device memory, a composite of several arrays, or a scalar passed by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Name.
    pub name: String,
    /// Where the name stands.
    pub at: At,
    /// What it is made of.
    pub kind: Kind,
    /// Whether the kernel writes it.
    pub mutable: bool,
    /// Axis sizes, outermost first; `None` for a scalar.
    pub shape: Option<Vec<Expr>>,
    /// Rows and columns of the boxes in which a matrix is copied to shared memory: constants of the unit. The kernel takes a
    /// tensor map instead of an address.
    pub boxes: Option<[Constant; 2]>,
}

/// The name of a tunable or constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Name.
    pub name: String,
    /// Where it stands.
    pub at: At,
}

/// Launch geometry and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Where the section stands.
    pub at: At,
    /// CTAs.
    pub grid: Grid,
    /// Threads of a CTA.
    pub block: Expr,
    /// CTAs that must fit on an SM together.
    pub min_ctas: Expr,
    /// CTAs of a cluster.
    pub cluster: Option<Expr>,
    /// Whether all CTAs must be resident at once and may synchronise.
    pub cooperative: bool,
    /// Whether the launch may overlap the end of the kernel before it.
    pub pdl: bool,
    /// Whether there may be dimensions that no variant can run: profiles do without the family then.
    pub optional: bool,
    /// Whether the launcher tells, for sizes alone, which variant it would take.
    pub asked: bool,
}

/// The number of CTAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grid {
    /// As many as are resident at once, at most `min_ctas` an SM.
    Resident,
    /// x, y and z.
    Blocks(Vec<Expr>),
}
