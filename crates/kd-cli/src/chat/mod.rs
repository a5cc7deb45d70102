//! `kd chat`: a conversation in the terminal.

mod display;
mod session;

use std::path::Path;

use anyhow::{Context, bail};
use kd_engine::EngineOptions;
use kd_text::prompt::{Conversation, Message, RenderOptions, Role};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde_json::{Map, Value};

use crate::args::ChatArgs;
use crate::place::Place;
use crate::{calibration, conversation, input, interrupt, models};
use session::Session;

const HELP: &str = "/reset  forget the conversation   /exit or Ctrl-D  leave   Ctrl-C  stop the answer";

pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<()> {
    let loaded = models::load(&args.common)?;
    let renderer = loaded.renderer(&args.template)?;
    let (conversation, options) = opening(args)?;
    let request = crate::generate::request(&args.sampling, &loaded, Vec::new())?;
    let place = Place::of(&args.common, &loaded.models)?;
    if !args.common.quiet {
        say!("kd: {} {}", models::describe(&loaded.models), place.describe());
        say!("kd: {}; {HELP}", renderer.describe());
    }
    let context = loaded.models.target.config().max_position_embeddings;
    let limits = EngineOptions {
        max_streams: 1,
        cache_tokens: context,
        prefill_chunk: context,
        ..EngineOptions::default()
    };
    let calibrated = place.calibrated();
    let nodes = request.speculation.most_nodes();
    let mut engine = place.engine(loaded.models, limits, nodes, args.chunks, args.common.quiet)?;
    calibration::seed(&mut engine, &calibrated, args.sampling.calibration.as_deref())?;
    let mut session = Session::new(args, engine, renderer, request, conversation.clone(), options);

    interrupt::heed();
    let mut editor = DefaultEditor::with_config(Config::builder().auto_add_history(true).build())?;
    // A conversation that ends with the user's turn (or a tool's) is answered before anything is asked.
    if conversation.messages.last().is_some_and(|m| matches!(m.role, Role::User | Role::Tool)) {
        turn(&mut session, &mut editor)?;
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                say!("({HELP})");
                interrupt::take();
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("cannot read the next message"),
        };
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => return Ok(()),
            "/help" => say!("{HELP}"),
            "/reset" => session.reset(conversation.clone()),
            text => {
                session.say(Message::new(Role::User, text));
                turn(&mut session, &mut editor)?;
            }
        }
    }
}

/// Answers, asks for the results of the tools that the answer calls, and goes on until there are none.
fn turn(session: &mut Session<'_>, editor: &mut DefaultEditor) -> anyhow::Result<()> {
    loop {
        let calls = session.answer()?;
        for call in &calls {
            let result = match editor.readline(&format!("result of {} > ", call.id)) {
                Ok(result) => result,
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => {
                    session.withdraw();
                    return Ok(());
                }
                Err(error) => return Err(error).context("cannot read the tool's result"),
            };
            let mut message = Message::new(Role::Tool, result);
            (message.name, message.tool_call_id) = (Some(call.name.clone()), Some(call.id.clone()));
            session.say(message);
        }
        if calls.is_empty() {
            return Ok(());
        }
    }
}

/// The conversation before the first turn, from files and flags.
fn opening(args: &ChatArgs) -> anyhow::Result<(Conversation, RenderOptions)> {
    let (mut conversation, mut options) = match &args.messages {
        Some(path) => conversation::read(path)?,
        None => Default::default(),
    };
    if let Some(path) = &args.tools {
        if !conversation.tools.is_empty() {
            bail!("tools are given by both --tools and --messages; leave one out");
        }
        conversation.tools = read_tools(path)?;
    }
    if let Some(system) = &args.system {
        conversation.messages.insert(0, Message::new(Role::System, system));
    }
    options.thinking &= !args.no_thinking;
    options.preserve_thinking |= args.preserve_thinking;
    Ok((conversation, options))
}

fn read_tools(path: &Path) -> anyhow::Result<Vec<Value>> {
    let read = || -> anyhow::Result<Vec<Value>> {
        let tools: Value = serde_json::from_slice(&input::bytes(path)?)?;
        let body =
            Map::from_iter([("messages".to_owned(), Value::Array(Vec::new())), ("tools".to_owned(), tools)]);
        Ok(Conversation::from_request(&body)?.0.tools)
    };
    read().with_context(|| format!("cannot use the tools in {}", path.display()))
}
