//! Every tensor that a target's configuration calls for, and how tensor-parallel ranks share it.
//!
//! Nothing here is loaded: this is what a checkpoint is compared with, and what memory is computed from.

use kd_tensor::DType;

use crate::config::{GROUP_SIZE, TargetConfig};
use crate::share::{Dimension, Share};

/// What a tensor is cut along when several ranks hold a model together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Nothing: every rank holds all of it.
    Whole,
    /// The vocabulary.
    Vocabulary,
    /// Attention heads.
    Heads,
    /// The inner width of a dense MLP.
    DenseWidth,
    /// The inner width of the shared experts, stored as one MLP.
    SharedWidth,
    /// The inner width of routed experts, in whole INT4 groups.
    ExpertWidth,
}

/// One tensor as the configuration calls for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its full name.
    pub name: String,
    /// Element types that are accepted; the first is the published one.
    pub dtypes: &'static [DType],
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How ranks share it.
    pub split: Split,
}

const BF16: &[DType] = &[DType::BF16];
const F32: &[DType] = &[DType::F32];
const I32: &[DType] = &[DType::I32];
/// compressed-tensors itself writes `weight_shape` as I64, Moonshot as I32.
const INTEGER: &[DType] = &[DType::I32, DType::I64];

impl TargetConfig {
    /// The tensors of a checkpoint whose names begin with `prefix`
    /// ([`Checkpoint::target_prefix`](crate::checkpoint::Checkpoint::target_prefix)).
    pub fn tensors(&self, prefix: &str) -> Vec<TensorSpec> {
        let mut list = List { config: self, tensors: Vec::new() };
        let (vocab, width) = (self.vocab_size, self.hidden_size);
        list.matrix(format!("{prefix}model.embed_tokens"), vocab, width, Split::Vocabulary);
        list.matrix(format!("{prefix}lm_head"), vocab, width, Split::Vocabulary);
        list.gains(format!("{prefix}model.norm"), width);
        for layer in 0..self.num_hidden_layers {
            let name = format!("{prefix}model.layers.{layer}");
            list.gains(format!("{name}.input_layernorm"), width);
            list.gains(format!("{name}.post_attention_layernorm"), width);
            list.attention(&format!("{name}.self_attn"));
            if self.is_moe(layer) {
                list.moe(&format!("{name}.mlp"));
            } else {
                list.mlp(&format!("{name}.mlp"), self.intermediate_size, Split::DenseWidth);
            }
        }
        list.tensors
    }

    /// The number of [`TargetConfig::tensors`], without making them: a hostile configuration may call for billions.
    pub fn tensor_count(&self) -> usize {
        let moe = (0..self.num_hidden_layers).filter(|&layer| self.is_moe(layer)).count();
        let dense = self.num_hidden_layers - moe;
        // Norms and attention; router, its bias and the shared expert; nine for every routed expert.
        let attention = 2 + if self.q_lora_rank.is_some() { 7 } else { 5 };
        3 + self.num_hidden_layers * attention + dense * 3 + moe * (5 + 9 * self.n_routed_experts)
    }

    /// Why `ranks` ranks cannot share this model, or nothing.
    pub fn refuses_ranks(&self, ranks: usize) -> Vec<String> {
        let splits =
            [Split::Heads, Split::Vocabulary, Split::DenseWidth, Split::SharedWidth, Split::ExpertWidth];
        let cuts = splits.map(|split| self.dimension(split).cut(Share { rank: 0, ranks }));
        cuts.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect()
    }

    /// What a split divides. Nothing has parts along no dimension, so [`Split::Whole`] is one thing.
    pub(crate) fn dimension(&self, split: Split) -> Dimension {
        let shared = self.n_shared_experts * self.moe_intermediate_size;
        match split {
            Split::Whole => Dimension::new("the whole", 1),
            Split::Vocabulary => Dimension::new("vocab_size", self.vocab_size),
            Split::Heads => Dimension::new("num_attention_heads", self.num_attention_heads),
            Split::DenseWidth => Dimension::new("intermediate_size", self.intermediate_size),
            Split::SharedWidth => Dimension::new("width of the shared experts", shared),
            Split::ExpertWidth => {
                let width = Dimension::new("moe_intermediate_size", self.moe_intermediate_size);
                Dimension { unit: GROUP_SIZE, ..width }
            }
        }
    }
}

impl TensorSpec {
    /// Bytes that one of `ranks` ranks holds.
    pub fn bytes_per_rank(&self, ranks: usize) -> u64 {
        let size = self.dtypes[0].byte_len(&self.shape).unwrap_or(usize::MAX) as u64;
        if self.split == Split::Whole { size } else { size.div_ceil(ranks.max(1) as u64) }
    }
}

struct List<'a> {
    config: &'a TargetConfig,
    tensors: Vec<TensorSpec>,
}

impl List<'_> {
    fn push(&mut self, name: String, dtypes: &'static [DType], shape: &[usize], split: Split) {
        self.tensors.push(TensorSpec { name, dtypes, shape: shape.to_vec(), split });
    }

    fn matrix(&mut self, module: String, rows: usize, cols: usize, split: Split) {
        self.push(format!("{module}.weight"), BF16, &[rows, cols], split);
    }

    fn gains(&mut self, module: String, len: usize) {
        self.push(format!("{module}.weight"), BF16, &[len], Split::Whole);
    }

    fn attention(&mut self, name: &str) {
        let c = self.config;
        let (width, heads) = (c.hidden_size, c.num_attention_heads);
        let query_rows = heads * c.qk_head_dim();
        match c.q_lora_rank {
            None => self.matrix(format!("{name}.q_proj"), query_rows, width, Split::Heads),
            Some(rank) => {
                self.matrix(format!("{name}.q_a_proj"), rank, width, Split::Whole);
                self.gains(format!("{name}.q_a_layernorm"), rank);
                self.matrix(format!("{name}.q_b_proj"), query_rows, rank, Split::Heads);
            }
        }
        self.matrix(format!("{name}.kv_a_proj_with_mqa"), c.cache_width(), width, Split::Whole);
        self.gains(format!("{name}.kv_a_layernorm"), c.kv_lora_rank);
        let rows = heads * (c.qk_nope_head_dim + c.v_head_dim);
        self.matrix(format!("{name}.kv_b_proj"), rows, c.kv_lora_rank, Split::Heads);
        self.matrix(format!("{name}.o_proj"), width, heads * c.v_head_dim, Split::Heads);
    }

    fn mlp(&mut self, name: &str, inner: usize, split: Split) {
        let width = self.config.hidden_size;
        self.matrix(format!("{name}.gate_proj"), inner, width, split);
        self.matrix(format!("{name}.up_proj"), inner, width, split);
        self.matrix(format!("{name}.down_proj"), width, inner, split);
    }

    fn moe(&mut self, name: &str) {
        let c = self.config;
        let (width, inner, experts) = (c.hidden_size, c.moe_intermediate_size, c.n_routed_experts);
        self.matrix(format!("{name}.gate"), experts, width, Split::Whole);
        self.push(format!("{name}.gate.e_score_correction_bias"), F32, &[experts], Split::Whole);
        self.mlp(&format!("{name}.shared_experts"), c.n_shared_experts * inner, Split::SharedWidth);
        for expert in 0..experts {
            for (which, rows, cols) in
                [("gate_proj", inner, width), ("up_proj", inner, width), ("down_proj", width, inner)]
            {
                let module = format!("{name}.experts.{expert}.{which}");
                self.push(format!("{module}.weight_packed"), I32, &[rows, cols / 8], Split::ExpertWidth);
                let groups = cols / GROUP_SIZE;
                self.push(format!("{module}.weight_scale"), BF16, &[rows, groups], Split::ExpertWidth);
                self.push(format!("{module}.weight_shape"), INTEGER, &[2], Split::Whole);
            }
        }
    }
}
