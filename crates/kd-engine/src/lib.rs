//! Requests, pages and speculative rounds over one target and its drafter; a plain-data API.
//!
//! An [`Engine`] takes [`Request`]s at any time and advances all of them by one [`Engine::step`]: prompt chunks of
//! new streams, then one round (draft, build, verify, walk, commit) for every stream that generates. Plain decoding is
//! a round with an empty tree, a chain a round with a tree of one branch, so there is one path through the code and
//! each stream's tokens are those that plain decoding would give.
#![forbid(unsafe_code)]

mod backend;
mod calibrate;
mod cpu;
pub mod cuda;
mod draft;
mod engine;
mod error;
mod pages;
mod prefill;
mod request;
mod round;
mod stats;
mod stream;

pub use backend::DeviceError;
pub use engine::{Engine, EngineOptions, Models, Step};
pub use error::{EngineError, StreamError, SubmitError};
pub use kd_attn::PAGE_TOKENS;
pub use kd_ddtree::{MAX_NODES, Tree, budget};
pub use kd_sample::{Choice, SamplingParams};
pub use request::{Event, FinishReason, Request, RequestId, Speculation};
pub use round::Round;
pub use stats::StreamStats;
