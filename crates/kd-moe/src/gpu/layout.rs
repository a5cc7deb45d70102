//! How the experts' INT4 weights lie on the GPU (docs/formats.md, "Experts on the GPU"): the packer, and its inverse.
//!
//! This is the specification; the device packs with the `moe_repack` kernels, which must agree bit by bit.

use half::bf16;
use kd_tensor::int4::{CODES_PER_WORD, GROUP};
use kd_tensor::{Int4Matrix, ShapeError, WeightRows};

/// Rows of a unit, the least that a kernel takes.
pub const UNIT_ROWS: usize = 32;
/// Values of k in a block.
pub const BLOCK_K: usize = 64;
/// 32-bit words of a block: codes, then scales.
pub const BLOCK_WORDS: usize = CODE_WORDS + UNIT_ROWS * BLOCK_K / GROUP / 2;
/// Words of codes in a block.
const CODE_WORDS: usize = UNIT_ROWS * BLOCK_K / CODES_PER_WORD;

/// Why matrices cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A size that is not whole.
    #[error(
        "{what} is {found}, but the GPU layout needs a multiple of {unit}: use a smaller tensor-parallel split"
    )]
    NotWhole {
        /// The size.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What must divide it.
        unit: usize,
    },
    /// Gate and up of different shapes.
    #[error("gate is {gate:?} and up {up:?}, but both must be of one shape")]
    Pair {
        /// Rows and columns.
        gate: [usize; 2],
        /// Rows and columns.
        up: [usize; 2],
    },
    /// Packed words of another number.
    #[error("{rows} x {cols} packed INT4 weights are {expected} words, not {found}")]
    Words {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Words of this shape.
        expected: usize,
        /// Words given.
        found: usize,
    },
    /// A matrix that its own parts do not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Words of `rows` rows of `cols` values.
///
/// # Errors
/// Rows that are not whole units, columns that are not whole blocks, a size beyond the address space.
pub fn packed_words(rows: usize, cols: usize) -> Result<usize, LayoutError> {
    for (what, found, unit) in
        [("the number of rows", rows, UNIT_ROWS), ("the number of columns", cols, BLOCK_K)]
    {
        if found == 0 || !found.is_multiple_of(unit) {
            return Err(LayoutError::NotWhole { what, found, unit });
        }
    }
    let words =
        (rows / UNIT_ROWS).checked_mul(cols / BLOCK_K).and_then(|blocks| blocks.checked_mul(BLOCK_WORDS));
    words.ok_or(LayoutError::NotWhole { what: "the product of rows and columns", found: usize::MAX, unit: 1 })
}

/// One expert's gate and up, each `[width, hidden]`, as `2 · width` rows: eight of gate, eight of up, in turn.
///
/// # Errors
/// Matrices of different shapes, or a shape that is not whole units and blocks.
pub fn pack_gate_up(gate: &Int4Matrix, up: &Int4Matrix) -> Result<Vec<u32>, LayoutError> {
    check_pair(gate, up)?;
    pack(2 * gate.rows(), gate.cols(), |row| match paired(row) {
        (false, row) => (gate, row),
        (true, row) => (up, row),
    })
}

/// Refuses matrices that are no gate and up of one expert.
pub(super) fn check_pair(gate: &Int4Matrix, up: &Int4Matrix) -> Result<(), LayoutError> {
    let [gate, up] = [gate, up].map(|matrix| [matrix.rows(), matrix.cols()]);
    if gate == up { Ok(()) } else { Err(LayoutError::Pair { gate, up }) }
}

/// One expert's down, `[hidden, width]`, its rows in order.
///
/// # Errors
/// A shape that is not whole units and blocks.
pub fn pack_down(down: &Int4Matrix) -> Result<Vec<u32>, LayoutError> {
    pack(down.rows(), down.cols(), |row| (down, row))
}

/// The inverse of [`pack_gate_up`].
///
/// # Errors
/// A shape that is not whole, or another number of words.
pub fn unpack_gate_up(width: usize, hidden: usize, packed: &[u32]) -> Result<[Int4Matrix; 2], LayoutError> {
    let (words, scales) = unpack(2 * width, hidden, packed)?;
    let half = |up: bool| {
        let rows = || (0..2 * width).filter(move |&row| paired(row).0 == up);
        let words = rows()
            .flat_map(|row| words[row * (hidden / CODES_PER_WORD)..].iter().take(hidden / CODES_PER_WORD));
        let scales = rows().flat_map(|row| scales[row * (hidden / GROUP)..].iter().take(hidden / GROUP));
        Int4Matrix::new(
            width,
            hidden,
            words.copied().collect::<Vec<_>>(),
            scales.copied().collect::<Vec<_>>(),
        )
    };
    Ok([half(false)?, half(true)?])
}

/// The inverse of [`pack_down`].
///
/// # Errors
/// A shape that is not whole, or another number of words.
pub fn unpack_down(hidden: usize, width: usize, packed: &[u32]) -> Result<Int4Matrix, LayoutError> {
    let (words, scales) = unpack(hidden, width, packed)?;
    Ok(Int4Matrix::new(hidden, width, words, scales)?)
}

/// Whether packed row `row` of gate and up is one of up, and which.
pub(super) fn paired(row: usize) -> (bool, usize) {
    (row % 16 >= 8, row / 16 * 8 + row % 8)
}

/// Where word `word` of a row, eight codes along k, lies: its index among the packed words.
fn code_place(cols: usize, row: usize, word: usize) -> usize {
    let (block, group, quarter) = (word / 8, word % 8 / 4, word % 4);
    let (tile, low) = (row % UNIT_ROWS / 16, row % 8);
    let high = row % 16 / 8;
    block_start(cols, row, block) + tile * 128 + (low * 4 + quarter) * 4 + group * 2 + high
}

/// Where the scale of group `group` of a row lies: the index of its word, and whether it is the upper half.
fn scale_place(cols: usize, row: usize, group: usize) -> (usize, bool) {
    let (tile, low, high) = (row % UNIT_ROWS / 16, row % 8, row % 16 / 8);
    (block_start(cols, row, group / 2) + CODE_WORDS + tile * 16 + low * 2 + group % 2, high == 1)
}

fn block_start(cols: usize, row: usize, block: usize) -> usize {
    (row / UNIT_ROWS * (cols / BLOCK_K) + block) * BLOCK_WORDS
}

/// Code `i` of eight as the checkpoint has it (bits `4i`) moves to bits `2i` if it is even, else to `16 + 2 (i - 1)`: the
/// kernel takes codes `2p` and `2p + 1` out of the two halves of the word together.
fn spread(word: u32) -> u32 {
    (0..8).fold(0, |spread, i| spread | (word >> (4 * i) & 15) << (16 * (i % 2) + 4 * (i / 2)))
}

fn gather(spread: u32) -> u32 {
    (0..8).fold(0, |word, i| word | (spread >> (16 * (i % 2) + 4 * (i / 2)) & 15) << (4 * i))
}

fn pack<'a>(
    rows: usize,
    cols: usize,
    source: impl Fn(usize) -> (&'a Int4Matrix, usize),
) -> Result<Vec<u32>, LayoutError> {
    let mut packed = vec![0u32; packed_words(rows, cols)?];
    for row in 0..rows {
        let (matrix, from) = source(row);
        for (i, word) in matrix.words(from).iter().enumerate() {
            packed[code_place(cols, row, i)] = spread(word.cast_unsigned());
        }
        for (i, scale) in matrix.scales(from).iter().enumerate() {
            let (place, upper) = scale_place(cols, row, i);
            packed[place] |= u32::from(scale.to_bits()) << (16 * u32::from(upper));
        }
    }
    Ok(packed)
}

fn unpack(rows: usize, cols: usize, packed: &[u32]) -> Result<(Vec<i32>, Vec<bf16>), LayoutError> {
    let (expected, found) = (packed_words(rows, cols)?, packed.len());
    if expected != found {
        return Err(LayoutError::Words { rows, cols, expected, found });
    }
    let words =
        |row| (0..cols / CODES_PER_WORD).map(move |i| gather(packed[code_place(cols, row, i)]).cast_signed());
    let scale = |row, i| {
        let (place, upper) = scale_place(cols, row, i);
        bf16::from_bits((packed[place] >> (16 * u32::from(upper))) as u16)
    };
    let scales = |row| (0..cols / GROUP).map(move |i| scale(row, i));
    Ok(((0..rows).flat_map(words).collect(), (0..rows).flat_map(scales).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matrix(rows: usize, cols: usize) -> impl Strategy<Value = Int4Matrix> {
        let words = prop::collection::vec(any::<i32>(), rows * cols / CODES_PER_WORD);
        // Odd scales too: zero, negative, subnormal, infinite, NaN with any payload.
        let scales = prop::collection::vec(any::<u16>().prop_map(bf16::from_bits), rows * cols / GROUP);
        (words, scales).prop_map(move |(words, scales)| Int4Matrix::new(rows, cols, words, scales).unwrap())
    }

    fn bits(matrix: &Int4Matrix) -> (Vec<i32>, Vec<u16>) {
        let words = (0..matrix.rows()).flat_map(|row| matrix.words(row)).copied().collect();
        let scales =
            (0..matrix.rows()).flat_map(|row| matrix.scales(row)).map(|scale| scale.to_bits()).collect();
        (words, scales)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packing_loses_nothing(
            [gate, up] in (1..4usize, 1..4usize).prop_flat_map(|(r, c)| [matrix(16 * r, 64 * c), matrix(16 * r, 64 * c)]),
            down in (1..4usize, 1..4usize).prop_flat_map(|(r, c)| matrix(32 * r, 64 * c)),
        ) {
            let packed = pack_gate_up(&gate, &up).unwrap();
            let [gate_again, up_again] = unpack_gate_up(gate.rows(), gate.cols(), &packed).unwrap();
            prop_assert_eq!(bits(&gate_again), bits(&gate));
            prop_assert_eq!(bits(&up_again), bits(&up));
            let packed = pack_down(&down).unwrap();
            prop_assert_eq!(bits(&unpack_down(down.rows(), down.cols(), &packed).unwrap()), bits(&down));
        }
    }

    /// docs/formats.md: the worked example.
    #[test]
    fn a_code_and_a_scale_lie_where_the_document_says() {
        let mut words = vec![0; 32 * 128 / 8];
        let mut scales = vec![bf16::ZERO; 32 * 128 / 32];
        // Row 27, k 109: code 13. Its group is 3.
        words[27 * 16 + 13] = 13 << (4 * 5);
        scales[27 * 4 + 3] = bf16::from_f32(1.5);
        let packed = pack_down(&Int4Matrix::new(32, 128, words, scales).unwrap()).unwrap();
        let set: Vec<(usize, u32)> =
            packed.iter().copied().enumerate().filter(|(_, word)| *word != 0).collect();
        // Block 1; tile 1 (row 16 and on), lane 4 * 3 + 1, group 1, upper row.
        let code = 288 + 128 + (4 * 3 + 1) * 4 + 3;
        let scale = 288 + 256 + 16 + 3 * 2 + 1;
        assert_eq!(set, [(code, 13 << 24), (scale, u32::from(bf16::from_f32(1.5).to_bits()) << 16)]);
    }

    #[test]
    fn all_sixteen_codes_keep_their_place_in_a_word() {
        assert_eq!(spread(0x7654_3210), 0x7531_6420);
        assert_eq!(gather(0x7531_6420), 0x7654_3210);
        assert_eq!(spread(0xfedc_ba98), 0xfdb9_eca8);
    }

    /// Fault marlin.md §9 row 11: a shard whose K is no multiple of the tile must be named when it is loaded.
    #[test]
    fn shapes_that_are_not_whole_are_refused() {
        let matrix = |rows: usize, cols: usize| {
            Int4Matrix::new(rows, cols, vec![0; rows * cols / 8], vec![bf16::ONE; rows * cols / 32]).unwrap()
        };
        let error = pack_down(&matrix(32, 96)).unwrap_err().to_string();
        assert!(error.contains("columns is 96") && error.contains("multiple of 64"), "{error}");
        let error = pack_gate_up(&matrix(8, 64), &matrix(8, 64)).unwrap_err().to_string();
        assert!(error.contains("rows is 16") && error.contains("multiple of 32"), "{error}");
        let error = pack_gate_up(&matrix(16, 64), &matrix(32, 64)).unwrap_err().to_string();
        assert!(error.contains("[16, 64]") && error.contains("[32, 64]"), "{error}");
        assert!(unpack_down(32, 64, &[0; 287]).unwrap_err().to_string().contains("287"));
        assert!(packed_words(usize::MAX - 31, 64 << 40).is_err());
    }
}
