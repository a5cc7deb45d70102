//! The `noaux_tc` router of DeepSeek-V3 and Kimi K2: sigmoid scores, a correction bias that only the choice sees.

use kd_tensor::{Bf16Matrix, ColumnBlock, Inputs, Matrix, Pool, View, block_width};

/// What decides the choice and its weights, besides the tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterConfig {
    /// Experts a token (`num_experts_per_tok`).
    pub top_k: usize,
    /// Groups that the experts are cut into (`n_group`), 1 for none.
    pub groups: usize,
    /// Groups that a token may choose from (`topk_group`).
    pub top_groups: usize,
    /// Whether the weights of a token are divided by their sum (`norm_topk_prob`).
    pub normalize: bool,
    /// Factor on the weights (`routed_scaling_factor`).
    pub scaling: f32,
}

/// The router of one layer.
#[derive(Debug, Clone)]
pub struct Router {
    /// `[experts, hidden]`.
    pub weight: Bf16Matrix,
    /// `e_score_correction_bias`, `[experts]`.
    pub bias: Vec<f32>,
    /// The rest.
    pub config: RouterConfig,
}

/// The experts of some rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts a row.
    pub top_k: usize,
    /// `[rows, top_k]`, ascending within a row.
    pub ids: Vec<u32>,
    /// `[rows, top_k]`, the weights in the same order.
    pub weights: Vec<f32>,
    /// `[rows, experts]`, the sigmoid scores without bias.
    pub scores: Matrix,
}

impl Router {
    /// Chooses the experts of each row of `x` `[rows, hidden]`.
    ///
    /// `s = sigmoid(W x)` in f32; the top k of `s + bias`, with groups only inside the `top_groups` groups whose two
    /// best sums are highest; ties go to the lower id. Weights are `s` of the chosen, over their sum + 1e-20 if
    /// normalised, times the scaling factor (DeepSeek-V3, arXiv 2412.19437, §2.1.2). A row with a NaN gets finite
    /// ids all the same; its weights are NaN and the row stays NaN.
    pub fn route(&self, pool: &Pool, x: View<'_>) -> Routing {
        let inputs = self.inputs(x);
        let experts = self.weight.rows();
        let mut scores = Matrix::unwritten(x.rows(), experts);
        let block = block_width(pool, experts, x.rows(), self.weight.cols());
        pool.for_each(scores.column_blocks(0..experts, block), |block| self.score(&inputs, block));
        self.choose_all(scores)
    }

    /// Rows `x` as [`Router::choose`] takes them.
    pub(crate) fn inputs<'x>(&self, x: View<'x>) -> Inputs<'x> {
        Inputs::new(&self.weight, &(0..x.rows()).map(|row| x.row(row)).collect::<Vec<_>>())
    }

    /// As [`Router::route`] on the thread that calls it.
    pub(crate) fn choose(&self, x: &Inputs<'_>) -> Routing {
        let mut scores = Matrix::unwritten(x.len(), self.weight.rows());
        let rows = scores.iter_rows_mut().collect();
        self.score(x, ColumnBlock { columns: 0..self.weight.rows(), rows });
        self.choose_all(scores)
    }

    /// Writes sigmoid scores of some experts.
    fn score(&self, x: &Inputs<'_>, mut block: ColumnBlock<'_>) {
        x.multiply(&self.weight, block.columns.start, &mut block.rows);
        let scores = block.rows.iter_mut().flat_map(|row| row.iter_mut());
        scores.for_each(|s| *s = 1.0 / (1.0 + (-*s).exp()));
    }

    /// The experts of every row of scores.
    fn choose_all(&self, scores: Matrix) -> Routing {
        let RouterConfig { top_k, .. } = self.config;
        let mut ids = Vec::with_capacity(scores.rows() * top_k);
        let mut weights = Vec::with_capacity(scores.rows() * top_k);
        let (mut best, mut chosen) = (Vec::with_capacity(top_k), Vec::with_capacity(top_k));
        for row in scores.iter_rows() {
            match self.config.groups {
                ..=1 => top_into(row.iter().zip(&self.bias).map(|(s, b)| s + b), top_k, &mut best),
                _ => top_into(self.choice_scores(row).0.into_iter(), top_k, &mut best),
            }
            chosen.clear();
            chosen.extend(best.iter().map(|&entry| index_of(entry)));
            chosen.sort_unstable();
            let sum: f32 = chosen.iter().map(|&e| row[e]).sum();
            let divisor = if self.config.normalize { sum + 1e-20 } else { 1.0 };
            weights.extend(chosen.iter().map(|&e| row[e] / divisor * self.config.scaling));
            ids.extend(chosen.iter().map(|&e| e as u32));
        }
        Routing { top_k, ids, weights, scores }
    }

    /// How far the choice of one row is from being another: the choice score of rank k minus that of rank k + 1, or with
    /// groups the lead of the last chosen group, if that is smaller. Infinite where there is nothing else to choose.
    pub fn margin(&self, scores: &[f32]) -> f32 {
        let (choice, group_margin) = self.choice_scores(scores);
        group_margin.min(lead(&choice, self.config.top_k))
    }

    /// The scores that decide the choice, -inf outside the allowed groups, and the margin of the choice of groups.
    fn choice_scores(&self, scores: &[f32]) -> (Vec<f32>, f32) {
        let RouterConfig { groups, top_groups, .. } = self.config;
        let mut choice: Vec<f32> = scores.iter().zip(&self.bias).map(|(s, b)| s + b).collect();
        if groups <= 1 {
            return (choice, f32::INFINITY);
        }
        let size = choice.len() / groups;
        let best_two: Vec<f32> = choice
            .chunks_exact(size)
            .map(|group| top(group, 2.min(size)).into_iter().map(|e| group[e]).sum())
            .collect();
        let allowed = top(&best_two, top_groups);
        for (g, group) in choice.chunks_exact_mut(size).enumerate() {
            if !allowed.contains(&g) {
                group.fill(f32::NEG_INFINITY);
            }
        }
        (choice, lead(&best_two, top_groups))
    }
}

/// The `k`-th largest value minus the next one.
fn lead(values: &[f32], k: usize) -> f32 {
    let best = top(values, k + 1);
    if best.len() > k { values[best[k - 1]] - values[best[k]] } else { f32::INFINITY }
}

/// Indices of the `k` largest values, best first; ties to the lower index, NaN below everything.
fn top(values: &[f32], k: usize) -> Vec<usize> {
    let mut best = Vec::with_capacity(k);
    top_into(values.iter().copied(), k, &mut best);
    best.into_iter().map(index_of).collect()
}

/// As [`top`], in place of what `best` held: each as one number that is larger the better it is ([`index_of`]).
fn top_into(values: impl Iterator<Item = f32>, k: usize, best: &mut Vec<u64>) {
    best.clear();
    for (value, index) in values.zip(0u32..) {
        let value = if value.is_nan() { f32::NEG_INFINITY } else { value };
        // The order of the bits is that of `total_cmp` once those of negative numbers are turned over.
        let bits = value.to_bits();
        let ordered = bits ^ (((bits as i32 >> 31) as u32) | 1 << 31);
        let entry = u64::from(ordered) << 32 | u64::from(!index);
        if best.len() < k {
            best.push(entry);
        } else if best.last().is_some_and(|&last| entry > last) {
            best[k - 1] = entry;
        } else {
            continue;
        }
        let mut place = best.len() - 1;
        while place > 0 && best[place - 1] < entry {
            best.swap(place, place - 1);
            place -= 1;
        }
    }
}

/// Whose value the entry is.
fn index_of(entry: u64) -> usize {
    !(entry as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn router(bias: Vec<f32>, config: RouterConfig) -> Router {
        // One input feature; expert e's logit is x times e's weight.
        let weights: Vec<bf16> = (0..bias.len()).map(|e| bf16::from_f32(e as f32 - 3.0)).collect();
        Router { weight: Bf16Matrix::new(bias.len(), 1, weights).unwrap(), bias, config }
    }

    const PLAIN: RouterConfig =
        RouterConfig { top_k: 2, groups: 1, top_groups: 1, normalize: true, scaling: 2.0 };

    fn route(router: &Router, x: f32) -> Routing {
        let x = Matrix::from_vec(1, 1, vec![x]).unwrap();
        router.route(&Pool::single(), x.view())
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let routing = route(&router(vec![0.0; 6], PLAIN), 0.0);
        assert_eq!(routing.ids, [0, 1]);
        assert_eq!(routing.weights, [1.0, 1.0], "equal scores share the scaling factor");
    }

    #[test]
    fn the_bias_moves_the_choice_and_not_the_weights() {
        let mut bias = vec![0.0; 6];
        bias[0] = 10.0;
        let routing = route(&router(bias, PLAIN), 1.0);
        assert_eq!(routing.ids, [0, 5]);
        let s = |z: f32| 1.0 / (1.0 + (-z).exp());
        let sum = s(-3.0) + s(2.0);
        assert_eq!(routing.weights, [s(-3.0) / (sum + 1e-20) * 2.0, s(2.0) / (sum + 1e-20) * 2.0]);
    }

    #[test]
    fn only_the_best_groups_are_chosen_from() {
        // Groups of two: sums of the two best are 0.0+0.9, 0.5+0.5, 0.8+0.0 (on top of equal scores).
        let bias = vec![0.0, 0.9, 0.5, 0.5, 0.8, 0.0];
        let grouped = RouterConfig { groups: 3, top_groups: 1, ..PLAIN };
        assert_eq!(route(&router(bias.clone(), grouped), 0.0).ids, [2, 3]);
        assert_eq!(route(&router(bias, PLAIN), 0.0).ids, [1, 4]);
    }

    /// Fault ddtree.md §5 row 18: a NaN row must not turn into a plausible one.
    #[test]
    fn a_nan_row_keeps_valid_ids_and_nan_weights() {
        let routing = route(&router(vec![0.0; 6], PLAIN), f32::NAN);
        assert_eq!(routing.ids, [0, 1]);
        assert!(routing.weights.iter().all(|w| w.is_nan()));
    }
}
