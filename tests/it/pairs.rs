//! Random pairs that several tests share, and random requests for them.

use std::sync::OnceLock;

use kd_engine::{Models, Request, SamplingParams, Speculation};
use kd_tests::random::{DrafterShape, Numbers, TargetShape, pair};

/// Budgets around every boundary: of the block (L = 7 drafted rows), of a mask word and of the largest tree.
pub(crate) const BUDGETS: [usize; 11] = [0, 1, 2, 6, 7, 8, 63, 64, 65, 127, 128];
/// Greedy, and twice with noise.
pub(crate) const TEMPERATURES: [f64; 3] = [0.0, 0.7, 1.3];
/// The vocabulary of [`narrow`].
pub(crate) const NARROW: usize = 5;
/// The vocabulary of [`wide`].
pub(crate) const WIDE: usize = 512;

pub(crate) fn narrow_shape() -> (TargetShape, DrafterShape) {
    let target = TargetShape {
        vocab: NARROW,
        layers: 2,
        dense: 1,
        heads: 2,
        q_lora_rank: Some(16),
        experts: 8,
        top_k: 2,
        shared: 1,
        groups: 1,
        top_groups: 1,
        normalize: true,
    };
    let drafter = DrafterShape { block: 8, mask: 1, taps: vec![0, 1], window: None, head: Some(0.02) };
    (target, drafter)
}

pub(crate) fn wide_shape() -> (TargetShape, DrafterShape) {
    let target = TargetShape {
        vocab: WIDE,
        layers: 3,
        dense: 1,
        heads: 3,
        q_lora_rank: None,
        experts: 16,
        top_k: 4,
        shared: 2,
        groups: 4,
        top_groups: 2,
        normalize: false,
    };
    let drafter = DrafterShape { block: 8, mask: 300, taps: vec![2, 0], window: Some(16), head: None };
    (target, drafter)
}

/// Five tokens and a nearly uniform drafter: trees hold every short path, so that drafts are accepted, equal tokens
/// stand under different parents, and the mask id is an ordinary token. Every token is one character of text.
pub(crate) fn narrow() -> Models {
    static PAIR: OnceLock<Models> = OnceLock::new();
    let (target, drafter) = narrow_shape();
    PAIR.get_or_init(|| pair(&target, &drafter, 1, |_| ())).clone()
}

/// 512 tokens and a random drafter, which is as good as none: bytes and control ids as text, expert groups, no query
/// latent, a windowed drafter that borrows embedding and head.
pub(crate) fn wide() -> Models {
    static PAIR: OnceLock<Models> = OnceLock::new();
    let (target, drafter) = wide_shape();
    PAIR.get_or_init(|| pair(&target, &drafter, 2, |_| ())).clone()
}

/// A request with everything drawn at random.
pub(crate) fn request(numbers: &mut Numbers, vocab: usize) -> Request {
    let prompt_len = numbers.pick(&[1, 2, 5, 31, 63, 64, 65]);
    let n = numbers;
    let id = |n: &mut Numbers| n.below(vocab) as u32;
    let params = SamplingParams {
        temperature: n.pick(&TEMPERATURES),
        top_k: n.pick(&[0, 0, 3]),
        top_p: n.pick(&[1.0, 1.0, 0.8]),
        min_p: n.pick(&[0.0, 0.0, 0.05]),
        repetition_penalty: n.pick(&[1.0, 1.2]),
        presence_penalty: n.pick(&[0.0, 0.3]),
        frequency_penalty: n.pick(&[0.0, 0.2]),
        logit_bias: if n.below(2) == 0 { vec![] } else { vec![(id(n), 1.5), (id(n), -1.5)] },
        forbidden_ids: if n.below(3) > 0 { vec![] } else { vec![id(n)] },
        allowed_ids: if n.below(4) > 0 {
            None
        } else {
            Some((0..vocab as u32).filter(|id| id % 5 < 3).collect())
        },
        min_tokens: n.pick(&[0, 0, 6]),
        stop_ids: if n.below(2) == 0 { vec![] } else { vec![id(n)] },
        seed: n.bits(),
        logprobs: n.pick(&[None, Some(3)]),
    };
    let speculation = match n.below(8) {
        0 => Speculation::Plain,
        1 | 2 => Speculation::Chain,
        3 => Speculation::Auto,
        _ => Speculation::Tree { nodes: n.pick(&BUDGETS) },
    };
    let stop: &[&str] = n.pick(&[&[][..], &[][..], &["!\"#"][..], &["$", "%!!"][..]]);
    Request {
        params,
        choice: n.below(3) as u32,
        stop: stop.iter().map(|&s| s.to_owned()).collect(),
        keep_markers: n.below(2) == 0,
        speculation,
        ..Request::new(n.prompt(prompt_len, vocab), 1 + n.below(24))
    }
}

/// A request of `len` prompt tokens, the same for the same length.
pub(crate) fn fixed(len: usize, vocab: usize, max_tokens: usize) -> Request {
    Request::new(Numbers(len as u64).prompt(len, vocab), max_tokens)
}

/// The same request with another temperature and a seed of its own.
pub(crate) fn at(temperature: f64, request: Request) -> Request {
    let params = SamplingParams { temperature, seed: 77, ..request.params };
    Request { params, ..request }
}

/// The same request with a tree of this budget.
pub(crate) fn tree(nodes: usize, request: &Request) -> Request {
    Request { speculation: Speculation::Tree { nodes }, ..request.clone() }
}
