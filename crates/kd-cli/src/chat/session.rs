//! The conversation so far and the turn that is being answered.

use std::time::Instant;

use anyhow::bail;
use kd_engine::{Engine, Event, FinishReason, Request};
use kd_text::parser::{Finish, OutputParser, ParsedToolCall, ParserOptions};
use kd_text::prompt::{Arguments, Content, Conversation, Message, RenderOptions, Role, ToolCall};

use super::display::Display;
use crate::args::ChatArgs;
use crate::conversation::Renderer;
use crate::generate::{Outcome, summary};
use crate::interrupt;

pub(super) struct Session<'a> {
    args: &'a ChatArgs,
    engine: Engine,
    renderer: Renderer,
    /// Everything of a request but its prompt and length.
    request: Request,
    conversation: Conversation,
    options: RenderOptions,
    /// Messages that were there when the user last spoke.
    before: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        args: &'a ChatArgs,
        engine: Engine,
        renderer: Renderer,
        request: Request,
        conversation: Conversation,
        options: RenderOptions,
    ) -> Self {
        let request = Request { keep_markers: true, ..request };
        let before = conversation.messages.len();
        Self { args, engine, renderer, request, conversation, options, before }
    }

    /// Begins anew.
    pub(super) fn reset(&mut self, conversation: Conversation) {
        self.before = conversation.messages.len();
        self.conversation = conversation;
    }

    /// Adds a message.
    pub(super) fn say(&mut self, message: Message) {
        if message.role == Role::User {
            self.before = self.conversation.messages.len();
        }
        self.conversation.messages.push(message);
    }

    /// Takes back the user's last message and everything after it.
    pub(super) fn withdraw(&mut self) {
        self.conversation.messages.truncate(self.before);
    }

    /// Answers the conversation, shows the answer as it comes and adds it; returns the tools that it calls. A prompt
    /// that cannot be answered is reported and withdrawn, for the conversation to go on.
    pub(super) fn answer(&mut self) -> anyhow::Result<Vec<ParsedToolCall>> {
        interrupt::take();
        let submitted = self.request().and_then(|request| Ok(self.engine.submit(request)?));
        let id = match submitted {
            Ok(id) => id,
            Err(error) => {
                say!("kd: {error:#}");
                self.withdraw();
                return Ok(Vec::new());
            }
        };
        let begin = Instant::now();
        let options = ParserOptions {
            thinking: self.options.thinking,
            first_call_index: self.conversation.next_call_index(),
        };
        let mut parser = OutputParser::new(options);
        let mut display = Display::new();
        let mut outcome = Outcome::default();
        let mut finish = Finish::Stop;
        while !self.engine.is_idle() {
            if interrupt::take() {
                self.engine.cancel(id);
                (finish, outcome.error) = (Finish::Length, Some("stopped".into()));
                break;
            }
            for event in self.engine.step().events {
                match event {
                    Event::Tokens { text, .. } => display.events(&parser.push(&text))?,
                    Event::Finished { reason, stats, .. } => {
                        outcome.stats = stats;
                        if reason == FinishReason::Length {
                            finish = Finish::Length;
                        }
                    }
                    Event::Failed { error, stats, .. } => {
                        (outcome.stats, outcome.error) = (stats, Some(error.to_string()));
                        finish = Finish::Error;
                    }
                }
            }
        }
        if let Some(error) = self.engine.failure() {
            bail!("{error}");
        }
        let (events, output) = parser.finish(finish);
        display.events(&events)?;
        display.end_line()?;
        outcome.elapsed = begin.elapsed();
        self.report(&outcome, finish);

        let mut message = Message::new(Role::Assistant, "");
        message.content = output.content.map(Content::Text);
        message.reasoning = output.reasoning;
        // A call that was cut short is no call.
        let calls = if finish == Finish::Stop { output.tool_calls } else { Vec::new() };
        message.tool_calls = calls
            .iter()
            .map(|call| ToolCall {
                id: call.id.clone(),
                name: call.name.clone(),
                arguments: Arguments::Text(call.arguments.clone()),
            })
            .collect();
        self.conversation.messages.push(message);
        Ok(calls)
    }

    fn request(&self) -> anyhow::Result<Request> {
        let prompt = self.renderer.ids(&self.conversation, self.options)?;
        let context = self.engine.models().target.config().max_position_embeddings;
        let left = context.saturating_sub(prompt.len());
        if left == 0 {
            bail!(
                "the conversation has {} tokens and fills the context of {context}; this message is left out: say \
                 less, or begin anew with /reset",
                prompt.len()
            );
        }
        let max_tokens = self.args.sampling.max_tokens.map_or(left, |asked| asked.get().min(left));
        Ok(Request { prompt, max_tokens, ..self.request.clone() })
    }

    fn report(&self, outcome: &Outcome, finish: Finish) {
        if let Some(error) = &outcome.error {
            say!("kd: {error}");
        } else if finish == Finish::Length {
            say!("kd: the answer reached its limit of tokens");
        }
        if !self.args.common.quiet && outcome.stats.generated > 0 {
            say!("kd: {}", summary("answer", std::slice::from_ref(outcome)));
        }
    }
}
