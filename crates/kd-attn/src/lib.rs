//! Multi-head latent attention over pages and draft trees, drafter attention and rotary embeddings.
#![forbid(unsafe_code)]
