//! `tree_mla` and `tree_mla_merge` against a decode of each row alone, and against themselves.

pub(crate) mod case;
mod finite;
pub(crate) mod launch;
pub(crate) mod pages;

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::selftest::{Failure, Outcome, Random, cases, first_difference, timed, units};
use kd_kernels::{Device, KernelError, Kernels, Stream};

use case::{Branch, Case, Inputs, Widths};
use launch::{Attention, Pass, Room, run};

use crate::{Leaves, PageId};

/// Nodes and committed tokens of each stream of a pass, and how deep its trees may be.
struct Shape {
    streams: &'static [(usize, usize)],
    depth: usize,
    /// Of how many (node, head) one is decoded on the CPU.
    every: usize,
}

const fn shape(streams: &'static [(usize, usize)], depth: usize, every: usize) -> Shape {
    Shape { streams, depth, every }
}

/// No context; the edges of steps, pages and leaves; node counts around the words of a mask; ragged batches; leaves that only
/// some rows reach.
const SHAPES: [Shape; 10] = [
    shape(&[(1, 0)], 1, 1),
    shape(&[(2, 0), (63, 1), (1, 15)], 4, 3),
    shape(&[(3, 63), (5, 64), (2, 65), (4, 16), (4, 17)], 3, 1),
    shape(&[(9, 130), (1, 1500), (33, 7), (2, 515)], 8, 5),
    shape(&[(64, 100), (65, 111)], 7, 11),
    shape(&[(128, 0), (129, 250)], 16, 29),
    shape(&[(12, 120), (7, 127), (5, 128), (1, 127)], 9, 3),
    shape(&[(33, 2041), (9, 2055)], 8, 67),
    shape(&[(1, 9000), (17, 40)], 5, 41),
    shape(&[(20, 506), (20, 1020)], 12, 17),
];

type Beside = fn(&mut Subject<'_>) -> Result<(), Failure>;

/// What is checked besides.
const BESIDE: [Beside; 6] = [
    |subject| subject.chain(),
    |subject| subject.replays(),
    |subject| subject.high_pages(),
    |subject| subject.placeholders(),
    |subject| subject.little_room(),
    |subject| subject.not_finite(),
];

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    of("tree_mla", false, device, kernels, seed)
}

/// The same over FP8 pages, whose values bf16 pages could hold: with these, rows must have the same bits.
pub(super) fn check_fp8(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    of("tree_mla_fp8", true, device, kernels, seed)
}

fn of(
    family: &str,
    fp8: bool,
    device: &Device,
    kernels: &Kernels,
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, family) {
        let length = |name| row.dim(name).map(|(_, length)| length);
        let widths = Widths { heads: length("H")?, latent: length("C")?, rope: length("R")?, fp8 };
        let mut subject =
            Subject { stream: device.stream()?, kernels, row, widths, random: Random::new(seed) };
        for place in cases(0..SHAPES.len() + BESIDE.len()) {
            match SHAPES.get(place) {
                Some(shape) => outcomes.extend(subject.shape(shape)?),
                None => BESIDE[place - SHAPES.len()](&mut subject)?,
            }
        }
    }
    Ok(outcomes)
}

/// One unit.
struct Subject<'a> {
    stream: Stream,
    kernels: &'a Kernels,
    row: &'a Row,
    widths: Widths,
    random: Random,
}

impl Subject<'_> {
    fn wrong(&self, case: &Case, what: String) -> Failure {
        Failure::Wrong { unit: self.row.unit.clone(), rows: case.rows(), what }
    }

    fn run(&mut self, case: &Case, variant: Option<&str>) -> Result<Vec<bf16>, KernelError> {
        run(&self.stream, self.kernels, case, variant, &mut self.random)
    }

    /// Rows `first` on of `found` must be `expected`, bit by bit.
    fn same(
        &self,
        case: &Case,
        found: &[bf16],
        first: usize,
        expected: &[bf16],
        what: &str,
    ) -> Result<(), Failure> {
        let width = self.widths.heads * self.widths.latent;
        let bits = |values: &[bf16]| -> Vec<u16> { values.iter().map(|value| value.to_bits()).collect() };
        let found =
            found.get(first * width..).and_then(|found| found.get(..expected.len())).unwrap_or_default();
        match first_difference(&bits(found), &bits(expected)) {
            None => Ok(()),
            Some(at) => {
                let (row, head) = (first + at / width, at % width / self.widths.latent);
                Err(self.wrong(case, format!("row {row}, head {head} depends on {what}")))
            }
        }
    }

    /// Values, and the independence of every row from variant, batch and tree.
    fn shape(&mut self, shape: &Shape) -> Result<Vec<Outcome>, Failure> {
        let mut outcomes = Vec::new();
        for inputs in [Inputs::Average, Inputs::Pick, Inputs::Random] {
            let random = &mut self.random;
            let branches = shape.streams.iter().map(|(n, c)| Branch::random(*n, *c, shape.depth, random));
            let branches = branches.collect();
            let case = Case::new(self.widths, branches, inputs, &mut self.random);
            let variant = self.row.variant.clone();
            let found = self.run(&case, Some(&variant))?;
            let error = case
                .judge(&found, shape.every)
                .map_err(|what| self.wrong(&case, format!("{inputs:?}: {what}")))?;
            outcomes.push(self.outcome(&case, error)?);
            if inputs == Inputs::Random {
                self.invariance(&case, &found)?;
            }
        }
        Ok(outcomes)
    }

    fn invariance(&mut self, case: &Case, found: &[bf16]) -> Result<(), Failure> {
        let width = self.widths.heads * self.widths.latent;
        let auto = self.run(case, None)?;
        self.same(case, &auto, 0, found, "the variant")?;
        if self.widths.fp8 {
            let values = Case { widths: Widths { fp8: false, ..self.widths }, ..case.clone() };
            let found_there = self.run(&values, None)?;
            self.same(case, found, 0, &found_there, "what pages hold the same values in")?;
        }
        let starts = case.starts();
        let order: Vec<usize> = (0..case.branches.len()).rev().collect();
        let backwards = case.streams(&order);
        let turned = self.run(&backwards, Some(&self.row.variant))?;
        for (&stream, first) in order.iter().zip(backwards.starts()) {
            let expected = &found[starts[stream] * width..starts[stream + 1] * width];
            self.same(case, &turned, first, expected, "the order of streams")?;
        }
        // Plain decoding: the node alone, its ancestors in pages.
        for (stream, (branch, first)) in case.branches.iter().zip(starts).enumerate() {
            let nodes = branch.nodes();
            for node in (0..nodes).step_by(nodes / 3 + 1).chain([nodes - 1]) {
                let alone = self.run(&case.alone(stream, node), Some(&self.row.variant))?;
                let what = "whether its path lies in pages or in scratch";
                self.same(case, found, first + node, &alone, what)?;
            }
        }
        Ok(())
    }

    /// A chain of 129 nodes, deeper than any page, against its nodes decoded one by one.
    fn chain(&mut self) -> Result<(), Failure> {
        let case = Case::new(self.widths, vec![Branch::chain(129, 119)], Inputs::Random, &mut self.random);
        let found = self.run(&case, Some(&self.row.variant))?;
        case.judge(&found, 97).map_err(|what| self.wrong(&case, what))?;
        self.invariance(&case, &found)
    }

    /// A graph with room for more rows and streams, replayed with trees of other sizes: the rows of direct launches, and zeros
    /// in the padding.
    fn replays(&mut self) -> Result<(), Failure> {
        let (widths, stream) = (self.widths, self.stream.clone());
        let mut cases = Vec::new();
        for streams in [&[(9, 140), (3, 40)][..], &[(2, 0), (17, 300), (1, 65)], &[(5, 64)]] {
            let branches = streams.iter().map(|(n, c)| Branch::random(*n, *c, 4, &mut self.random)).collect();
            cases.push(Case::new(widths, branches, Inputs::Random, &mut self.random));
        }
        let partial =
            Leaves::new(widths.heads).partial_rows(widths.heads, [(24, 400); 2]).unwrap_or_default();
        let room = Room { rows: 24, streams: 4, pages: 16, table: 6, partial };
        let attention = Attention::load(self.kernels, widths)?;
        let mut pass = Pass::new(&stream, attention, Some(&self.row.variant), widths, room)?;
        // Each case has pages of its own.
        let mut tables: Vec<Vec<Vec<PageId>>> = Vec::new();
        let mut next = 0;
        for case in &cases {
            let pages = |branch: &Branch| branch.committed.div_ceil(crate::PAGE_TOKENS);
            let table = |branch: &Branch| {
                let first = next;
                next += pages(branch);
                (first..next).map(|page| PageId(page as u32)).collect()
            };
            let own: Vec<Vec<PageId>> = case.branches.iter().map(table).collect();
            pass.fill_pages(&stream, case, &own)?;
            tables.push(own);
        }
        let graph = stream.capture(pass, Pass::record)?;
        for i in [0, 1, 2, 1, 0] {
            let (case, tables) = (&cases[i], &tables[i]);
            graph.resources().write(&stream, case, tables)?;
            graph.launch()?;
            let found = graph.resources().mixed.read(&stream)?;
            let direct = self.run(case, Some(&self.row.variant))?;
            self.same(case, &found, 0, &direct, "the graph that ran it")?;
            if found[direct.len()..].iter().any(|value| value.to_bits() != 0) {
                return Err(self.wrong(case, "a padding row is not zero".to_owned()));
            }
        }
        Ok(())
    }

    /// Pages whose first value lies beyond 2^31.
    fn high_pages(&mut self) -> Result<(), Failure> {
        let stream = self.stream.clone();
        let case = Case::new(
            self.widths,
            vec![Branch::random(5, 200, 2, &mut self.random)],
            Inputs::Random,
            &mut self.random,
        );
        let direct = self.run(&case, Some(&self.row.variant))?;
        let first = (1usize << 31) / (crate::PAGE_TOKENS * self.widths.key());
        let tables = vec![(0..4).map(|i| PageId((first + 4 - i) as u32)).collect()];
        let attention = Attention::load(self.kernels, self.widths)?;
        let room = Room::of(&case, 1);
        let mut pass = Pass::new(&stream, attention, Some(&self.row.variant), self.widths, room)?;
        pass.many_pages(&stream, first + 5)?;
        pass.fill_pages(&stream, &case, &tables)?;
        pass.write(&stream, &case, &tables)?;
        Pass::record(&stream, &mut pass)?;
        let found = pass.mixed.read(&stream)?;
        self.same(&case, &found, 0, &direct, "page ids")
    }

    /// A page table that still holds a placeholder makes its own stream NaN and no other.
    fn placeholders(&mut self) -> Result<(), Failure> {
        let stream = self.stream.clone();
        let branches = vec![Branch::chain(3, 70), Branch::chain(4, 90)];
        let case = Case::new(self.widths, branches, Inputs::Random, &mut self.random);
        let whole = self.run(&case, Some(&self.row.variant))?;
        let (pages, tables) = case.tables(&mut self.random);
        let attention = Attention::load(self.kernels, self.widths)?;
        let room = Room::of(&case, pages);
        let mut pass = Pass::new(&stream, attention, Some(&self.row.variant), self.widths, room)?;
        pass.fill_pages(&stream, &case, &tables)?;
        pass.write(&stream, &case, &tables)?;
        pass.break_table(&stream, &tables)?;
        Pass::record(&stream, &mut pass)?;
        let found = pass.mixed.read(&stream)?;
        let first = 3 * self.widths.heads * self.widths.latent;
        if found[..first].iter().any(|value| !value.is_nan()) {
            return Err(self.wrong(&case, "a stream without a page is not NaN".to_owned()));
        }
        self.same(&case, &found, 3, &whole[first..], "another stream's page table")
    }

    /// Too few rows for partial results: NaN, never a wrong value.
    fn little_room(&mut self) -> Result<(), Failure> {
        let stream = self.stream.clone();
        let case = Case::new(self.widths, vec![Branch::chain(2, 300)], Inputs::Random, &mut self.random);
        let (pages, tables) = case.tables(&mut self.random);
        let attention = Attention::load(self.kernels, self.widths)?;
        let room = Room { partial: self.widths.heads, ..Room::of(&case, pages) };
        let mut pass = Pass::new(&stream, attention, Some(&self.row.variant), self.widths, room)?;
        pass.fill_pages(&stream, &case, &tables)?;
        pass.write(&stream, &case, &tables)?;
        Pass::record(&stream, &mut pass)?;
        let found = pass.mixed.read(&stream)?;
        if Leaves::new(self.widths.heads).at(300) > 0 && found.iter().any(|value| !value.is_nan()) {
            return Err(self.wrong(&case, "a row without room for its partial results is not NaN".to_owned()));
        }
        Ok(())
    }

    /// The outcome of a case, with the time of one pass in a replayed graph.
    fn outcome(&mut self, case: &Case, error: f64) -> Result<Outcome, KernelError> {
        let stream = self.stream.clone();
        let (pages, tables) = case.tables(&mut self.random);
        let attention = Attention::load(self.kernels, self.widths)?;
        let room = Room::of(case, pages);
        let mut pass = Pass::new(&stream, attention, Some(&self.row.variant), self.widths, room)?;
        pass.fill_pages(&stream, case, &tables)?;
        pass.write(&stream, case, &tables)?;
        let micros = if timed() { stream.capture(pass, Pass::record)?.time(20)? } else { f64::NAN };
        let Widths { heads, latent, .. } = self.widths;
        let tokens: usize = case.branches.iter().map(|b| b.committed + b.nodes()).sum();
        let entry = if self.widths.fp8 { self.widths.entry().bytes() } else { 2 * self.widths.key() };
        let bytes = tokens * entry + 2 * case.rows() * heads * (self.widths.key() + latent);
        let unit = self.row.unit.clone();
        Ok(Outcome { unit, rows: case.rows(), error, micros, bytes })
    }
}
