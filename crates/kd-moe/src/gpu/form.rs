//! The forms of a layer, and which is taken.

use super::MOST_ROWS;
use super::scratch::{MANY_SLAB, MIDDLE_SLAB};

/// Most rows of [`Form::Few`].
pub(super) const FEW_ROWS: usize = 64;

/// Rows of a slab of [`Form::Folded`].
const FOLDED_SLAB: usize = 48;
/// Those of [`Form::FoldedWgmma`].
const FOLDED_WGMMA_SLAB: usize = 56;
/// Those of [`Form::FoldedTall`].
const FOLDED_TALL_SLAB: usize = 96;

/// How products sum. In either a row's bits depend on that row alone: not on how many rows there are, on which, or on the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// Sums of groups of 32, each times its scale, over fixed segments of K: what drafts are verified with, at every number of rows.
    Grouped,
    /// Scales folded into f16 weights, sums straight through K: faster for many rows, other bits. What prompts are read with.
    Folded,
}

/// Forms of a layer; all of one arithmetic give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As narrow, in one launch that groups the rows itself: at most 64 rows.
    Few,
    /// K split over the warps of a CTA.
    Narrow,
    /// Units split over the warps of a CTA, which share the rows.
    Wide,
    /// As many, for fewer rows: up to 32 rows a warp, three CTAs an SM instead of two.
    Middle,
    /// Blocked in registers: 64 rows of weights and up to 48 rows a warp.
    Many,
    /// Products of warpgroups, on devices of architecture sm_90a alone.
    Wgmma,
    /// Folded scales, blocked in registers: 64 rows of weights and up to 48 rows a warp.
    Folded,
    /// As folded, for fewer rows: up to 32 rows a warp, three CTAs an SM instead of two.
    FoldedMiddle,
    /// Folded scales, products of warpgroups, on devices of architecture sm_90a alone.
    FoldedWgmma,
    /// As folded_wgmma, for more rows: up to 96 rows a product instead of 56.
    FoldedTall,
}

impl Arithmetic {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Grouped, Self::Folded];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grouped => "grouped",
            Self::Folded => "folded",
        }
    }
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Few,
        Self::Narrow,
        Self::Wide,
        Self::Middle,
        Self::Many,
        Self::Wgmma,
        Self::Folded,
        Self::FoldedMiddle,
        Self::FoldedWgmma,
        Self::FoldedTall,
    ];

    /// Its name: that of the variant of the two products, where they have one for every width.
    pub fn name(self) -> &'static str {
        match self {
            Self::Few => "few",
            Self::Narrow => "narrow",
            Self::Wide => "wide",
            Self::Middle => "middle",
            Self::Many => "many",
            Self::Wgmma => "wgmma",
            Self::Folded => "folded",
            Self::FoldedMiddle => "folded_middle",
            Self::FoldedWgmma => "folded_wgmma",
            Self::FoldedTall => "folded_tall",
        }
    }

    /// How it sums.
    pub fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Folded | Self::FoldedMiddle | Self::FoldedWgmma | Self::FoldedTall => Arithmetic::Folded,
            _ => Arithmetic::Grouped,
        }
    }

    /// `SLAB` of the variant.
    pub(super) fn slab(self) -> i32 {
        match self {
            Self::Few | Self::Narrow => 8,
            Self::Wide => 16,
            Self::Middle | Self::FoldedMiddle => MIDDLE_SLAB as i32,
            Self::Many | Self::Wgmma => MANY_SLAB as i32,
            Self::Folded => FOLDED_SLAB as i32,
            Self::FoldedWgmma => FOLDED_WGMMA_SLAB as i32,
            Self::FoldedTall => FOLDED_TALL_SLAB as i32,
        }
    }

    /// Most rows of a run in this form.
    pub fn most_rows(self) -> usize {
        if self == Self::Few { FEW_ROWS } else { MOST_ROWS }
    }

    /// The one of [`Arithmetic::Grouped`] to take for `rows` rows of experts of `width`: where their times cross on the measured
    /// device (docs/kernels/moe.md).
    pub(super) fn preferred(rows: usize, width: usize) -> Self {
        match rows {
            0..=FEW_ROWS if rows * width <= 33 * 256 => Self::Few,
            0..=288 => Self::Narrow,
            289..=352 if width <= 256 => Self::Narrow,
            289..=640 if width > 256 => Self::Wide,
            289..=1280 => Self::Middle,
            _ => Self::Many,
        }
    }
}
