//! From a logits row to a token: Philox noise, logit processing and sampling, exactly specified.
#![forbid(unsafe_code)]
