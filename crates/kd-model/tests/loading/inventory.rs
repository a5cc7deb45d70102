//! The list of expected tensors against what is really loaded.

use std::collections::BTreeMap;

use kd_model::checkpoint::{Checkpoint, VISION_PREFIXES};
use kd_model::config::TargetConfig;

use crate::common::{demo, golden};

#[test]
fn the_list_is_what_checkpoints_hold() {
    let goldens = ["base", "flat", "grouped", "noqlora"].map(|name| golden(&format!("{name}/checkpoint")));
    for dir in goldens.into_iter().chain([demo("target")]) {
        let config = TargetConfig::from_dir(&dir).expect("config");
        let checkpoint = Checkpoint::open(&dir).expect("checkpoint");
        let listed: BTreeMap<_, _> =
            config.tensors(checkpoint.target_prefix()).into_iter().map(|t| (t.name.clone(), t)).collect();
        let mut held = 0;
        for (_, tensor) in checkpoint.iter() {
            if VISION_PREFIXES.iter().any(|prefix| tensor.name.starts_with(prefix)) {
                continue;
            }
            let spec = listed.get(tensor.name).unwrap_or_else(|| panic!("{} is not listed", tensor.name));
            assert!(spec.dtypes.contains(&tensor.dtype) && spec.shape == tensor.shape, "{spec:?}");
            held += 1;
        }
        assert_eq!(listed.len(), config.tensor_count());
        assert_eq!(held, listed.len(), "{}", dir.display());
    }
}

#[test]
fn ranks_take_whole_heads_and_whole_groups() {
    let config = TargetConfig::from_dir(&demo("target")).expect("config");
    assert!(config.refuses_ranks(1).is_empty());
    let refused = config.refuses_ranks(config.num_attention_heads * 2).join("; ");
    assert!(refused.contains("num_attention_heads"), "{refused}");
    let refused = config.refuses_ranks(config.moe_intermediate_size / 16).join("; ");
    assert!(refused.contains("moe_intermediate_size") && refused.contains("groups of 32"), "{refused}");
    for spec in config.tensors("") {
        let (one, two) = (spec.bytes_per_rank(1), spec.bytes_per_rank(2));
        let whole = spec.split == kd_model::Split::Whole;
        assert_eq!(two, if whole { one } else { one / 2 }, "{}", spec.name);
    }
    assert!(!config.refuses_ranks(0).is_empty() && !config.refuses_ranks(usize::MAX).is_empty());
}
