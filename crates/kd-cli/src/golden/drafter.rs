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
    let [embed, head] = borrowed(drafter, inputs)?;
    let lent = Lent { embed: embed.as_ref(), head: head.as_ref() };

    // The whole context at once; a round sees the rows before its start.
    let pages = PagedCache::pages_for(taps.rows());
    let table: Vec<PageId> = (0..pages as u32).map(PageId).collect();
    let mut cache = drafter.try_new_cache(pages)?;
    let context = drafter.context(pool, &taps, 0..taps.rows());
    let all: Vec<usize> = (0..taps.rows()).collect();
    cache.commit(&context, &all, &table, 0);

    let mut arrays = Arrays::default();
    for Round { name: round, start, bonus } in rounds(inputs, taps.rows())? {
        let segment = BlockSegment { pages: &table, start };
        let draft = drafter.draft(pool, lent, &[bonus], &[segment], &cache)?;

        let prefix = format!("round.{round}");
        logits(&mut arrays, drafter, &round, &draft.logits)?;
        let (block, width) = (draft.final_norm.rows(), draft.final_norm.cols());
        let hidden: Vec<f32> = draft.hidden.iter().flat_map(|m| m.data().iter().copied()).collect();
        arrays.floats(format!("{prefix}.hidden"), &[draft.hidden.len(), block, width], &hidden);
        arrays.floats(format!("{prefix}.final_norm"), &[block, width], draft.final_norm.data());

        keys_and_values(&mut arrays, drafter, &round, start, &context);
    }
    arrays.write(inputs, out)
}

/// One round of the inputs.
pub(super) struct Round {
    pub(super) name: String,
    /// Committed tokens.
    pub(super) start: usize,
    /// The newest token.
    pub(super) bonus: u32,
}

/// The rounds of the inputs, which have the taps of `tokens` tokens.
pub(super) fn rounds(inputs: &SafeTensors, tokens: usize) -> anyhow::Result<Vec<Round>> {
    let round = |name: String| {
        let start = inputs.integers(&format!("round.{name}.start"))?;
        let start = start.first().and_then(|&s| usize::try_from(s).ok()).context("start is no count")?;
        ensure!(start <= tokens, "round {name} starts at {start}, but there are {tokens} taps");
        let bonus = token_ids(inputs, &format!("round.{name}.bonus"))?;
        let &[bonus] = &bonus[..] else {
            anyhow::bail!("round {name} needs one bonus token, found {}", bonus.len())
        };
        Ok(Round { name, start, bonus })
    };
    names(inputs, "round").into_iter().map(round).collect()
}

/// Writes logits and best tokens of a round.
pub(super) fn logits(
    arrays: &mut Arrays,
    drafter: &Drafter,
    round: &str,
    logits: &Matrix,
) -> anyhow::Result<()> {
    arrays.floats(format!("round.{round}.logits"), &[logits.rows(), logits.cols()], logits.data());
    let best = logits.iter_rows().map(|row| Ok(i64::from(drafter.target_id(argmax(row)?))));
    let best: Vec<i64> = best.collect::<anyhow::Result<_>>().with_context(|| format!("round {round}"))?;
    arrays.integers(format!("round.{round}.argmax_ids"), &best);
    Ok(())
}

/// Writes the first `start` rows of `context`, a matrix `[tokens, 2 · kv_heads · head_dim]` a layer, keys first.
pub(super) fn keys_and_values(
    arrays: &mut Arrays,
    drafter: &Drafter,
    round: &str,
    start: usize,
    context: &[Matrix],
) {
    let (heads, dim) = (drafter.config().num_key_value_heads, drafter.config().head_dim);
    let shape = [context.len(), start, heads, dim];
    let half = |from: usize| -> Vec<f32> {
        let columns = from..from + heads * dim;
        context.iter().flat_map(|m| (0..start).flat_map(|t| m.row(t)[columns.clone()].to_vec())).collect()
    };
    arrays.floats(format!("round.{round}.ctx_k"), &shape, &half(0));
    arrays.floats(format!("round.{round}.ctx_v"), &shape, &half(heads * dim));
}

/// The target's embedding and head, where the inputs lend them; an error if the drafter needs one that they do not.
pub(super) fn borrowed(drafter: &Drafter, inputs: &SafeTensors) -> anyhow::Result<[Option<Bf16Matrix>; 2]> {
    let (needs_embed, needs_head) = drafter.borrows();
    let one = |name: &str, needed: bool| {
        let given = lent(inputs, &format!("target.{name}.weight"))?;
        if let (true, Some(given)) = (needed, &given) {
            let (found, wanted) = (given.cols(), drafter.config().hidden_size);
            ensure!(found == wanted, "target.{name}.weight is {found} wide, the drafter {wanted}");
        }
        ensure!(!needed || given.is_some(), "the drafter has no {name} and the inputs lend none");
        Ok(given)
    };
    Ok([one("embed_tokens", needs_embed)?, one("lm_head", needs_head)?])
}

pub(super) fn taps(drafter: &Drafter, inputs: &SafeTensors) -> anyhow::Result<Matrix> {
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
