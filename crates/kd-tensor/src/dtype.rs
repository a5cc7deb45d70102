//! Element types of tensors, with the names that safetensors files use.

use std::fmt;

use ::safetensors::Dtype;
use half::{bf16, f16};

/// Element type of a tensor: every type that a safetensors header can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// MXFP4, four bits.
    F4,
    /// MXFP6, two exponent bits.
    F6E2M3,
    /// MXFP6, three exponent bits.
    F6E3M2,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// FP8, five exponent bits.
    F8E5M2,
    /// FP8, four exponent bits.
    F8E4M3,
    /// FP8 that is an exponent alone.
    F8E8M0,
    /// FP8, four exponent bits, finite, one zero.
    F8E4M3Fnuz,
    /// FP8, five exponent bits, finite, one zero.
    F8E5M2Fnuz,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE half precision.
    F16,
    /// Brain floating point.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE single precision.
    F32,
    /// Complex number of two single-precision parts.
    C64,
    /// IEEE double precision.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

impl DType {
    /// The name in a safetensors header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::F4 => "F4",
            Self::F6E2M3 => "F6_E2M3",
            Self::F6E3M2 => "F6_E3M2",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E8M0 => "F8_E8M0",
            Self::F8E4M3Fnuz => "F8_E4M3FNUZ",
            Self::F8E5M2Fnuz => "F8_E5M2FNUZ",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::C64 => "C64",
            Self::F64 => "F64",
            Self::I64 => "I64",
            Self::U64 => "U64",
        }
    }

    /// Width of one element in bits.
    pub const fn bits(self) -> usize {
        match self {
            Self::F4 => 4,
            Self::F6E2M3 | Self::F6E3M2 => 6,
            Self::Bool | Self::U8 | Self::I8 => 8,
            Self::F8E5M2 | Self::F8E4M3 | Self::F8E8M0 | Self::F8E4M3Fnuz | Self::F8E5M2Fnuz => 8,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::C64 | Self::F64 | Self::I64 | Self::U64 => 64,
        }
    }

    /// Width of one element in bytes; `None` for the types that are narrower than a byte.
    pub const fn size(self) -> Option<usize> {
        if self.bits() < 8 { None } else { Some(self.bits() / 8) }
    }

    /// Bytes of a tensor of this type; `None` when the size overflows or is no whole number of bytes.
    pub fn byte_len(self, shape: &[usize]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// `None` for a type that a later version of the safetensors crate adds.
    pub(crate) fn from_safetensors(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::BOOL => Self::Bool,
            Dtype::F4 => Self::F4,
            Dtype::F6_E2M3 => Self::F6E2M3,
            Dtype::F6_E3M2 => Self::F6E3M2,
            Dtype::U8 => Self::U8,
            Dtype::I8 => Self::I8,
            Dtype::F8_E5M2 => Self::F8E5M2,
            Dtype::F8_E4M3 => Self::F8E4M3,
            Dtype::F8_E8M0 => Self::F8E8M0,
            Dtype::F8_E4M3FNUZ => Self::F8E4M3Fnuz,
            Dtype::F8_E5M2FNUZ => Self::F8E5M2Fnuz,
            Dtype::I16 => Self::I16,
            Dtype::U16 => Self::U16,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::BF16,
            Dtype::I32 => Self::I32,
            Dtype::U32 => Self::U32,
            Dtype::F32 => Self::F32,
            Dtype::C64 => Self::C64,
            Dtype::F64 => Self::F64,
            Dtype::I64 => Self::I64,
            Dtype::U64 => Self::U64,
            _ => return None,
        })
    }

    pub(crate) fn to_safetensors(self) -> Dtype {
        match self {
            Self::Bool => Dtype::BOOL,
            Self::F4 => Dtype::F4,
            Self::F6E2M3 => Dtype::F6_E2M3,
            Self::F6E3M2 => Dtype::F6_E3M2,
            Self::U8 => Dtype::U8,
            Self::I8 => Dtype::I8,
            Self::F8E5M2 => Dtype::F8_E5M2,
            Self::F8E4M3 => Dtype::F8_E4M3,
            Self::F8E8M0 => Dtype::F8_E8M0,
            Self::F8E4M3Fnuz => Dtype::F8_E4M3FNUZ,
            Self::F8E5M2Fnuz => Dtype::F8_E5M2FNUZ,
            Self::I16 => Dtype::I16,
            Self::U16 => Dtype::U16,
            Self::F16 => Dtype::F16,
            Self::BF16 => Dtype::BF16,
            Self::I32 => Dtype::I32,
            Self::U32 => Dtype::U32,
            Self::F32 => Dtype::F32,
            Self::C64 => Dtype::C64,
            Self::F64 => Dtype::F64,
            Self::I64 => Dtype::I64,
            Self::U64 => Dtype::U64,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is, bit for bit, one element of a [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The type as files and messages name it.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements! {
    u8 => U8, i8 => I8, i16 => I16, u16 => U16, f16 => F16, bf16 => BF16,
    i32 => I32, u32 => U32, f32 => F32, f64 => F64, i64 => I64, u64 => U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_widths_agree_with_the_safetensors_crate() {
        use Dtype::*;
        let all = [
            BOOL,
            F4,
            F6_E2M3,
            F6_E3M2,
            U8,
            I8,
            F8_E5M2,
            F8_E4M3,
            F8_E8M0,
            F8_E4M3FNUZ,
            F8_E5M2FNUZ,
            I16,
            U16,
            F16,
            BF16,
            I32,
            U32,
            F32,
            C64,
            F64,
            I64,
            U64,
        ];
        for theirs in all {
            let ours = DType::from_safetensors(theirs).expect("every published type is known");
            assert_eq!(ours.to_safetensors(), theirs);
            assert_eq!(ours.bits(), theirs.bitsize(), "{ours}");
            assert_eq!(serde_json::to_string(&theirs).expect("plain enum"), format!("\"{ours}\""));
        }
    }

    #[test]
    fn byte_len_is_checked() {
        assert_eq!(DType::BF16.byte_len(&[3, 5]), Some(30));
        assert_eq!(DType::F32.byte_len(&[]), Some(4), "a scalar");
        assert_eq!(DType::F32.byte_len(&[0, 7]), Some(0));
        assert_eq!(DType::F4.byte_len(&[2, 3]), Some(3));
        assert_eq!(DType::F4.byte_len(&[3]), None, "half a byte");
        assert_eq!(DType::U8.byte_len(&[usize::MAX, 2]), None);
        assert_eq!(DType::F64.byte_len(&[usize::MAX / 4]), None);
        assert_eq!(DType::U8.byte_len(&[(1 << 62) + 1, 4]), None, "4 when the product wraps");
        assert_eq!(DType::U8.byte_len(&[(1 << 61) + 4]), None, "4 when the bits wrap");
    }
}
