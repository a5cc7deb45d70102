//! The inner loops, compiled for the instruction sets that are worth telling apart and chosen at run time.
//!
//! Each loop adds into 16 lanes, lane `i` taking elements `i, i + 16, …`, and joins the lanes in a fixed tree, so
//! for one instruction set a product of the same two rows is bitwise the same whichever function computed it.
//! With AVX2 the multiply-add is fused; without it the product is rounded first.

const LANES: usize = 16;

#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn join(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn dot_body<const FUSED: bool, const N: usize>(w: &[f32], x: [&[f32]; N]) -> [f32; N] {
    let x = x.map(|row| &row[..w.len()]);
    let mut lanes = [[0.0f32; LANES]; N];
    let whole = w.len() - w.len() % LANES;
    let mut k = 0;
    while k < whole {
        let w: &[f32; LANES] = w[k..k + LANES].try_into().expect("a slice of LANES");
        for n in 0..N {
            let x: &[f32; LANES] = x[n][k..k + LANES].try_into().expect("a slice of LANES");
            for i in 0..LANES {
                lanes[n][i] = multiply_add::<FUSED>(w[i], x[i], lanes[n][i]);
            }
        }
        k += LANES;
    }
    for n in 0..N {
        for i in 0..w.len() - whole {
            lanes[n][i] = multiply_add::<FUSED>(w[whole + i], x[n][whole + i], lanes[n][i]);
        }
    }
    lanes.map(join)
}

#[inline(always)]
fn axpy_body<const FUSED: bool>(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = multiply_add::<FUSED>(a, x, *y);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn dot1(w: &[f32], x: [&[f32]; 1]) -> [f32; 1] {
        super::dot_body::<true, 1>(w, x)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn dot4(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
        super::dot_body::<true, 4>(w, x)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
        super::axpy_body::<true>(a, x, y);
    }

    pub(super) fn available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }
}

macro_rules! dispatch {
    ($function:ident ( $($argument:expr),* ), $portable:expr) => {{
        #[cfg(target_arch = "x86_64")]
        if x86::available() {
            // SAFETY: the processor has AVX2 and FMA, as was just checked.
            return unsafe { x86::$function($($argument),*) };
        }
        $portable
    }};
}

fn dot1_dispatch(w: &[f32], x: [&[f32]; 1]) -> [f32; 1] {
    dispatch!(dot1(w, x), dot_body::<false, 1>(w, x))
}

/// `Σ w[k] · x[k]`.
///
/// # Panics
/// If `x` is shorter than `w`.
pub fn dot(w: &[f32], x: &[f32]) -> f32 {
    dot1_dispatch(w, [x])[0]
}

/// Four products with the same left row; each bitwise equal to [`dot`].
///
/// # Panics
/// If a row of `x` is shorter than `w`.
pub fn dot4(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
    dispatch!(dot4(w, x), dot_body::<false, 4>(w, x))
}

/// `y[k] += a · x[k]` over the shorter of the two.
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    dispatch!(axpy(a, x, y), axpy_body::<false>(a, x, y))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seed: u32, len: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn products_agree_with_float64_and_with_each_other_at_every_length() {
        for len in (0..70).chain([127, 128, 129, 7168]) {
            let w = row(1, len);
            let x: [Vec<f32>; 4] = std::array::from_fn(|i| row(2 + i as u32, len));
            let four = dot4(&w, std::array::from_fn(|i| x[i].as_slice()));
            for (x, four) in x.iter().zip(four) {
                let exact: f64 = w.iter().zip(x).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                assert!(
                    (f64::from(four) - exact).abs() <= 1e-6 * (len as f64).sqrt().max(1.0),
                    "length {len}"
                );
                assert_eq!(dot(&w, x).to_bits(), four.to_bits(), "length {len}");
            }
        }
    }

    #[test]
    fn axpy_adds_a_multiple() {
        let (x, mut y) = (row(1, 37), row(2, 37));
        let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.5 * x + y).collect();
        axpy(0.5, &x, &mut y);
        assert_eq!(y, want, "a power of two leaves nothing to round in the product");
    }
}
