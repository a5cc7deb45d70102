//! `kd golden drafter`.

use std::path::Path;

use anyhow::{Context, ensure};
use kd_attn::{BlockSegment, PageId, PagedCache};
use kd_model::{Drafter, Lent};
use kd_tensor::safetensors::SafeTensors;
use kd_tensor::{Bf16Matrix, Matrix, Pool};

use super::record::{Arrays, names, token_ids};

pub(crate) fn run(pool: &Pool, drafter: &Drafter, inputs: &SafeTensors, out: &Path) -> anyhow::Result<()> {
    let taps = taps(drafter, inputs)?;
    let embed = lent(inputs, "target.embed_tokens.weight")?;
    let head = lent(inputs, "target.lm_head.weight")?;
    let lent = Lent { embed: embed.as_ref(), head: head.as_ref() };
    let (needs_embed, needs_head) = drafter.borrows();
    for (needed, given, name) in [(needs_embed, &embed, "embed_tokens"), (needs_head, &head, "lm_head")] {
        if let (true, Some(given)) = (needed, given) {
            let (found, wanted) = (given.cols(), drafter.config().hidden_size);
            ensure!(found == wanted, "target.{name}.weight is {found} wide, the drafter {wanted}");
        }
        ensure!(!needed || given.is_some(), "the drafter has no {name} and the inputs lend none");
    }

    // The whole context at once; a round sees the rows before its start.
    let pages = PagedCache::pages_for(taps.rows());
    let table: Vec<PageId> = (0..pages as u32).map(PageId).collect();
    let mut cache = drafter.try_new_cache(pages)?;
    let context = drafter.context(pool, &taps, 0..taps.rows());
    let all: Vec<usize> = (0..taps.rows()).collect();
    cache.commit(&context, &all, &table, 0);

    let mut arrays = Arrays::default();
    for round in names(inputs, "round") {
        let start = inputs.integers(&format!("round.{round}.start"))?;
        let start = start.first().and_then(|&s| usize::try_from(s).ok()).context("start is no count")?;
        ensure!(start <= taps.rows(), "round {round} starts at {start}, but there are {} taps", taps.rows());
        let bonus = token_ids(inputs, &format!("round.{round}.bonus"))?;
        ensure!(bonus.len() == 1, "round {round} needs one bonus token, found {}", bonus.len());
        let segment = BlockSegment { pages: &table, start };
        let draft = drafter.draft(pool, lent, &bonus, &[segment], &cache)?;

        let prefix = format!("round.{round}");
        let rows = draft.logits.rows();
        arrays.floats(format!("{prefix}.logits"), &[rows, draft.logits.cols()], draft.logits.data());
        let best = draft.logits.iter_rows().map(|row| Ok(i64::from(drafter.target_id(argmax(row)?))));
        let best: Vec<i64> = best.collect::<anyhow::Result<_>>().with_context(|| format!("round {round}"))?;
        arrays.integers(format!("{prefix}.argmax_ids"), &best);
        let (block, width) = (draft.final_norm.rows(), draft.final_norm.cols());
        let hidden: Vec<f32> = draft.hidden.iter().flat_map(|m| m.data().iter().copied()).collect();
        arrays.floats(format!("{prefix}.hidden"), &[draft.hidden.len(), block, width], &hidden);
        arrays.floats(format!("{prefix}.final_norm"), &[block, width], draft.final_norm.data());

        let (heads, dim) = (drafter.config().num_key_value_heads, drafter.config().head_dim);
        let shape = [context.len(), start, heads, dim];
        let half = |from: usize| -> Vec<f32> {
            let columns = from..from + heads * dim;
            context.iter().flat_map(|m| (0..start).flat_map(|t| m.row(t)[columns.clone()].to_vec())).collect()
        };
        arrays.floats(format!("{prefix}.ctx_k"), &shape, &half(0));
        arrays.floats(format!("{prefix}.ctx_v"), &shape, &half(heads * dim));
    }
    arrays.write(inputs, out)
}

fn taps(drafter: &Drafter, inputs: &SafeTensors) -> anyhow::Result<Matrix> {
    let view = inputs.tensor("taps")?;
    let &[rows, cols] = view.shape else {
        anyhow::bail!("taps has shape {:?}, expected [tokens, taps * hidden]", view.shape)
    };
    let wanted = drafter.config().tap_width();
    ensure!(cols == wanted, "taps is {cols} wide, the drafter's fc takes {wanted}");
    Ok(Matrix::from_vec(rows, cols, inputs.storage::<f32>("taps")?.to_vec())?)
}

fn lent(inputs: &SafeTensors, name: &str) -> anyhow::Result<Option<Bf16Matrix>> {
    if !inputs.contains(name) {
        return Ok(None);
    }
    let view = inputs.tensor(name)?;
    let &[rows, cols] = view.shape else {
        anyhow::bail!("{name} has shape {:?}, expected [vocab, hidden]", view.shape)
    };
    Ok(Some(Bf16Matrix::new(rows, cols, inputs.storage(name)?)?))
}

/// The id of the largest logit, ties to the lower id; an error for a row that holds NaN or +inf, or nothing finite.
fn argmax(logits: &[f32]) -> anyhow::Result<u32> {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    let usable = logits.get(best).is_some_and(|top| top.is_finite()) && !logits.iter().any(|x| x.is_nan());
    ensure!(usable, "a row of logits has no finite maximum");
    Ok(best as u32)
}
