//! Element types of operands and shared-memory members, and composite operands.

/// An element type and its name in each language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DType {
    /// The declaration's name.
    pub name: &'static str,
    /// The CUDA type.
    pub cuda: &'static str,
    /// The Rust type.
    pub rust: &'static str,
    /// Bytes per element.
    pub bytes: i64,
}

const fn dtype(name: &'static str, cuda: &'static str, rust: &'static str, bytes: i64) -> DType {
    DType { name, cuda, rust, bytes }
}

const DTYPES: [DType; 11] = [
    dtype("bf16", "__nv_bfloat16", "::half::bf16", 2),
    dtype("f16", "__half", "::half::f16", 2),
    dtype("f32", "float", "f32", 4),
    dtype("f64", "double", "f64", 8),
    dtype("u8", "uint8_t", "u8", 1),
    dtype("i8", "int8_t", "i8", 1),
    dtype("u16", "uint16_t", "u16", 2),
    dtype("i32", "int32_t", "i32", 4),
    dtype("u32", "uint32_t", "u32", 4),
    dtype("i64", "int64_t", "i64", 8),
    dtype("u64", "uint64_t", "u64", 8),
];

/// An operand of several arrays under one name and one logical shape: quantised weights with their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composite {
    /// The declaration's name.
    pub name: &'static str,
    /// The CUDA struct that the template takes, made from the arrays in order.
    pub cuda: &'static str,
    /// The type in the launcher, generic over a lifetime and the rank.
    pub rust: &'static str,
    /// The arrays: suffix of the kernel parameter and CUDA element type.
    pub parts: &'static [(&'static str, &'static str)],
}

/// Symmetric 4-bit integers in groups of 32 along the last axis, one bf16 scale a group, both in blocks of one array.
const COMPOSITES: [Composite; 1] =
    [Composite { name: "int4g32", cuda: "kd::Int4G32", rust: "Int4Ref", parts: &[("blocks", "uint32_t")] }];

/// What an operand is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One array, or a scalar.
    Plain(DType),
    /// Several arrays.
    Composite(Composite),
}

impl Kind {
    /// The declaration's name.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Plain(dtype) => dtype.name,
            Kind::Composite(composite) => composite.name,
        }
    }
}

impl Composite {
    /// The composite that a declaration calls `name`.
    pub fn named(name: &str) -> Option<Self> {
        COMPOSITES.into_iter().find(|composite| composite.name == name)
    }
}

impl DType {
    pub(crate) const BF16: Self = DTYPES[0];

    /// The type that a declaration calls `name`.
    pub fn named(name: &str) -> Option<Self> {
        DTYPES.into_iter().find(|dtype| dtype.name == name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        DTYPES.map(|dtype| dtype.name).join(", ")
    }
}
