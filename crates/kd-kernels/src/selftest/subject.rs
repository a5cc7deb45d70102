//! What every self-test of a row-wise kernel does.

use super::memory::{POISON, Written};
use super::{Failure, Outcome, first_difference};
use crate::{KernelError, Stream};

/// Launches of one timing, and as many before it to warm up.
const REPEATS: usize = 100;

/// One unit with inputs for as many rows as the largest launch has.
pub trait Subject {
    /// Device memory of one launch.
    type Memory;

    /// Name of the unit.
    fn unit(&self) -> &str;

    /// The stream that everything runs on.
    fn stream(&self) -> &Stream;

    /// Memory for a launch on the input rows `order`, with poisoned outputs.
    ///
    /// # Errors
    /// A failed allocation or copy.
    fn memory(&self, order: &[usize]) -> Result<Self::Memory, KernelError>;

    /// One launch.
    ///
    /// # Errors
    /// A refused launch.
    fn launch(&self, memory: &mut Self::Memory) -> Result<(), KernelError>;

    /// Everything that the launch may have written, row by row.
    ///
    /// # Errors
    /// A failed copy, or the failure of the launch.
    fn written(&self, memory: &mut Self::Memory) -> Result<Vec<Written>, KernelError>;

    /// Compares with the CPU operation on the input rows `order`: the largest error as a fraction of the bound.
    ///
    /// # Errors
    /// The first value over the bound.
    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String>;

    /// Bytes that a launch on `rows` rows must move.
    fn bytes(&self, rows: usize) -> usize;

    /// The input rows of a launch that is timed: ordinary ones, where some are there to be difficult.
    fn timed(&self, rows: usize) -> Vec<usize> {
        (0..rows).collect()
    }
}

/// Runs `subject` at every number of rows: values within the bound, nothing written beyond the rows, and each row
/// bitwise the same whatever the number, the order and the neighbours of rows.
///
/// # Errors
/// The first difference, or a kernel that cannot run.
pub fn verify<S: Subject>(subject: &S, rows: &[usize]) -> Result<Vec<Outcome>, Failure> {
    let most = rows.iter().copied().max().unwrap_or_default();
    let whole = run(subject, &(0..most).collect::<Vec<_>>())?;
    let mut outcomes = Vec::new();
    for &rows in rows {
        let wrong = |what: String| Failure::Wrong { unit: subject.unit().to_owned(), rows, what };
        let order: Vec<usize> = (0..rows).collect();
        let written = run(subject, &order)?;
        let error = subject.judge(&order, &written).map_err(wrong)?;
        same_rows(&whole, &written, &order).map_err(wrong)?;
        let backwards: Vec<usize> = (most - rows..most).rev().collect();
        same_rows(&whole, &run(subject, &backwards)?, &backwards).map_err(wrong)?;
        let (unit, bytes) = (subject.unit().to_owned(), subject.bytes(rows));
        outcomes.push(Outcome { unit, rows, error, micros: time(subject, &subject.timed(rows))?, bytes });
    }
    Ok(outcomes)
}

/// Variants that must agree in every bit, on the first `rows` input rows: `first` is what the first of them wrote, of as many rows or
/// more, empty before it.
///
/// # Errors
/// The first difference, a launch that fails.
pub fn same_as_first<S: Subject>(subject: &S, first: &mut Vec<Written>, rows: usize) -> Result<(), Failure> {
    let written = run(subject, &(0..rows).collect::<Vec<_>>())?;
    if first.is_empty() {
        *first = written;
        return Ok(());
    }
    for (own, other) in written.iter().zip(first.iter()) {
        let of = |all: &Written| all.bytes.get(..rows * all.row_bytes).unwrap_or_default().to_vec();
        if let Some(byte) = first_difference(&of(own), &of(other)) {
            let (row, at) = (byte / own.row_bytes.max(1), byte % own.row_bytes.max(1));
            let what = format!("`{}`: byte {at} of row {row} is another than in the first variant", own.name);
            return Err(Failure::Wrong { unit: subject.unit().to_owned(), rows, what });
        }
    }
    Ok(())
}

/// One launch; fails if memory beyond its rows was written.
fn run<S: Subject>(subject: &S, order: &[usize]) -> Result<Vec<Written>, Failure> {
    let mut memory = subject.memory(order)?;
    subject.launch(&mut memory)?;
    let written = subject.written(&mut memory)?;
    subject.stream().synchronize()?;
    for output in &written {
        let rest = output.bytes.get(order.len() * output.row_bytes..).unwrap_or_default();
        if let Some(at) = rest.iter().position(|byte| *byte != POISON) {
            let what = format!("`{}`: byte {at} beyond the last row was written", output.name);
            return Err(Failure::Wrong { unit: subject.unit().to_owned(), rows: order.len(), what });
        }
    }
    Ok(written)
}

/// Row `i` of `some` must be row `order[i]` of `whole`, bit by bit.
fn same_rows(whole: &[Written], some: &[Written], order: &[usize]) -> Result<(), String> {
    for (whole, some) in whole.iter().zip(some) {
        for (i, &row) in order.iter().enumerate() {
            if let Some(byte) = first_difference(whole.row(row), some.row(i)) {
                return Err(format!(
                    "`{}` of input row {row} depends on the launch: at place {i} byte {byte} is another",
                    some.name
                ));
            }
        }
    }
    Ok(())
}

/// Microseconds of one launch, the mean of many replayed as a graph, as serving does it; none without [`timed`](super::timed).
fn time<S: Subject>(subject: &S, order: &[usize]) -> Result<f64, KernelError> {
    if !super::timed() {
        return Ok(f64::NAN);
    }
    fn record<S: Subject>(_: &Stream, (subject, memory): &mut (&S, S::Memory)) -> Result<(), KernelError> {
        (0..REPEATS).try_for_each(|_| subject.launch(memory))
    }
    let stream = subject.stream();
    let graph = stream.capture((subject, subject.memory(order)?), record::<S>)?;
    Ok(graph.time(1)? / REPEATS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_depends_on_its_place_is_found() {
        let written = |bytes: &[u8]| vec![Written { name: "y", row_bytes: 2, bytes: bytes.to_vec() }];
        let whole = written(&[1, 2, 3, 4, 5, 6]);
        assert_eq!(same_rows(&whole, &written(&[5, 6, 3, 4]), &[2, 1]), Ok(()));
        let message = same_rows(&whole, &written(&[5, 6, 3, 9]), &[2, 1]).expect_err("another");
        assert!(message.contains("input row 1") && message.contains("byte 1"), "{message}");
        assert!(same_rows(&whole, &written(&[]), &[0]).is_err(), "a missing row is not a right one");
    }
}
