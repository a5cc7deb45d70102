//! Entries on their way into FP8 pages and back, against [`Fp8Entry`]: `mla_inputs_fp8`, `head_queries_fp8`, `commit_fp8`,
//! `latent_gather_fp8`.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::{commit_fp8, head_queries_fp8, latent_gather_fp8, mla_inputs_fp8};
use kd_kernels::selftest::{Failure, Outcome, Random, first_difference, units, upload};
use kd_kernels::{Buffer, Choice, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};
use kd_tensor::ops;

use super::tree_mla::pages::encoded;
use super::{Angles, EPS, POSITIONS};
use crate::{Fp8Entry, PAGE_TOKENS};

/// Tokens of the test, and the pages that hold some of them.
const TOKENS: usize = 150;
const COMMITTED: usize = 70;
const PAGES: usize = 3;
/// Layers of a commit: not a whole number of CTAs.
const LAYERS: usize = 5;
/// Tokens whose latents are zeros, and no numbers.
const ZERO: usize = 3;
const NAN: usize = 5;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "mla_inputs_fp8") {
        let entries = Entries::new(device, kernels, row, seed)?;
        let wrong = |what| Failure::Wrong { unit: row.unit.clone(), rows: TOKENS, what };
        let found = entries.made()?;
        let error = entries.judge(&found).map_err(wrong)?;
        entries.few_rows(kernels, &found)?.map_err(wrong)?;
        entries.stored(kernels, &found)?.map_err(wrong)?;
        // Largest values all over a power of two and beyond: scales of both sides of 1.75 times one.
        let mut any = Random::new(seed + 1).values(TOKENS * entries.entry.width(), 9.0);
        for (token, values) in any.chunks_exact_mut(entries.entry.width()).enumerate() {
            let by = 1.0 + token as f32 / TOKENS as f32;
            values.iter_mut().for_each(|value| *value = bf16::from_f32(value.to_f32() * by));
        }
        entries.stored(kernels, &any)?.map_err(wrong)?;
        let bytes = 2 * TOKENS * entries.width();
        outcomes.push(Outcome { unit: row.unit.clone(), rows: TOKENS, error, micros: 0.0, bytes });
    }
    Ok(outcomes)
}

struct Entries {
    stream: Stream,
    kernel: mla_inputs_fp8::MlaInputsFp8,
    dims: mla_inputs_fp8::Dims,
    query: usize,
    entry: Fp8Entry,
    /// `[TOKENS, query + latent + rope]`
    x: Vec<bf16>,
    gains: [Vec<bf16>; 2],
    angles: Angles,
    random: u64,
}

impl Entries {
    fn new(device: &Device, kernels: &Kernels, row: &Row, seed: u64) -> Result<Self, KernelError> {
        let ((q, query), (c, latent), (r, rope)) = (row.dim("Q")?, row.dim("C")?, row.dim("R")?);
        let (mut random, dims) = (Random::new(seed), mla_inputs_fp8::Dims { q, c, r });
        let gains = [random.values(query, 2.0), random.values(latent, 2.0)];
        let mut x = random.values(TOKENS * (query + latent + rope), 4.0);
        let width = query + latent + rope;
        x[ZERO * width + query..][..latent].fill(bf16::ZERO);
        x[NAN * width + query + latent / 2] = bf16::NAN;
        Ok(Self {
            stream: device.stream()?,
            kernel: mla_inputs_fp8::MlaInputsFp8::load(kernels, dims)?,
            dims,
            query,
            entry: Fp8Entry { latent, rope },
            x,
            gains,
            angles: Angles::new(rope, TOKENS, &mut random),
            random: seed,
        })
    }

    fn width(&self) -> usize {
        self.query + self.entry.width()
    }

    fn slots() -> Vec<i32> {
        (0..TOKENS as i32).rev().collect()
    }

    /// The entries in the order of tokens.
    fn in_order(&self, cache: &[bf16]) -> Vec<bf16> {
        cache.chunks_exact(self.entry.width()).rev().flatten().copied().collect()
    }

    /// What `mla_inputs_fp8` makes of all tokens.
    fn made(&self) -> Result<Vec<bf16>, KernelError> {
        let (stream, all) = (&self.stream, (0..TOKENS).collect::<Vec<_>>());
        let x = upload(stream, &self.x)?;
        let gains = [upload(stream, &self.gains[0])?, upload(stream, &self.gains[1])?];
        let (rope, positions) =
            (upload(stream, &self.angles.table())?, upload(stream, &self.angles.positions(&all))?);
        let slots = upload(stream, &Self::slots())?;
        let mut q = Buffer::new(stream, &vec![bf16::NAN; TOKENS * self.query])?;
        let mut cache = Buffer::new(stream, &vec![bf16::ZERO; TOKENS * self.entry.width()])?;
        let args = mla_inputs_fp8::Args {
            x: TensorRef::new(stream, x.as_view(), [TOKENS, self.width()])?,
            q_gain: TensorRef::new(stream, gains[0].as_view(), [self.query])?,
            kv_gain: TensorRef::new(stream, gains[1].as_view(), [self.entry.latent])?,
            eps: EPS,
            rope: TensorRef::new(stream, rope.as_view(), [POSITIONS, self.entry.rope])?,
            positions: TensorRef::new(stream, positions.as_view(), [TOKENS])?,
            slots: TensorRef::new(stream, slots.as_view(), [TOKENS])?,
            q: TensorMut::new(stream, q.view_mut(), [TOKENS, self.query])?,
            cache: TensorMut::new(stream, cache.view_mut(), [TOKENS, self.entry.width()])?,
        };
        self.kernel.launch(stream, Choice::Auto, args)?;
        Ok(self.in_order(&cache.read(stream)?))
    }

    /// Latents are multiples of codes, each as near to its exact value as e4m3 allows; keys are as near as bf16 does. The largest
    /// error as a fraction of what is allowed.
    fn judge(&self, found: &[bf16]) -> Result<f64, String> {
        let Fp8Entry { latent, .. } = self.entry;
        let all: Vec<usize> = (0..TOKENS).collect();
        let (table, mut worst) = (self.angles.of(&all), 0.0f64);
        let gains: Vec<f32> = self.gains[1].iter().map(|gain| gain.to_f32()).collect();
        for (token, found) in found.chunks_exact(self.entry.width()).enumerate() {
            let x = &self.x[token * self.width() + self.query..][..self.entry.width()];
            let mut exact: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
            ops::rms_norm_in_place(&mut exact[..latent], &gains, EPS);
            table.rotate_interleaved(token, &mut exact[latent..]);
            let found: Vec<f32> = found.iter().map(|value| value.to_f32()).collect();
            if token == NAN {
                if found[..latent].iter().any(|value| !value.is_nan()) {
                    return Err("a latent with NaN has numbers".to_owned());
                }
                continue;
            }
            let mut again = found.clone();
            self.entry.round(&mut again);
            if found.iter().zip(&again).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(format!("token {token} holds what no FP8 page would give back"));
            }
            let most = exact[..latent].iter().fold(0.0f32, |most, value| most.max(value.abs()));
            for (i, (found, exact)) in found.iter().zip(&exact).enumerate() {
                // Half of the last of four bits or of the smallest code; half of the last of eight, and what cancellation leaves.
                let allowed = if i < latent {
                    (exact.abs() / 16.0).max(most / 224.0 / 1024.0)
                } else {
                    exact.abs() / 256.0 + 1e-5
                };
                let part = f64::from((found - exact).abs()) / f64::from(allowed * 1.001 + f32::MIN_POSITIVE);
                if part > 1.0 || part.is_nan() {
                    return Err(format!("token {token}, value {i} is {found}, not {exact}"));
                }
                worst = worst.max(part);
            }
        }
        Ok(worst)
    }

    /// `head_queries_fp8`, where there is one, makes the same entries.
    fn few_rows(&self, kernels: &Kernels, expected: &[bf16]) -> Result<Result<(), String>, KernelError> {
        let Some(row) = units(kernels, "head_queries_fp8").next() else { return Ok(Ok(())) };
        let ((h, heads), (n, nope)) = (row.dim("H")?, row.dim("N")?);
        let (mla_inputs_fp8::Dims { q, c, r }, Fp8Entry { latent, rope }) = (self.dims, self.entry);
        let kernel =
            head_queries_fp8::HeadQueriesFp8::load(kernels, head_queries_fp8::Dims { h, q, c, n, r })?;
        let (stream, all, mut random) =
            (&self.stream, (0..TOKENS).collect::<Vec<_>>(), Random::new(self.random));
        let joint = upload(stream, &self.x)?;
        let gains = [upload(stream, &self.gains[0])?, upload(stream, &self.gains[1])?];
        let q_b = upload(stream, &random.values(heads * (nope + rope) * self.query, 0.1))?;
        let key_up = upload(stream, &random.values(heads * latent * nope, 0.1))?;
        let (angles, positions) =
            (upload(stream, &self.angles.table())?, upload(stream, &self.angles.positions(&all))?);
        let slots = upload(stream, &Self::slots())?;
        let mut cache = Buffer::new(stream, &vec![bf16::ZERO; TOKENS * self.entry.width()])?;
        let mut y = Buffer::new(stream, &vec![bf16::NAN; TOKENS * heads * self.entry.width()])?;
        let args = head_queries_fp8::Args {
            joint: TensorRef::new(stream, joint.as_view(), [TOKENS, self.width()])?,
            q_gain: TensorRef::new(stream, gains[0].as_view(), [self.query])?,
            kv_gain: TensorRef::new(stream, gains[1].as_view(), [latent])?,
            eps: EPS,
            q_b: TensorRef::new(stream, q_b.as_view(), [heads * (nope + rope), self.query])?,
            key_up: TensorRef::new(stream, key_up.as_view(), [heads, latent, nope])?,
            rope: TensorRef::new(stream, angles.as_view(), [POSITIONS, rope])?,
            positions: TensorRef::new(stream, positions.as_view(), [TOKENS])?,
            slots: TensorRef::new(stream, slots.as_view(), [TOKENS])?,
            cache: TensorMut::new(stream, cache.view_mut(), [TOKENS, self.entry.width()])?,
            y: TensorMut::new(stream, y.view_mut(), [TOKENS, heads, self.entry.width()])?,
        };
        kernel.launch(stream, Choice::Auto, args)?;
        let found = self.in_order(&cache.read(stream)?);
        Ok(match first_difference(&bits(&found), &bits(expected)) {
            None => Ok(()),
            Some(at) => {
                Err(format!("head_queries_fp8 makes another entry of token {}", at / self.entry.width()))
            }
        })
    }

    /// Entries `[TOKENS, width]` go into pages of the last of several layers and come back, with those that are not committed behind
    /// them: what [`Fp8Entry`] says, byte by byte.
    fn stored(&self, kernels: &Kernels, entries: &[bf16]) -> Result<Result<(), String>, KernelError> {
        let (stream, width, bytes) = (&self.stream, self.entry.width(), self.entry.bytes());
        let mla_inputs_fp8::Dims { c, r, .. } = self.dims;
        let commit = commit_fp8::CommitFp8::load(kernels, commit_fp8::Dims { c, r })?;
        let gather = latent_gather_fp8::LatentGatherFp8::load(kernels, latent_gather_fp8::Dims { c, r })?;
        // Layer l moves token t from row (t + l) % TOKENS; pages of the stream lie backwards, and a token in five moves nowhere.
        let scratch: Vec<bf16> = (0..LAYERS)
            .flat_map(|l| [&entries[(TOKENS - l) * width..], &entries[..(TOKENS - l) * width]].concat())
            .collect();
        let scratch = upload(stream, &scratch)?;
        let table: Vec<i32> = (0..PAGES as i32).rev().collect();
        let place = |t: usize| table[t / PAGE_TOKENS] as usize * PAGE_TOKENS + t % PAGE_TOKENS;
        let from: Vec<i32> = (0..TOKENS as i32).map(|t| if t % 5 == 4 { -1 } else { t }).collect();
        let to: Vec<i32> = (0..TOKENS).map(|t| place(t) as i32).collect();
        let (from_device, to_device) = (upload(stream, &from)?, upload(stream, &to)?);
        let rows = PAGES * PAGE_TOKENS;
        let mut pages = Buffer::new(stream, &vec![0xaau8; LAYERS * rows * bytes])?;
        let args = commit_fp8::Args {
            scratch: TensorRef::new(stream, scratch.as_view(), [LAYERS, TOKENS, width])?,
            from: TensorRef::new(stream, from_device.as_view(), [TOKENS])?,
            to: TensorRef::new(stream, to_device.as_view(), [TOKENS])?,
            pages: TensorMut::new(stream, pages.view_mut(), [LAYERS, rows, bytes])?,
        };
        commit.launch(stream, Choice::Auto, args)?;
        let found = pages.read(stream)?;
        let expected = encoded(self.entry, entries);
        for (layer, found) in found.chunks_exact(rows * bytes).enumerate() {
            let mut expected_pages = vec![0xaau8; rows * bytes];
            for t in (0..TOKENS).filter(|t| t % 5 != 4) {
                let source = (t + TOKENS - layer) % TOKENS;
                expected_pages[place(t) * bytes..][..bytes]
                    .copy_from_slice(&expected[source * bytes..][..bytes]);
            }
            if let Some(at) = first_difference(found, &expected_pages) {
                return Ok(Err(format!(
                    "commit_fp8: byte {} of row {} of layer {layer}",
                    at % bytes,
                    at / bytes
                )));
            }
        }
        // All tokens in pages, as the CPU writes them.
        let mut whole = vec![0xffu8; rows * bytes];
        (0..COMMITTED).for_each(|t| {
            whole[place(t) * bytes..][..bytes].copy_from_slice(&expected[t * bytes..][..bytes])
        });
        let (whole, table_device) = (upload(stream, &whole)?, upload(stream, &table)?);
        let own = upload(stream, &entries[COMMITTED * width..])?;
        let first = 9;
        let mut block = Buffer::new(stream, &vec![bf16::ZERO; (TOKENS - first) * width])?;
        let args = latent_gather_fp8::Args {
            pages: TensorRef::new(stream, whole.as_view(), [PAGES, PAGE_TOKENS, bytes])?,
            table: TensorRef::new(stream, table_device.as_view(), [PAGES])?,
            own: TensorRef::new(stream, own.as_view(), [TOKENS - COMMITTED, width])?,
            committed: COMMITTED as i32,
            first: first as i32,
            entries: TensorMut::new(stream, block.view_mut(), [TOKENS - first, width])?,
        };
        gather.launch(stream, Choice::Auto, args)?;
        let found = block.read(stream)?;
        let mut back = entries[first * width..].to_vec();
        super::tree_mla::pages::rounded(self.entry, &mut back[..(COMMITTED - first) * width]);
        // What is no number has one of many bit patterns.
        let differs = |(a, b): (&bf16, &bf16)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        Ok(match found.iter().zip(&back).position(differs) {
            None => Ok(()),
            Some(at) => {
                Err(format!("latent_gather_fp8: value {} of token {}", at % width, first + at / width))
            }
        })
    }
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}
