//! Mixture of experts: router, grouping, INT4 experts, shared expert and dense MLP.
#![forbid(unsafe_code)]
