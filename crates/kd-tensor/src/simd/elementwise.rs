//! Loops over single rows: dot product, softmax numerators, SiLU·mul, scaling.

use super::lanes::{LANES, Lanes};
use super::{Kernel, Level};

struct Dot<'a>(&'a [f32], &'a [f32]);

/// `Σ a[k] · b[k]` over the shorter of the two.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    Level::best().run(Dot(a, b))
}

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let len = self.0.len().min(self.1.len());
        let ((a, a_rest), (b, b_rest)) = (self.0[..len].as_chunks(), self.1[..len].as_chunks());
        let mut sum = lanes.splat(0.0);
        for (a, b) in a.iter().zip(b) {
            sum = lanes.mul_add(lanes.load(a), lanes.load(b), sum);
        }
        sum = lanes.mul_add(lanes.load(&padded(a_rest)), lanes.load(&padded(b_rest)), sum);
        joined(lanes, sum)
    }
}

/// Replaces scores by `e^(scale · score − max)`, `max` the largest `scale · score`, and returns their sum. A NaN score makes the sum NaN, so the row ends as an
/// error and not as a plausible value. What a score turns into, and the sum, depend on the values and their places alone.
pub fn exponentials(scores: &mut [f32], scale: f32) -> f32 {
    Level::best().run(Exponentials(scores, scale))
}

pub(super) struct Exponentials<'a>(pub(super) &'a mut [f32], pub(super) f32);

impl Kernel for Exponentials<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let scale = lanes.splat(self.1);
        let mut highest = lanes.splat(f32::NEG_INFINITY);
        let (chunks, rest) = self.0.as_chunks_mut::<LANES>();
        for chunk in &mut *chunks {
            let scaled = lanes.mul(lanes.load(chunk), scale);
            lanes.store(scaled, chunk);
            highest = lanes.max(scaled, highest);
        }
        let edge = lanes.mul(lanes.load_part(rest, f32::NEG_INFINITY), scale);
        let max = lanes.splat(largest(lanes, lanes.max(edge, highest)));
        let mut sum = lanes.splat(0.0);
        for chunk in chunks {
            let e = exp(lanes, lanes.sub(lanes.load(chunk), max));
            lanes.store(e, chunk);
            sum = lanes.add(sum, e);
        }
        if !rest.is_empty() {
            lanes.store_part(exp(lanes, lanes.sub(edge, max)), rest);
            sum = lanes.add(sum, lanes.load_part(rest, 0.0));
        }
        joined(lanes, sum)
    }
}

/// The largest lane that is not NaN.
#[inline(always)]
fn largest<L: Lanes>(lanes: L, v: L::V) -> f32 {
    let mut most = [0.0; LANES];
    lanes.store(v, &mut most);
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            most[i] = if most[i + width] > most[i] { most[i + width] } else { most[i] };
        }
    }
    most[0]
}

/// `Σ e^(x − max)` over all `x` that are not NaN, none above `max`, which is finite.
pub fn exp_sum(x: &[f32], max: f32) -> f64 {
    Level::best().run(ExpSum(x, max))
}

pub(super) struct ExpSum<'a>(pub(super) &'a [f32], pub(super) f32);

impl Kernel for ExpSum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f64 {
        let (none, max) = (lanes.splat(f32::NEG_INFINITY), lanes.splat(self.1));
        // A macro: the compiler leaves a closure that is used twice a function of its own, without the instruction set.
        macro_rules! term {
            ($x:expr) => {
                exp(lanes, lanes.sub(lanes.max($x, none), max))
            };
        }
        // Lanes sum up a few terms each, their totals are summed in f64.
        let mut total = 0.0;
        for block in self.0.chunks(16 * LANES) {
            let (chunks, rest) = block.as_chunks();
            let mut sum = lanes.splat(0.0);
            for chunk in chunks {
                sum = lanes.add(sum, term!(lanes.load(chunk)));
            }
            let edge = term!(lanes.load_part(rest, f32::NEG_INFINITY));
            total += f64::from(joined(lanes, lanes.add(sum, edge)));
        }
        total
    }
}

/// `gate = silu(gate) · up` element by element, `silu(z) = z / (1 + e^−z)`, over the shorter of the two.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    Level::best().run(SiluMul(gate, up));
}

pub(super) struct SiluMul<'a>(pub(super) &'a mut [f32], pub(super) &'a [f32]);

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let one = lanes.splat(1.0);
        let len = self.0.len().min(self.1.len());
        let (gates, gate_rest) = self.0[..len].as_chunks_mut::<LANES>();
        let (ups, up_rest) = self.1[..len].as_chunks::<LANES>();
        for (gate, up) in gates.iter_mut().zip(ups) {
            let z = lanes.load(gate);
            let e = exp(lanes, lanes.sub(lanes.splat(0.0), z));
            lanes.store(lanes.mul(lanes.div(z, lanes.add(one, e)), lanes.load(up)), gate);
        }
        let (mut edge, up_rest) = (padded(gate_rest), padded(up_rest));
        let z = lanes.load(&edge);
        let e = exp(lanes, lanes.sub(lanes.splat(0.0), z));
        lanes.store(lanes.mul(lanes.div(z, lanes.add(one, e)), lanes.load(&up_rest)), &mut edge);
        for (gate, &edge) in gate_rest.iter_mut().zip(&edge) {
            *gate = edge;
        }
    }
}

/// `y += scale · x` element by element over the shorter of the two, the product rounded first.
pub fn add_scaled(y: &mut [f32], scale: f32, x: &[f32]) {
    struct AddScaled<'a>(&'a mut [f32], f32, &'a [f32]);
    impl Kernel for AddScaled<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            self.0.iter_mut().zip(self.2).for_each(|(y, x)| *y += self.1 * x);
        }
    }
    Level::best().run(AddScaled(y, scale, x));
}

/// `x = scale · x` element by element.
pub fn scale(x: &mut [f32], scale: f32) {
    struct Scale<'a>(&'a mut [f32], f32);
    impl Kernel for Scale<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            self.0.iter_mut().for_each(|x| *x *= self.1);
        }
    }
    Level::best().run(Scale(x, scale));
}

/// `x = x · scale · gain` element by element over the shorter of the two.
pub(crate) fn scale_by(x: &mut [f32], scale: f32, gain: &[f32]) {
    struct ScaleBy<'a>(&'a mut [f32], f32, &'a [f32]);
    impl Kernel for ScaleBy<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            self.0.iter_mut().zip(self.2).for_each(|(x, gain)| *x = *x * self.1 * gain);
        }
    }
    Level::best().run(ScaleBy(x, scale, gain));
}

/// `e^x` to within two units in the last place; below −87.3 and above 88 as there. NaN stays NaN.
///
/// `x = n · ln 2 + r` with `|r| ≤ ln 2 / 2`, ln 2 in two parts so that `r` is exact enough, and `e^r` by its Taylor
/// polynomial of degree 7, whose error there is below 2^−27.
#[inline(always)]
fn exp<L: Lanes>(lanes: L, x: L::V) -> L::V {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = lanes.clamp(x, -87.3, 88.0);
    let n = lanes.round(lanes.mul(x, lanes.splat(std::f32::consts::LOG2_E)));
    let r = lanes.mul_add(n, lanes.splat(-LN2_HIGH), x);
    let r = lanes.mul_add(n, lanes.splat(-LN2_LOW), r);
    let mut p = lanes.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = lanes.mul_add(p, r, lanes.splat(c));
    }
    lanes.mul(p, lanes.pow2(n))
}

#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (out, &x) in out.iter_mut().zip(rest) {
        *out = x;
    }
    out
}

#[inline(always)]
fn joined<L: Lanes>(lanes: L, v: L::V) -> f32 {
    let none = lanes.splat(0.0);
    lanes.join4([v, none, none, none])[0]
}
