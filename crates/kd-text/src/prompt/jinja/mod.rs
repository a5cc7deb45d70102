//! A checkpoint's own Jinja template, executed under a limit of work.
//!
//! The output is split into segments soundly: before rendering, each character of message text that could begin or end
//! a control string is swapped for a private-use character ([`Mask`]), so every control string in the output was
//! opened and closed by the template itself, whatever the template joins, trims or changes the case of. The characters
//! are put back in the text afterwards. A template whose output depends on those characters is refused for such
//! messages, because then its markers and the text cannot be told apart.

mod convert;
mod env;
mod filters;
mod mask;
mod methods;
mod strftime;
mod variables;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use minijinja::{Environment, ErrorKind, Value};

use super::{ControlStrings, Conversation, PromptError, RenderOptions, Segment, UserControls};
use mask::Mask;

/// Units of work that any conversation may cost; about 0.1 s.
const BASE_FUEL: u64 = 2_000_000;
/// Further units for each byte of the conversation: every byte may be gone over some dozens of times.
const FUEL_PER_BYTE: u64 = 1;

/// The one template of an environment.
const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct JinjaTemplate {
    env: Environment<'static>,
    path: PathBuf,
    variables: HashSet<String>,
    special_tokens: Vec<(String, String)>,
}

impl JinjaTemplate {
    /// Reads and compiles a template. `model_dir` supplies `bos_token` and its like from `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`PromptError::Read`] if a file cannot be read, [`PromptError::Template`] if the template does not compile.
    pub fn load(path: &Path, model_dir: &Path) -> Result<Self, PromptError> {
        let source = std::fs::read_to_string(path)
            .map_err(|reason| PromptError::Read { path: path.to_owned(), reason })?;
        Self::compile(path, source, variables::special_tokens(model_dir)?)
    }

    fn compile(
        path: &Path,
        source: String,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, PromptError> {
        let mut env = env::environment().map_err(|e| template_error(path, &e))?;
        env.add_template_owned(NAME, source).map_err(|e| template_error(path, &e))?;
        let template = env.get_template(NAME).map_err(|e| template_error(path, &e))?;
        let variables = template.undeclared_variables(false);
        Ok(Self { env, path: path.to_owned(), variables, special_tokens })
    }

    /// The template's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the template reads a variable that it does not set.
    #[must_use]
    pub fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// Renders a conversation into segments; `controls` are the tokenizer's control strings.
    ///
    /// The template sees `messages`, `tools` (none if there are none), `thinking`, `enable_thinking` (the same),
    /// `preserve_thinking`, `add_generation_prompt`, the tokenizer's special tokens and, if it asks, `tools_ts_str`.
    ///
    /// # Errors
    /// [`PromptError::Template`] if the template fails or refuses, [`PromptError::OutOfFuel`] if it works too long,
    /// [`PromptError::Inseparable`] if its output depends on the characters of control strings in messages,
    /// [`PromptError::Media`] for pictures and films that are to be refused.
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
        controls: &ControlStrings,
    ) -> Result<Vec<Segment>, PromptError> {
        let plain = variables::collect(conversation, options, self)?;
        let fuel = BASE_FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(plain.bytes()));
        let mask = match options.user_controls {
            UserControls::AsIds => None,
            UserControls::AsText => Mask::new(controls.edges(), &plain, &self.env, NAME)
                .map_err(|mask::Exhausted| PromptError::Inseparable { path: self.path.clone() })?,
        };
        let Some(mask) = mask else {
            let text = self.execute(plain.context(self, Cow::Borrowed), fuel)?;
            return Ok(controls.split(&text));
        };
        let masked = self.execute(plain.context(self, |s| mask.hide(s)), fuel)?;
        let text = self.execute(plain.context(self, Cow::Borrowed), fuel)?;
        if mask.reveal(&masked) != text {
            return Err(PromptError::Inseparable { path: self.path.clone() });
        }
        Ok(controls.split_map(&masked, |s| mask.reveal(s)))
    }

    fn execute(&self, context: Value, fuel: u64) -> Result<String, PromptError> {
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel));
        env.get_template(NAME).and_then(|t| t.render(context)).map_err(|e| match e.kind() {
            ErrorKind::OutOfFuel => PromptError::OutOfFuel { path: self.path.clone(), fuel },
            _ => template_error(&self.path, &e),
        })
    }
}

fn template_error(path: &Path, error: &minijinja::Error) -> PromptError {
    let message =
        error.detail().map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    PromptError::Template { path: path.to_owned(), line: error.line().unwrap_or(0), message }
}
