//! Activations in the form in which products take them.

use std::ops::Range;

use super::digits::{DigitPart, DigitRow, DigitRows};
use super::{Level, product};
use crate::int4::GROUP;
use crate::{Int4Matrix, WeightRows};

/// Rows of activations in the form that products with one form of weights take.
///
/// For INT4 weights that form costs about as much as a product with a few weight rows, so it is made once for all tasks
/// of an operation; for others the rows are taken as they are.
#[derive(Debug)]
pub struct Inputs<'a> {
    cols: usize,
    rows: Rows<'a>,
}

/// Rows in one of the forms.
#[derive(Debug)]
pub enum Rows<'a> {
    Plain(Vec<&'a [f32]>),
    Digits(DigitRows),
    /// Some rows of others.
    Chosen(Vec<DigitRow<'a>>),
}

impl<'a> Rows<'a> {
    /// For products with INT4 weights.
    pub(crate) fn digits(level: Level, x: &[&[f32]]) -> Self {
        let mut rows = DigitRows::unwritten(x.len(), x.first().map_or(0, |x| x.len() / GROUP));
        rows.parts(std::iter::once(x.len())).into_iter().for_each(|part| part.write(level, x));
        Self::Digits(rows)
    }

    fn len(&self) -> usize {
        match self {
            Self::Plain(rows) => rows.len(),
            Self::Digits(rows) => rows.len(),
            Self::Chosen(rows) => rows.len(),
        }
    }

    fn select(&self, rows: impl Iterator<Item = usize>) -> Rows<'_> {
        match self {
            Self::Plain(all) => Rows::Plain(rows.map(|row| all[row]).collect()),
            Self::Digits(all) => Rows::Chosen(rows.map(|row| all.row(row)).collect()),
            Self::Chosen(all) => Rows::Chosen(rows.map(|row| all[row]).collect()),
        }
    }

    /// The rows for products with weights that are not INT4.
    ///
    /// # Panics
    /// If they were made for INT4.
    pub(crate) fn plain(&self) -> &[&'a [f32]] {
        let Self::Plain(rows) = self else { panic!("activations for INT4 weights, but the weights are not") };
        rows
    }

    /// The rows for products with INT4 weights, given to `f`.
    ///
    /// # Panics
    /// If they were made for others.
    pub(crate) fn with_digits(&self, f: impl FnOnce(&[DigitRow<'_>])) {
        match self {
            Self::Plain(_) => panic!("activations for other weights, but the weights are INT4"),
            Self::Digits(all) => f(&(0..all.len()).map(|row| all.row(row)).collect::<Vec<_>>()),
            Self::Chosen(rows) => f(rows),
        }
    }
}

/// Room for some rows of [`Inputs`].
#[derive(Debug)]
pub struct InputPart<'a> {
    cols: usize,
    digits: DigitPart<'a>,
}

impl InputPart<'_> {
    /// Writes rows `x`; nothing of them is kept.
    ///
    /// # Panics
    /// If there is room for another number of rows, or of elements.
    pub fn write(self, x: &[&[f32]]) {
        assert!(x.iter().all(|x| x.len() == self.cols), "columns of x");
        self.digits.write(Level::best(), x);
    }
}

impl<'a> Inputs<'a> {
    /// Rows `x`, each as long as those of `w`, for products with `w` or other weights of its form and width.
    ///
    /// # Panics
    /// If a row has another length.
    pub fn new<W: WeightRows>(w: &W, x: &[&'a [f32]]) -> Self {
        Self::at(Level::best(), w, x)
    }

    pub(super) fn at<W: WeightRows>(level: Level, w: &W, x: &[&'a [f32]]) -> Self {
        let cols = w.cols();
        assert!(x.iter().all(|x| x.len() == cols), "columns of x and of the weights");
        Self { cols, rows: W::inputs(level, x) }
    }

    /// Room for `rows` rows of `cols` elements, a multiple of 32, for products with INT4 weights: to be written by
    /// [`InputPart::write`] before they are used.
    pub fn int4(rows: usize, cols: usize) -> Inputs<'static> {
        Inputs { cols, rows: Rows::Digits(DigitRows::unwritten(rows, cols / GROUP)) }
    }

    /// Such room in parts of so many rows each, which may be written at once.
    ///
    /// # Panics
    /// If they are more rows than there are, or the rows are for other weights.
    pub fn parts(&mut self, rows: impl Iterator<Item = usize>) -> Vec<InputPart<'_>> {
        let Rows::Digits(all) = &mut self.rows else { panic!("activations that are taken as they are") };
        let cols = self.cols;
        all.parts(rows).into_iter().map(|digits| InputPart { cols, digits }).collect()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The named rows, in that order.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn select(&self, rows: impl Iterator<Item = usize>) -> Inputs<'_> {
        Inputs { cols: self.cols, rows: self.rows.select(rows) }
    }

    /// `out[m][i] = Σ_k w[start + i, k] · x[m][k]` for as many weight rows as `out` is wide; each is read once.
    ///
    /// # Panics
    /// If `out` has another number of rows, its rows have different lengths or reach beyond `w`, or `w` has another form or
    /// width than the weights that the rows were made for.
    pub fn multiply<W: WeightRows>(&self, w: &W, start: usize, out: &mut [&mut [f32]]) {
        self.multiply_at(Level::best(), w, start, out);
    }

    /// `out[m][i] += factors[m] · Σ_k w[start + i, k] · x[rows.start + m][k]`, each product rounded first: as [`Inputs::multiply`] of some
    /// rows and [`crate::ops::add_scaled`].
    ///
    /// # Panics
    /// As [`Inputs::multiply`], or if there are not as many factors as rows.
    pub fn add_scaled(
        &self,
        rows: Range<usize>,
        w: &Int4Matrix,
        start: usize,
        factors: &[f32],
        out: &mut [&mut [f32]],
    ) {
        self.add_scaled_at(Level::best(), rows, w, start, factors, out);
    }

    pub(super) fn add_scaled_at(
        &self,
        level: Level,
        rows: Range<usize>,
        w: &Int4Matrix,
        start: usize,
        factors: &[f32],
        out: &mut [&mut [f32]],
    ) {
        let width = out.first().map_or(0, |row| row.len());
        assert!(self.cols == w.cols() && start + width <= w.rows(), "shape of the weights");
        self.rows.select(rows).with_digits(|x| product(level, w.tiles(), start, x, out, Some(factors)));
    }

    pub(super) fn multiply_at<W: WeightRows>(
        &self,
        level: Level,
        w: &W,
        start: usize,
        out: &mut [&mut [f32]],
    ) {
        assert_eq!(self.cols, w.cols(), "width of the weights");
        let width = out.first().map_or(0, |row| row.len());
        assert!(start + width <= w.rows(), "rows of the weights");
        w.multiply(level, start, &self.rows, out);
    }
}
