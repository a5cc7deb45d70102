//! From a logits row to a token: Philox noise, logit processing and sampling, exactly specified.
//!
//! A draw is a pure function of the row, the history, the parameters, the absolute position and the choice index. It
//! does not depend on threads, batches, call order or on whether the row came from a tree or from plain decoding; this
//! is what makes tree decoding emit the very tokens that plain decoding would. `docs/sampling.md` is the specification.
//!
//! ```
//! use kd_sample::{History, Sampler, SamplingParams};
//!
//! let params = SamplingParams { temperature: 0.7, top_p: 0.95, seed: 42, ..SamplingParams::default() };
//! let mut history = History::new(&[3, 1]);
//! let mut sampler = Sampler::new();
//! let choice = sampler.choose(&[0.1, 2.0, -1.0, 0.5], &history, &params, 2, 0)?;
//! history.push(choice.token);
//! # Ok::<(), kd_sample::SampleError>(())
//! ```
#![forbid(unsafe_code)]

mod cuts;
mod draw;
mod error;
mod history;
mod logprobs;
pub mod noise;
mod params;
pub mod philox;
mod process;
mod sampler;
mod scan;
pub mod stop;
mod top;

pub use error::{ParamError, SampleError};
pub use history::{History, Seen};
pub use params::SamplingParams;
pub use sampler::{Choice, Sampler};
pub use top::cut_key;
