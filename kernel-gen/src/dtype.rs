//! Element types of operands and shared-memory members.

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

const DTYPES: [DType; 9] = [
    dtype("bf16", "__nv_bfloat16", "::half::bf16", 2),
    dtype("f32", "float", "f32", 4),
    dtype("u8", "uint8_t", "u8", 1),
    dtype("i8", "int8_t", "i8", 1),
    dtype("u16", "uint16_t", "u16", 2),
    dtype("i32", "int32_t", "i32", 4),
    dtype("u32", "uint32_t", "u32", 4),
    dtype("i64", "int64_t", "i64", 8),
    dtype("u64", "uint64_t", "u64", 8),
];

impl DType {
    /// The type that a declaration calls `name`.
    pub fn named(name: &str) -> Option<Self> {
        DTYPES.into_iter().find(|dtype| dtype.name == name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        DTYPES.map(|dtype| dtype.name).join(", ")
    }
}
