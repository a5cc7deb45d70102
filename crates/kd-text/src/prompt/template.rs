//! Which renderer a checkpoint gets.

use std::path::Path;

use super::{
    ControlStrings, Conversation, JinjaTemplate, PromptError, RenderOptions, Segment, render_native,
};

/// A checkpoint's renderer.
#[derive(Debug, Clone)]
pub enum ChatTemplate {
    /// The native K2.6 renderer.
    Native(Native),
    /// A Jinja template.
    Jinja(Box<JinjaTemplate>),
}

/// Why the native renderer is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Native {
    /// It was asked for.
    Chosen,
    /// The checkpoint has no `chat_template.jinja`.
    NoTemplate,
    /// The checkpoint's template reads `tools_ts_str`, the tool declaration that Kimi's tokenizer code supplies.
    KimiTemplate,
}

impl ChatTemplate {
    /// The renderer of the checkpoint in `dir`: native if `chat_template.jinja` is missing or reads the variable
    /// `tools_ts_str`, else that template.
    ///
    /// # Errors
    /// If the template or `tokenizer_config.json` cannot be read or does not compile.
    pub fn from_dir(dir: &Path) -> Result<Self, PromptError> {
        let file = dir.join("chat_template.jinja");
        if !file.try_exists().map_err(|reason| PromptError::Read { path: file.clone(), reason })? {
            return Ok(Self::Native(Native::NoTemplate));
        }
        let template = JinjaTemplate::load(&file, dir)?;
        if template.reads("tools_ts_str") {
            return Ok(Self::Native(Native::KimiTemplate));
        }
        Ok(Self::Jinja(Box::new(template)))
    }

    /// The template in `file` for the checkpoint in `model_dir`, executed even if it is Kimi's own.
    ///
    /// # Errors
    /// As [`from_dir`](Self::from_dir), and if `file` does not exist.
    pub fn from_file(file: &Path, model_dir: &Path) -> Result<Self, PromptError> {
        Ok(Self::Jinja(Box::new(JinjaTemplate::load(file, model_dir)?)))
    }

    /// The renderer for `--chat-template native|FILE`, or the checkpoint's own if that was not given.
    ///
    /// # Errors
    /// As [`from_dir`](Self::from_dir) and [`from_file`](Self::from_file).
    pub fn resolve(choice: Option<&str>, model_dir: &Path) -> Result<Self, PromptError> {
        match choice {
            None => Self::from_dir(model_dir),
            Some("native") => Ok(Self::Native(Native::Chosen)),
            Some(file) => Self::from_file(Path::new(file), model_dir),
        }
    }

    /// Renders a conversation. `controls` are the tokenizer's control strings; the native renderer does not need them.
    ///
    /// # Errors
    /// What [`render_native`] and [`JinjaTemplate::render`] refuse.
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
        controls: &ControlStrings,
    ) -> Result<Vec<Segment>, PromptError> {
        match self {
            Self::Native(_) => render_native(conversation, options),
            Self::Jinja(template) => template.render(conversation, options, controls),
        }
    }

    /// One line about the renderer and why it was taken.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Native(Native::Chosen) => "native K2.6 renderer (chosen)".to_owned(),
            Self::Native(Native::NoTemplate) => "native K2.6 renderer (no chat_template.jinja)".to_owned(),
            Self::Native(Native::KimiTemplate) => {
                "native K2.6 renderer (chat_template.jinja reads tools_ts_str)".to_owned()
            }
            Self::Jinja(template) => format!("Jinja template {}", template.path().display()),
        }
    }
}
