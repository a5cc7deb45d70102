//! `kd golden model`.

use std::path::Path;

use anyhow::{Context, ensure};
use kd_attn::{Mask, PageId, PagedCache, Segment};
use kd_ddtree::{MAX_NODES, Tree};
use kd_tensor::safetensors::SafeTensors;

use super::record::{Arrays, Recorder, Rows, names, token_ids};
use super::runner::{Output, Runner};

/// Rows of one prefill pass: smaller than most cases, so that chunks and pages are crossed.
const CHUNK: usize = 48;
/// The case of which only the last rows are kept, and how many.
const LONG: (&str, usize) = ("long", 16);

pub(super) fn run(mut runner: Runner<'_>, inputs: &SafeTensors, out: &Path) -> anyhow::Result<()> {
    let mut arrays = Arrays::default();
    for case in names(inputs, "case") {
        let ids = token_ids(inputs, &format!("case.{case}.input_ids"))?;
        write_case(&mut runner, &case, &ids, &mut arrays).with_context(|| format!("case {case}"))?;
    }
    for name in names(inputs, "greedy") {
        let prompt = token_ids(inputs, &format!("greedy.{name}.prompt_ids"))?;
        let steps = inputs.integers(&format!("greedy.{name}.steps"))?;
        let steps = steps.first().and_then(|&n| usize::try_from(n).ok()).context("steps is no count")?;
        write_greedy(&mut runner, &name, &prompt, steps, &mut arrays)
            .with_context(|| format!("greedy {name}"))?;
    }
    for name in names(inputs, "tree") {
        let prefix = token_ids(inputs, &format!("tree.{name}.prefix_ids"))?;
        let tokens = token_ids(inputs, &format!("tree.{name}.tokens"))?;
        let parents = inputs.integers(&format!("tree.{name}.parents"))?;
        write_tree(&mut runner, &name, &prefix, &tokens, &parents, &mut arrays)
            .with_context(|| format!("tree {name}"))?;
    }
    arrays.write(inputs, out)
}

/// One sequence, read and continued pass by pass.
struct Sequence<'r, 'a> {
    runner: &'r mut Runner<'a>,
    table: Vec<PageId>,
    committed: usize,
    recorder: Recorder,
    latents: Vec<Rows>,
    normed: Rows,
    logits: Rows,
}

impl<'r, 'a> Sequence<'r, 'a> {
    fn new(runner: &'r mut Runner<'a>, tokens: usize) -> anyhow::Result<Self> {
        let pages = PagedCache::pages_for(tokens);
        runner.begin(pages, CHUNK.max(1 + MAX_NODES))?;
        Ok(Self {
            runner,
            table: (0..pages as u32).map(PageId).collect(),
            committed: 0,
            recorder: Recorder::default(),
            latents: Vec::new(),
            normed: Rows::default(),
            logits: Rows::default(),
        })
    }

    fn pass(&mut self, tokens: &[u32], mask: Mask<'_>) -> anyhow::Result<Output> {
        let segment = Segment { pages: &self.table, committed: self.committed, rows: tokens.len(), mask };
        let output = self.runner.pass(tokens, segment, &mut self.recorder)?;
        self.latents.resize_with(output.latents.len(), Rows::default);
        self.latents.iter_mut().zip(&output.latents).for_each(|(all, new)| all.extend(new));
        self.normed.extend(&output.normed);
        self.logits.extend(&output.logits);
        Ok(output)
    }

    /// Reads and commits tokens; the last row of logits is returned.
    fn read(&mut self, tokens: &[u32]) -> anyhow::Result<Option<Vec<f32>>> {
        let mut last = None;
        for chunk in tokens.chunks(CHUNK) {
            let output = self.pass(chunk, Mask::Causal)?;
            self.runner.commit(&output, &self.table, self.committed)?;
            self.committed += chunk.len();
            last = Some(output.logits.row(chunk.len() - 1).to_vec());
        }
        Ok(last)
    }

    /// Forgets what was recorded.
    fn forget(&mut self) {
        (self.recorder, self.latents) = (Recorder::default(), Vec::new());
        (self.normed, self.logits) = (Rows::default(), Rows::default());
    }

    /// Everything recorded for the named rows, except what the head takes and gives.
    fn write(&self, prefix: &str, rows: &[usize], scores: bool, arrays: &mut Arrays) {
        let pick = |from: &Rows, columns: std::ops::Range<usize>| -> Vec<f32> {
            rows.iter().flat_map(|&row| from.row(row)[columns.clone()].iter().copied()).collect()
        };
        let stack = |all: &[Rows], columns: std::ops::Range<usize>| -> Vec<f32> {
            all.iter().flat_map(|one| pick(one, columns.clone())).collect()
        };
        let config = self.runner.target().config();
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
            let router = self.runner.target().router(layer.layer).expect("the layer was routed");
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

    fn write_rows(&self, name: String, from: &Rows, rows: &[usize], arrays: &mut Arrays) {
        let values: Vec<f32> = rows.iter().flat_map(|&row| from.row(row).iter().copied()).collect();
        arrays.floats(name, &[rows.len(), from.width], &values);
    }
}

fn write_case(runner: &mut Runner<'_>, name: &str, ids: &[u32], arrays: &mut Arrays) -> anyhow::Result<()> {
    ensure!(!ids.is_empty(), "input_ids is empty");
    let mut sequence = Sequence::new(runner, ids.len())?;
    sequence.read(ids)?;
    let long = name == LONG.0;
    let first = if long { ids.len().saturating_sub(LONG.1) } else { 0 };
    let rows: Vec<usize> = (first..ids.len()).collect();
    let prefix = format!("case.{name}");
    sequence.write(&prefix, &rows, !long, arrays);
    sequence.write_rows(format!("{prefix}.logits"), &sequence.logits, &rows, arrays);
    sequence.write_rows(format!("{prefix}.final_norm"), &sequence.normed, &rows, arrays);
    Ok(())
}

fn write_greedy(
    runner: &mut Runner<'_>,
    name: &str,
    prompt: &[u32],
    steps: usize,
    arrays: &mut Arrays,
) -> anyhow::Result<()> {
    let longest = prompt.len().checked_add(steps).context("steps is too large")?;
    let config = runner.target().config();
    let (limit, vocab) = (config.max_position_embeddings, config.vocab_size);
    ensure!(longest <= limit, "prompt and {steps} steps are longer than the context of {limit}");
    let mut sequence = Sequence::new(runner, longest)?;
    let mut logits = sequence.read(prompt)?.context("prompt_ids is empty")?;
    let (mut output, mut all, mut margins) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..steps {
        let (best, margin) = top_two(&logits).with_context(|| format!("step {step}: no finite maximum"))?;
        output.push(i64::from(best));
        margins.push(margin);
        all.extend_from_slice(&logits);
        if step + 1 < steps {
            logits = sequence.read(&[best])?.context("a token was read")?;
        }
    }
    arrays.integers(format!("greedy.{name}.output_ids"), &output);
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
    runner: &mut Runner<'_>,
    name: &str,
    prefix: &[u32],
    tokens: &[u32],
    parents: &[i64],
    arrays: &mut Arrays,
) -> anyhow::Result<()> {
    let (&root, committed) = prefix.split_last().context("prefix_ids is empty")?;
    let (tree, order) = Tree::from_parents(tokens, parents)?;
    let mut sequence = Sequence::new(runner, prefix.len())?;
    sequence.read(committed)?;
    sequence.forget();
    let masks: Vec<[u64; 2]> = (1..=tree.len()).map(|row| tree.mask(row)).collect();
    let ids: Vec<u32> = std::iter::once(root).chain(tree.nodes().iter().map(|n| n.token)).collect();
    sequence.pass(&ids, Mask::Tree(&masks))?;

    // Row of each node in the order of the input.
    let mut rows = vec![0; tokens.len()];
    order.iter().enumerate().for_each(|(i, &node)| rows[node] = i + 1);
    let prefix_name = format!("tree.{name}");
    sequence.write(&prefix_name, &rows, false, arrays);
    sequence.write_rows(format!("{prefix_name}.logits"), &sequence.logits, &rows, arrays);
    let positions: Vec<i64> = rows.iter().map(|&row| (committed.len() + tree.depth(row)) as i64).collect();
    arrays.integers(format!("{prefix_name}.positions"), &positions);
    Ok(())
}
