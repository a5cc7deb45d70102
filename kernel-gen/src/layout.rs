//! Shared-memory layout: offsets of a unit's members.

use crate::decl::SharedMember;
use crate::{EvalError, Expr, Op, Width};

/// One member with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name.
    pub name: String,
    /// CUDA element type.
    pub cuda: &'static str,
    /// The declared element count.
    pub count: Expr,
    /// Elements.
    pub elements: i64,
    /// Byte offset, a multiple of `align`.
    pub offset: i64,
    /// Bytes.
    pub bytes: i64,
    /// Alignment in bytes, a power of two.
    pub align: i64,
}

/// The shared memory of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Members in declaration order.
    pub members: Vec<Member>,
    /// Total bytes.
    pub bytes: i64,
}

/// Every member starts at a multiple of this at least, so that 16-byte accesses are always allowed.
const LEAST_ALIGN: i64 = 16;
/// `kd/base.cuh` aligns the start of shared memory to this; a member cannot ask for more.
const MOST_ALIGN: i64 = 1024;

impl Layout {
    /// Places `members` one after another.
    pub(crate) fn of(
        members: &[SharedMember],
        lookup: &dyn Fn(&str) -> Option<i64>,
    ) -> Result<Self, EvalError> {
        let mut layout = Self::default();
        for member in members {
            let fail = |message: String| EvalError { at: member.at, message };
            let elements = member.count.eval(Width::I32, lookup)?;
            if elements <= 0 {
                return Err(fail(format!("`{}` has {} = {elements} elements", member.name, member.count)));
            }
            let align =
                member.align.as_ref().map_or(Ok(LEAST_ALIGN), |align| align.eval(Width::I32, lookup))?;
            let power_of_two = u64::try_from(align).is_ok_and(u64::is_power_of_two);
            if !power_of_two || !(LEAST_ALIGN..=MOST_ALIGN).contains(&align) {
                let range = format!("a power of two in {LEAST_ALIGN}..={MOST_ALIGN}");
                return Err(fail(format!("`{}` is aligned to {align}, which is not {range}", member.name)));
            }
            let too_large = || fail(format!("shared memory overflows 31 bits at `{}`", member.name));
            let offset = layout.bytes.checked_add(align - 1).ok_or_else(too_large)? & -align;
            let bytes = elements.checked_mul(member.dtype.bytes).ok_or_else(too_large)?;
            layout.bytes =
                offset.checked_add(bytes).filter(|end| i32::try_from(*end).is_ok()).ok_or_else(too_large)?;
            layout.members.push(Member {
                name: member.name.clone(),
                cuda: member.dtype.cuda,
                count: member.count.clone(),
                elements,
                offset,
                bytes,
                align,
            });
        }
        Ok(layout)
    }

    /// The sizes and their formulas, one member after another, for messages.
    pub fn explain(&self) -> String {
        let size_of = |member: &Member| member.bytes / member.elements;
        let part = |member: &Member| {
            let count = Expr::Apply(
                Op::Mul,
                Box::new(member.count.clone()),
                Box::new(Expr::Int(size_of(member))),
                member.count.at(),
            );
            format!("{}: {count} = {} B at {}", member.name, member.bytes, member.offset)
        };
        self.members.iter().map(part).collect::<Vec<_>>().join("; ")
    }
}
