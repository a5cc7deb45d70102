//! From a conversation to the prompt, as token segments.
//!
//! A prompt is a list of [`Segment`]s: control tokens, which only the renderer can write, and ordinary text, which is
//! encoded without looking for control strings. So a user who writes `<|im_end|>` gets those ten characters and never
//! ends a turn. [`ChatTemplate`] chooses between the native K2.6 renderer and the checkpoint's own Jinja template.

mod control;
mod error;
mod jinja;
mod json;
mod message;
mod native;
mod options;
mod pyjson;
mod segment;
mod template;
mod tools_ts;
mod tools_ts_schema;

#[cfg(test)]
mod tests;

pub use control::{ControlStrings, names};
pub use error::PromptError;
pub use jinja::JinjaTemplate;
pub use message::{Arguments, Content, Conversation, Message, Part, Role, ToolCall};
pub use native::render as render_native;
pub use options::{Media, RenderOptions, UserControls};
pub use segment::{PromptEncoder, Segment, encode_segments, render_text};
pub use template::{ChatTemplate, Native};
