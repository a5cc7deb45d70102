//! Token segments: control tokens by name, everything else as ordinary text.

use std::borrow::Cow;
use std::error::Error;

use super::{PromptError, UserControls};
use crate::Tokenizer;

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// A control token, by the name under which the tokenizer knows it.
    Control(Cow<'static, str>),
    /// Ordinary text. Control strings in it are plain characters.
    Text(String),
}

/// Collects segments; neighbouring text becomes one segment, so that it is tokenised as a whole.
#[derive(Debug, Default)]
pub(super) struct Segments(Vec<Segment>);

impl Segments {
    pub(super) fn control(&mut self, name: impl Into<Cow<'static, str>>) {
        self.0.push(Segment::Control(name.into()));
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Segment::Text(last)) => last.push_str(text),
            _ => self.0.push(Segment::Text(text.to_owned())),
        }
    }

    pub(super) fn finish(self) -> Vec<Segment> {
        self.0
    }
}

/// The prompt as one string, control tokens spelled out: what the published template prints.
#[must_use]
pub fn render_text(segments: &[Segment]) -> String {
    segments
        .iter()
        .map(|s| match s {
            Segment::Control(name) => name.as_ref(),
            Segment::Text(text) => text,
        })
        .collect()
}

/// What turning segments into ids asks of a tokenizer.
pub trait PromptEncoder {
    /// The id of a control token, `None` if the tokenizer has no token of that name.
    fn control_id(&self, name: &str) -> Option<u32>;

    /// Encodes text in which control strings are ordinary characters.
    ///
    /// # Errors
    /// If the tokenizer refuses the text.
    fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>>;

    /// Encodes text in which every control string becomes its id, wherever it stands.
    ///
    /// # Errors
    /// If the tokenizer refuses the text.
    fn encode_with_controls(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>>;
}

impl PromptEncoder for Tokenizer {
    fn control_id(&self, name: &str) -> Option<u32> {
        self.token_id(name)
    }

    fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        Ok(Tokenizer::encode_ordinary(self, text)?)
    }

    fn encode_with_controls(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        Ok(self.encode_with_special(text)?)
    }
}

/// Encodes a prompt.
///
/// With [`UserControls::AsText`] only [`Segment::Control`] becomes a control id. With [`UserControls::AsIds`] the
/// prompt is encoded as the published tokenizer does it: as one string, control strings in messages included.
///
/// # Errors
/// [`PromptError::UnknownControl`] if the tokenizer lacks a control token of the prompt, [`PromptError::Encode`] if it
/// refuses the text.
pub fn encode_segments<E: PromptEncoder + ?Sized>(
    segments: &[Segment],
    encoder: &E,
    controls: UserControls,
) -> Result<Vec<u32>, PromptError> {
    if controls == UserControls::AsIds {
        return encoder.encode_with_controls(&render_text(segments)).map_err(PromptError::Encode);
    }
    let mut ids = Vec::new();
    for segment in segments {
        match segment {
            Segment::Control(name) => ids.push(
                encoder
                    .control_id(name)
                    .ok_or_else(|| PromptError::UnknownControl { name: name.to_string() })?,
            ),
            Segment::Text(text) => ids.extend(encoder.encode_ordinary(text).map_err(PromptError::Encode)?),
        }
    }
    Ok(ids)
}
