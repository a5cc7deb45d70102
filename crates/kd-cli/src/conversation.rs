//! From conversations to prompt ids, with the checkpoint's own template.

use std::path::Path;

use anyhow::anyhow;
use kd_text::Tokenizer;
use kd_text::prompt::{
    ChatTemplate, ControlStrings, Conversation, RenderOptions, UserControls, encode_segments,
};

use crate::args::{self, TemplateArgs};

/// A tokenizer and the template that goes with it.
pub(crate) struct Renderer {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    controls: ControlStrings,
    user_controls: UserControls,
}

impl Renderer {
    /// The renderer of the checkpoint in `model_dir`, or the one that was asked for.
    pub(crate) fn new(args: &TemplateArgs, tokenizer: Tokenizer, model_dir: &Path) -> anyhow::Result<Self> {
        let template = ChatTemplate::resolve(args.chat_template.as_deref(), model_dir)?;
        let controls = ControlStrings::new(tokenizer.control_names());
        let user_controls = match args.control_strings {
            args::ControlStrings::Text => UserControls::AsText,
            args::ControlStrings::Ids => UserControls::AsIds,
        };
        Ok(Self { tokenizer, template, controls, user_controls })
    }

    /// The prompt of a conversation.
    pub(crate) fn ids(
        &self,
        conversation: &Conversation,
        options: RenderOptions,
    ) -> anyhow::Result<Vec<u32>> {
        let options = RenderOptions { user_controls: self.user_controls, ..options };
        let segments = self.template.render(conversation, &options, &self.controls)?;
        Ok(encode_segments(&segments, &self.tokenizer, self.user_controls)?)
    }

    /// The ids of a raw prompt.
    pub(crate) fn raw_ids(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(match self.user_controls {
            UserControls::AsText => self.tokenizer.encode_ordinary(text)?,
            UserControls::AsIds => self.tokenizer.encode_with_special(text)?,
        })
    }

    /// The tokenizer.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// One line about the template.
    pub(crate) fn describe(&self) -> String {
        self.template.describe()
    }
}

/// Reads a messages file.
pub(crate) fn read(path: &Path) -> anyhow::Result<(Conversation, RenderOptions)> {
    let bytes = crate::input::bytes(path)?;
    Conversation::from_json(&bytes).map_err(|e| anyhow!("{}: {e}", path.display()))
}
