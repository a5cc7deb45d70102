//! How a conversation is rendered.

/// What happens to pictures and films in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Media {
    /// They are an error: the text model would see a placeholder that means nothing.
    #[default]
    Refuse,
    /// The published placeholder is written.
    Placeholder,
}

/// What control strings in a message's own text become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UserControls {
    /// Ordinary characters; no message can forge a turn.
    #[default]
    AsText,
    /// Control ids, as the published tokenizer has it.
    AsIds,
}

/// Options of a rendering, by the names of the published template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderOptions {
    /// Whether the model is to think; false gives every turn an empty thought.
    pub thinking: bool,
    /// Whether reasoning from before the last final answer stays in the prompt.
    pub preserve_thinking: bool,
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Pictures and films.
    pub media: Media,
    /// Control strings in message text.
    pub user_controls: UserControls,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            thinking: true,
            preserve_thinking: false,
            add_generation_prompt: true,
            media: Media::default(),
            user_controls: UserControls::default(),
        }
    }
}
