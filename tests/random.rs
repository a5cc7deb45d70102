//! Random checkpoints in the published formats, from a seed.

use std::path::Path;
use std::sync::Arc;

use half::bf16;
use kd_engine::Models;
use kd_model::{Drafter, Target};
use kd_tensor::safetensors::{SafeTensors, TensorData, write_safetensors};
use safetensors::View;
use serde_json::{Value, json};

use crate::{byte_tokenizer, golden};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, seeded and the same everywhere.
#[derive(Debug, Clone)]
pub struct Numbers(pub u64);

impl Numbers {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.unit()).sum::<f64>() - 6.0) as f32
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// `len` token ids.
    pub fn prompt(&mut self, len: usize, vocab: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab) as u32).collect()
    }

    /// Puts `items` in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Dimensions of a random target; what is not here is the same in all of them.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names of the published keys")]
pub struct TargetShape {
    pub vocab: usize,
    pub layers: usize,
    pub dense: usize,
    pub heads: usize,
    pub q_lora_rank: Option<usize>,
    pub experts: usize,
    pub top_k: usize,
    pub shared: usize,
    pub groups: usize,
    pub top_groups: usize,
    pub normalize: bool,
}

/// Width of the residual stream of every random model.
pub const HIDDEN: usize = 32;
const NOPE: usize = 8;
const ROPE: usize = 8;
const VALUE: usize = 8;
const LATENT: usize = 16;
const DENSE: usize = 64;
const EXPERT: usize = 32;

/// Dimensions of a random drafter.
#[derive(Debug, Clone)]
pub struct DrafterShape {
    /// Rows of a block.
    pub block: usize,
    /// Id that fills the rows to be predicted.
    pub mask: u32,
    /// Target layers that it taps.
    pub taps: Vec<usize>,
    /// Window of every layer.
    pub window: Option<usize>,
    /// Scale of a head of its own. Near 0 every draft row is nearly uniform, so that a tree over a small vocabulary
    /// holds every path of its first depths: the one kind of random drafter whose drafts are accepted.
    pub head: Option<f32>,
}

/// Tensors to be written, by name.
pub type Tensors = Vec<(String, TensorData<'static>)>;

struct Writer {
    numbers: Numbers,
    tensors: Tensors,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self { numbers: Numbers(seed), tensors: Vec::new() }
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize, gain: f32) {
        let scale = gain / (cols as f32).sqrt();
        let values: Vec<bf16> =
            (0..rows * cols).map(|_| bf16::from_f32(self.numbers.normal() * scale)).collect();
        self.tensors.push((format!("{name}.weight"), TensorData::owned(&[rows, cols], &values)));
    }

    fn gains(&mut self, name: &str, len: usize) {
        let values: Vec<bf16> = (0..len).map(|_| bf16::from_f32(1.0 + 0.1 * self.numbers.normal())).collect();
        self.tensors.push((format!("{name}.weight"), TensorData::owned(&[len], &values)));
    }

    fn int4(&mut self, name: &str, rows: usize, cols: usize) {
        let packed: Vec<i32> = (0..rows * cols / 8).map(|_| self.numbers.bits() as i32).collect();
        // Uniform codes have a standard deviation of 4.6.
        let scale =
            |n: &mut Numbers| bf16::from_f32((0.5 + n.unit() as f32) * 1.5 / 4.6 / (cols as f32).sqrt());
        let scales: Vec<bf16> = (0..rows * cols / 32).map(|_| scale(&mut self.numbers)).collect();
        self.tensors.push((format!("{name}.weight_packed"), TensorData::owned(&[rows, cols / 8], &packed)));
        self.tensors.push((format!("{name}.weight_scale"), TensorData::owned(&[rows, cols / 32], &scales)));
        let shape = [rows as i32, cols as i32];
        self.tensors.push((format!("{name}.weight_shape"), TensorData::owned(&[2], &shape)));
    }

    fn mlp(&mut self, name: &str, width: usize) {
        self.matrix(&format!("{name}.gate_proj"), width, HIDDEN, 1.5);
        self.matrix(&format!("{name}.up_proj"), width, HIDDEN, 1.5);
        self.matrix(&format!("{name}.down_proj"), HIDDEN, width, 1.5);
    }
}

/// Writes `config.json` and `model.safetensors` of a random target. `edit` may change the tensors first.
///
/// # Panics
/// If the files cannot be written.
pub fn write_target(dir: &Path, shape: &TargetShape, seed: u64, edit: impl FnOnce(&mut Tensors)) {
    let mut config = crate::json(&golden("base/checkpoint/config.json"));
    let last = shape.vocab - 1;
    for (key, id) in [("bos_token_id", 0), ("eos_token_id", last), ("pad_token_id", last)] {
        config[key] = json!(id);
        config["text_config"][key] = json!(id);
    }
    let keys = json!({
        "hidden_size": HIDDEN, "num_hidden_layers": shape.layers, "first_k_dense_replace": shape.dense,
        "intermediate_size": DENSE, "moe_intermediate_size": EXPERT, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads, "q_lora_rank": shape.q_lora_rank, "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "vocab_size": shape.vocab,
        "n_routed_experts": shape.experts, "num_experts_per_tok": shape.top_k, "n_shared_experts": shape.shared,
        "n_group": shape.groups, "topk_group": shape.top_groups, "norm_topk_prob": shape.normalize,
    });
    merge(&mut config["text_config"], keys);

    let mut w = Writer::new(seed);
    let top = "language_model.model";
    w.matrix(&format!("{top}.embed_tokens"), shape.vocab, HIDDEN, 0.5 * (HIDDEN as f32).sqrt());
    w.matrix("language_model.lm_head", shape.vocab, HIDDEN, 2.0);
    w.gains(&format!("{top}.norm"), HIDDEN);
    for layer in 0..shape.layers {
        target_layer(&mut w, shape, layer, &format!("{top}.layers.{layer}"));
    }
    edit(&mut w.tensors);
    write(dir, &config, w.tensors);
}

fn target_layer(w: &mut Writer, shape: &TargetShape, layer: usize, name: &str) {
    w.gains(&format!("{name}.input_layernorm"), HIDDEN);
    w.gains(&format!("{name}.post_attention_layernorm"), HIDDEN);
    let attention = format!("{name}.self_attn");
    let queries = shape.heads * (NOPE + ROPE);
    match shape.q_lora_rank {
        None => w.matrix(&format!("{attention}.q_proj"), queries, HIDDEN, 2.0),
        Some(rank) => {
            w.matrix(&format!("{attention}.q_a_proj"), rank, HIDDEN, 1.0);
            w.gains(&format!("{attention}.q_a_layernorm"), rank);
            w.matrix(&format!("{attention}.q_b_proj"), queries, rank, 2.0);
        }
    }
    w.matrix(&format!("{attention}.kv_a_proj_with_mqa"), LATENT + ROPE, HIDDEN, 1.0);
    w.gains(&format!("{attention}.kv_a_layernorm"), LATENT);
    w.matrix(&format!("{attention}.kv_b_proj"), shape.heads * (NOPE + VALUE), LATENT, 2.0);
    w.matrix(&format!("{attention}.o_proj"), HIDDEN, shape.heads * VALUE, 3.0);
    let mlp = format!("{name}.mlp");
    if layer < shape.dense {
        w.mlp(&mlp, DENSE);
        return;
    }
    w.matrix(&format!("{mlp}.gate"), shape.experts, HIDDEN, 1.0);
    let bias: Vec<f32> = (0..shape.experts).map(|_| 0.1 * w.numbers.normal()).collect();
    w.tensors.push((format!("{mlp}.gate.e_score_correction_bias"), TensorData::owned(&[bias.len()], &bias)));
    for expert in 0..shape.experts {
        let expert = format!("{mlp}.experts.{expert}");
        w.int4(&format!("{expert}.gate_proj"), EXPERT, HIDDEN);
        w.int4(&format!("{expert}.up_proj"), EXPERT, HIDDEN);
        w.int4(&format!("{expert}.down_proj"), HIDDEN, EXPERT);
    }
    w.mlp(&format!("{mlp}.shared_experts"), shape.shared * EXPERT);
}

/// Writes `config.json` and `model.safetensors` of a random drafter for a random target.
///
/// # Panics
/// If the files cannot be written.
pub fn write_drafter(dir: &Path, target: &TargetShape, shape: &DrafterShape, seed: u64) {
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const DIM: usize = 8;
    const WIDTH: usize = 48;
    let mut config = crate::json(&golden("drafter/full/checkpoint/config.json"));
    let kind = if shape.window.is_some() { "sliding_attention" } else { "full_attention" };
    let last = target.vocab - 1;
    merge(
        &mut config,
        json!({
            "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": DIM, "vocab_size": target.vocab, "block_size": shape.block,
            "num_target_layers": target.layers, "layer_types": [kind, kind], "sliding_window": shape.window,
            "use_sliding_window": shape.window.is_some(), "bos_token_id": 0, "eos_token_id": last, "pad_token_id": last,
            "dflash_config": { "mask_token_id": shape.mask, "target_layer_ids": shape.taps },
        }),
    );
    let mut w = Writer::new(seed);
    w.matrix("fc", HIDDEN, HIDDEN * shape.taps.len(), 1.0);
    w.gains("hidden_norm", HIDDEN);
    w.gains("norm", HIDDEN);
    for layer in 0..2 {
        let name = format!("layers.{layer}");
        w.gains(&format!("{name}.input_layernorm"), HIDDEN);
        w.gains(&format!("{name}.post_attention_layernorm"), HIDDEN);
        let attention = format!("{name}.self_attn");
        w.matrix(&format!("{attention}.q_proj"), HEADS * DIM, HIDDEN, 1.5);
        w.matrix(&format!("{attention}.k_proj"), KV_HEADS * DIM, HIDDEN, 1.5);
        w.matrix(&format!("{attention}.v_proj"), KV_HEADS * DIM, HIDDEN, 1.5);
        w.matrix(&format!("{attention}.o_proj"), HIDDEN, HEADS * DIM, 1.5);
        w.gains(&format!("{attention}.q_norm"), DIM);
        w.gains(&format!("{attention}.k_norm"), DIM);
        let mlp = format!("{name}.mlp");
        w.matrix(&format!("{mlp}.gate_proj"), WIDTH, HIDDEN, 1.5);
        w.matrix(&format!("{mlp}.up_proj"), WIDTH, HIDDEN, 1.5);
        w.matrix(&format!("{mlp}.down_proj"), HIDDEN, WIDTH, 1.5);
    }
    if let Some(gain) = shape.head {
        w.matrix("lm_head", target.vocab, HIDDEN, gain);
    }
    write(dir, &config, w.tensors);
}

fn merge(into: &mut Value, keys: Value) {
    let keys = keys.as_object().expect("an object");
    keys.iter().for_each(|(key, value)| into[key] = value.clone());
}

fn write(dir: &Path, config: &Value, tensors: Tensors) {
    std::fs::create_dir_all(dir).expect("a folder");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("config.json");
    write_safetensors(dir.join("model.safetensors"), tensors).expect("model.safetensors");
}

/// Changes the values of one bf16 tensor.
///
/// # Panics
/// If there is no such tensor.
pub fn edit_bf16(tensors: &mut Tensors, name: &str, edit: impl FnOnce(&mut [bf16])) {
    let slot = tensors.iter_mut().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no tensor {name}"));
    let (shape, bytes) = (View::shape(&&slot.1).to_vec(), View::data(&&slot.1).into_owned());
    let mut values: Vec<bf16> = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
    edit(&mut values);
    slot.1 = TensorData::owned(&shape, &values);
}

/// A drafter with the configuration of the one in `dir` and its matrices in disorder: it knows nothing.
///
/// # Panics
/// If `dir` holds no drafter of bf16 matrices.
pub fn scrambled_drafter(dir: &Path, seed: u64) -> Drafter {
    let file = SafeTensors::open(dir.join("model.safetensors")).expect("weights");
    let mut numbers = Numbers(seed);
    let tensors: Tensors = file
        .iter()
        .map(|view| {
            let mut values = file.storage::<bf16>(view.name).expect("bf16").to_vec();
            if view.shape.len() > 1 {
                numbers.shuffle(&mut values);
            }
            (view.name.to_owned(), TensorData::owned(view.shape, &values))
        })
        .collect();
    let scrambled = tempfile::tempdir().expect("a folder");
    write(scrambled.path(), &crate::json(&dir.join("config.json")), tensors);
    Drafter::load(scrambled.path()).expect("a drafter")
}

/// A random pair with a tokenizer for its first 512 ids. `edit` may change the target's tensors.
///
/// # Panics
/// If the pair cannot be written or loaded.
pub fn pair(
    target: &TargetShape,
    drafter: &DrafterShape,
    seed: u64,
    edit: impl FnOnce(&mut Tensors),
) -> Models {
    // Mapped files outlive their names.
    let dir = tempfile::tempdir().expect("a folder");
    let (to_target, to_drafter) = (dir.path().join("target"), dir.path().join("drafter"));
    write_target(&to_target, target, seed, edit);
    write_drafter(&to_drafter, target, drafter, seed ^ 0x5eed);
    Models {
        target: Arc::new(Target::load(&to_target).expect("a random target")),
        drafter: Some(Arc::new(Drafter::load(&to_drafter).expect("a random drafter"))),
        tokenizer: Some(byte_tokenizer()),
    }
}
