//! `kd golden model`.

use std::path::Path;

use anyhow::{Context, ensure};
use kd_attn::{Mask, PageId, PagedCache, Segment};
use kd_ddtree::Tree;
use kd_model::{Forward, Target};
use kd_tensor::{Matrix, Pool, safetensors::SafeTensors};

use super::record::{Arrays, Recorder, Rows, names, token_ids};

/// Rows of one prefill pass: smaller than most cases, so that chunks and pages are crossed.
const CHUNK: usize = 48;
/// The case of which only the last rows are kept, and how many.
const LONG: (&str, usize) = ("long", 16);

pub(crate) fn run(pool: &Pool, target: &Target, inputs: &SafeTensors, out: &Path) -> anyhow::Result<()> {
    let mut arrays = Arrays::default();
    for case in names(inputs, "case") {
        let ids = token_ids(inputs, &format!("case.{case}.input_ids"))?;
        write_case(pool, target, &case, &ids, &mut arrays).with_context(|| format!("case {case}"))?;
    }
    for name in names(inputs, "greedy") {
        let prompt = token_ids(inputs, &format!("greedy.{name}.prompt_ids"))?;
        let steps = inputs.integers(&format!("greedy.{name}.steps"))?;
        let steps = steps.first().and_then(|&n| usize::try_from(n).ok()).context("steps is no count")?;
        write_greedy(pool, target, &name, &prompt, steps, &mut arrays)
            .with_context(|| format!("greedy {name}"))?;
    }
    for name in names(inputs, "tree") {
        let prefix = token_ids(inputs, &format!("tree.{name}.prefix_ids"))?;
        let tokens = token_ids(inputs, &format!("tree.{name}.tokens"))?;
        let parents = inputs.integers(&format!("tree.{name}.parents"))?;
        write_tree(pool, target, &name, &prefix, &tokens, &parents, &mut arrays)
            .with_context(|| format!("tree {name}"))?;
    }
    arrays.write(inputs, out)
}

/// One sequence, read and continued pass by pass.
struct Sequence<'a> {
    pool: &'a Pool,
    target: &'a Target,
    cache: PagedCache,
    table: Vec<PageId>,
    committed: usize,
    recorder: Recorder,
    latents: Vec<Rows>,
}

impl<'a> Sequence<'a> {
    fn new(pool: &'a Pool, target: &'a Target, tokens: usize) -> anyhow::Result<Self> {
        let pages = PagedCache::pages_for(tokens);
        Ok(Self {
            pool,
            target,
            cache: target.try_new_cache(pages)?,
            table: (0..pages as u32).map(PageId).collect(),
            committed: 0,
            recorder: Recorder::default(),
            latents: Vec::new(),
        })
    }

    fn pass(&mut self, tokens: &[u32], mask: Mask<'_>) -> anyhow::Result<Forward> {
        let segment = Segment { pages: &self.table, committed: self.committed, rows: tokens.len(), mask };
        let segments = std::slice::from_ref(&segment);
        let pass = self.target.forward(self.pool, tokens, segments, &self.cache, &[], &mut self.recorder)?;
        self.latents.resize_with(pass.latents.len(), Rows::default);
        self.latents.iter_mut().zip(&pass.latents).for_each(|(all, new)| all.extend(new));
        Ok(pass)
    }

    /// Reads and commits tokens; the last pass is returned.
    fn read(&mut self, tokens: &[u32]) -> anyhow::Result<Option<Forward>> {
        let mut last = None;
        for chunk in tokens.chunks(CHUNK) {
            let pass = self.pass(chunk, Mask::Causal)?;
            let rows: Vec<usize> = (0..chunk.len()).collect();
            self.cache.commit(&pass.latents, &rows, &self.table, self.committed);
            self.committed += chunk.len();
            last = Some(pass);
        }
        Ok(last)
    }

    /// Everything recorded for the named rows, except logits.
    fn write(&self, prefix: &str, rows: &[usize], scores: bool, arrays: &mut Arrays) {
        let pick = |from: &Rows, columns: std::ops::Range<usize>| -> Vec<f32> {
            rows.iter().flat_map(|&row| from.row(row)[columns.clone()].iter().copied()).collect()
        };
        let stack = |all: &[Rows], columns: std::ops::Range<usize>| -> Vec<f32> {
            all.iter().flat_map(|one| pick(one, columns.clone())).collect()
        };
        let config = self.target.config();
        let (width, latent, cached) = (config.hidden_size, config.kv_lora_rank, config.cache_width());
        let (n, layers) = (rows.len(), self.latents.len());
        let hidden = &self.recorder.hidden;
        arrays.floats(format!("{prefix}.hidden"), &[hidden.len(), n, width], &stack(hidden, 0..width));
        arrays.floats(format!("{prefix}.ckv"), &[layers, n, latent], &stack(&self.latents, 0..latent));
        let key = &[layers, n, cached - latent];
        arrays.floats(format!("{prefix}.kpe"), key, &stack(&self.latents, latent..cached));

        let routing = &self.recorder.routing;
        let Some(first) = routing.first() else { return };
        let (moe, k, experts) = (routing.len(), first.top_k, first.scores.width);
        let (mut ids, mut weights, mut margins) = (Vec::new(), Vec::new(), Vec::new());
        for layer in routing {
            let router = self.target.router(layer.layer).expect("the layer was routed");
            for &row in rows {
                ids.extend(layer.ids[row * k..][..k].iter().map(|&id| id as i32));
                weights.extend_from_slice(&layer.weights[row * k..][..k]);
                margins.push(router.margin(layer.scores.row(row)));
            }
        }
        arrays.ids(format!("{prefix}.router_ids"), &[moe, n, k], &ids);
        arrays.floats(format!("{prefix}.router_weights"), &[moe, n, k], &weights);
        arrays.floats(format!("{prefix}.router_margin"), &[moe, n], &margins);
        if scores {
            let all: Vec<f32> = routing.iter().flat_map(|layer| pick(&layer.scores, 0..experts)).collect();
            arrays.floats(format!("{prefix}.router_scores"), &[moe, n, experts], &all);
        }
    }

    /// The residual of a recorded row after the last layer.
    fn last_hidden(&self, rows: &[usize]) -> anyhow::Result<Matrix> {
        let last = self.recorder.hidden.last().context("nothing was read")?;
        let data = rows.iter().flat_map(|&row| last.row(row).iter().copied()).collect();
        Ok(Matrix::from_vec(rows.len(), last.width, data)?)
    }
}

fn write_case(
    pool: &Pool,
    target: &Target,
    name: &str,
    ids: &[u32],
    arrays: &mut Arrays,
) -> anyhow::Result<()> {
    ensure!(!ids.is_empty(), "input_ids is empty");
    let mut sequence = Sequence::new(pool, target, ids.len())?;
    sequence.read(ids)?;
    let long = name == LONG.0;
    let first = if long { ids.len().saturating_sub(LONG.1) } else { 0 };
    let rows: Vec<usize> = (first..ids.len()).collect();
    let prefix = format!("case.{name}");
    sequence.write(&prefix, &rows, !long, arrays);
    let hidden = sequence.last_hidden(&rows)?;
    let logits = target.logits(pool, &hidden);
    arrays.floats(format!("{prefix}.logits"), &[rows.len(), logits.cols()], logits.data());
    let normed = target.final_norm(&hidden);
    arrays.floats(format!("{prefix}.final_norm"), &[rows.len(), normed.cols()], normed.data());
    Ok(())
}

fn write_greedy(
    pool: &Pool,
    target: &Target,
    name: &str,
    prompt: &[u32],
    steps: usize,
    arrays: &mut Arrays,
) -> anyhow::Result<()> {
    let longest = prompt.len().checked_add(steps).context("steps is too large")?;
    let limit = target.config().max_position_embeddings;
    ensure!(longest <= limit, "prompt and {steps} steps are longer than the context of {limit}");
    let mut sequence = Sequence::new(pool, target, longest)?;
    let mut pass = sequence.read(prompt)?.context("prompt_ids is empty")?;
    let (mut output, mut all, mut margins) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..steps {
        let last = pass.hidden.gather(std::iter::once(pass.hidden.rows() - 1));
        let logits = target.logits(pool, &last);
        let (best, margin) =
            top_two(logits.row(0)).with_context(|| format!("step {step}: no finite maximum"))?;
        output.push(i64::from(best));
        margins.push(margin);
        all.extend_from_slice(logits.row(0));
        if step + 1 < steps {
            pass = sequence.read(&[best])?.context("a token was read")?;
        }
    }
    arrays.integers(format!("greedy.{name}.output_ids"), &output);
    let vocab = target.config().vocab_size;
    arrays.floats(format!("greedy.{name}.logits"), &[steps, vocab], &all);
    arrays.floats(format!("greedy.{name}.top1_margin"), &[steps], &margins);
    Ok(())
}

/// The id of the largest logit, ties to the lower id, and its lead over the second; `None` for a row that holds NaN or
/// +inf, or nothing finite.
fn top_two(logits: &[f32]) -> Option<(u32, f32)> {
    let (mut best, mut top, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > top {
            (best, second, top) = (id, top, logit);
        } else if logit > second {
            second = logit;
        }
    }
    (top.is_finite() && !logits.iter().any(|logit| logit.is_nan())).then_some((best, top - second))
}

/// The last prefix token is the root; all nodes are computed in one masked pass.
fn write_tree(
    pool: &Pool,
    target: &Target,
    name: &str,
    prefix: &[u32],
    tokens: &[u32],
    parents: &[i64],
    arrays: &mut Arrays,
) -> anyhow::Result<()> {
    let (&root, committed) = prefix.split_last().context("prefix_ids is empty")?;
    let (tree, order) = Tree::from_parents(tokens, parents)?;
    let mut sequence = Sequence::new(pool, target, prefix.len())?;
    sequence.read(committed)?;
    (sequence.recorder, sequence.latents) = (Recorder::default(), Vec::new());
    let masks: Vec<[u64; 2]> = (1..=tree.len()).map(|row| tree.mask(row)).collect();
    let ids: Vec<u32> = std::iter::once(root).chain(tree.nodes().iter().map(|n| n.token)).collect();
    let pass = sequence.pass(&ids, Mask::Tree(&masks))?;

    // Row of each node in the order of the input.
    let mut rows = vec![0; tokens.len()];
    order.iter().enumerate().for_each(|(i, &node)| rows[node] = i + 1);
    let prefix_name = format!("tree.{name}");
    sequence.write(&prefix_name, &rows, false, arrays);
    let logits = target.logits(pool, &pass.hidden.gather(rows.iter().copied()));
    arrays.floats(format!("{prefix_name}.logits"), &[rows.len(), logits.cols()], logits.data());
    let positions: Vec<i64> = rows.iter().map(|&row| (committed.len() + tree.depth(row)) as i64).collect();
    arrays.integers(format!("{prefix_name}.positions"), &positions);
    Ok(())
}
