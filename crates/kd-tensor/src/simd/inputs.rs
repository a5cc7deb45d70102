//! Activations in the order in which weights are read.

use super::lanes::{LANES, Lanes, Line};
use super::rows::WeightRow;
use super::{Kernel, Level, products};
use crate::WeightRows;
use crate::buffer::Buffer;

/// Rows of activations in the order in which the kernels of one form of weights take them.
///
/// To put them in order costs about as much as a product with a few weight rows, so it is done once for all tasks of an
/// operation, and for f32 weights, which come in the order of their elements, not at all.
#[derive(Debug)]
pub struct Inputs<'a> {
    cols: usize,
    steps: usize,
    rows: Rows<'a>,
}

#[derive(Debug)]
enum Rows<'a> {
    Lent(Vec<&'a [Line]>),
    /// So many rows of so many lines.
    Owned(Buffer, usize, usize),
}

impl<'a> Inputs<'a> {
    /// Rows `x`, each as long as those of `w`, for products with `w` or other weights of its form and width.
    ///
    /// # Panics
    /// If a row has another length.
    pub fn new<W: WeightRows + ?Sized>(w: &W, x: &[&'a [f32]]) -> Self {
        Self::at::<W>(Level::best(), w.cols(), x)
    }

    pub(super) fn at<W: WeightRows + ?Sized>(level: Level, cols: usize, x: &[&'a [f32]]) -> Self {
        assert!(x.iter().all(|x| x.len() == cols), "columns of x and of the weights");
        let steps = W::Row::STEPS;
        if steps == 1 && cols.is_multiple_of(LANES) {
            return Self { cols, steps, rows: Rows::Lent(x.iter().map(|x| x.as_chunks().0).collect()) };
        }
        let lines = cols.div_ceil(steps * LANES) * steps;
        let mut data = Buffer::zeros(x.len() * lines * LANES);
        level.run(Arrange { x, steps, out: data.as_chunks_mut().0 });
        Self { cols, steps, rows: Rows::Owned(data, x.len(), lines) }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.rows {
            Rows::Lent(rows) => rows.len(),
            Rows::Owned(_, rows, _) => *rows,
        }
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
        let lines = |row: usize| match &self.rows {
            Rows::Lent(rows) => rows[row],
            Rows::Owned(data, _, lines) => &data.as_chunks().0[row * lines..][..*lines],
        };
        Inputs { cols: self.cols, steps: self.steps, rows: Rows::Lent(rows.map(lines).collect()) }
    }

    /// `out[m][i] = Σ_k w[start + i, k] · x[m][k]` for as many weight rows as `out` is wide; each is read once.
    ///
    /// # Panics
    /// If `out` has another number of rows, its rows have different lengths, or `w` has another form or width than the
    /// weights that the rows were made for.
    pub fn multiply<W: WeightRows + ?Sized>(&self, w: &W, start: usize, out: &mut [&mut [f32]]) {
        self.multiply_at(Level::best(), w, start, out);
    }

    pub(super) fn multiply_at<W: WeightRows + ?Sized>(
        &self,
        level: Level,
        w: &W,
        start: usize,
        out: &mut [&mut [f32]],
    ) {
        let steps = W::Row::STEPS;
        assert_eq!((self.cols, self.steps), (w.cols(), steps), "width and form of the weights");
        match &self.rows {
            Rows::Lent(rows) => products::products(level, w, start, rows, out),
            Rows::Owned(..) => self.select(0..self.len()).multiply_at(level, w, start, out),
        }
    }
}

/// Rows one after the other, each padded to whole blocks; a block of `16 · steps` is transposed to `[steps][16]`.
struct Arrange<'a, 'o> {
    x: &'a [&'a [f32]],
    steps: usize,
    out: &'o mut [Line],
}

impl Kernel for Arrange<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const HALF: usize, const TALL: usize>(self, lanes: L) {
        match self.steps {
            8 => self.blocks::<L, 8>(lanes),
            2 => self.blocks::<L, 2>(lanes),
            _ => self.blocks::<L, 1>(lanes),
        }
    }
}

impl Arrange<'_, '_> {
    #[inline(always)]
    fn blocks<L: Lanes, const STEPS: usize>(self, lanes: L) {
        let mut out = self.out.as_chunks_mut::<STEPS>().0.iter_mut();
        for x in self.x {
            let blocks = x.as_chunks::<LANES>().0.as_chunks::<STEPS>().0;
            for (block, out) in blocks.iter().zip(&mut out) {
                transpose(lanes, block, out);
            }
            let rest = &x[blocks.len() * STEPS * LANES..];
            if !rest.is_empty()
                && let Some(out) = out.next()
            {
                let mut block = [[0.0; LANES]; STEPS];
                block.as_flattened_mut()[..rest.len()].copy_from_slice(rest);
                transpose(lanes, &block, out);
            }
        }
    }
}

/// Element `STEPS · i + j` goes to `[j][i]`. To unzip all vectors turns the bits of the places once to the right.
#[inline(always)]
fn transpose<L: Lanes, const STEPS: usize>(lanes: L, from: &[Line; STEPS], to: &mut [Line; STEPS]) {
    let mut v = [lanes.splat(0.0); STEPS];
    for i in 0..STEPS {
        v[i] = lanes.load(&from[i]);
    }
    let mut turns = STEPS;
    while turns > 1 {
        turns /= 2;
        let old = v;
        for i in 0..STEPS / 2 {
            (v[i], v[STEPS / 2 + i]) = lanes.unzip(old[2 * i], old[2 * i + 1]);
        }
    }
    for i in 0..STEPS {
        lanes.store(v[i], &mut to[i]);
    }
}
