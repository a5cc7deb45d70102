//! The K2.6 prompt, written natively.
//!
//! `<|im_TAG|>speaker<|im_middle|>…<|im_end|>`, no newline between turns, no default system message. Every assistant
//! turn carries a thought, empty if it was settled by a later final answer or if thinking is off.

use super::control::names as n;
use super::segment::{Segment, Segments};
use super::{Arguments, Content, Conversation, Media, Message, Part, PromptError, RenderOptions, Role};
use super::{pyjson, tools_ts};

/// Text that stands for a film; not a control token of the tokenizer.
const VIDEO_PLACEHOLDER: &str = "<|kimi_k25_video_placeholder|>";

/// Renders a conversation as K2.6's published template and tool encoder do.
///
/// # Errors
/// [`PromptError::Media`] for pictures and films under [`Media::Refuse`].
pub fn render(conversation: &Conversation, options: &RenderOptions) -> Result<Vec<Segment>, PromptError> {
    let mut out = Segments::default();
    if !conversation.tools.is_empty() {
        out.control(n::IM_SYSTEM);
        out.text("tool_declare");
        out.control(n::IM_MIDDLE);
        out.text(&tools_ts::declare(&conversation.tools));
        out.control(n::IM_END);
    }
    let messages = &conversation.messages;
    let settled = messages.iter().rposition(|m| m.role == Role::Assistant && m.tool_calls.is_empty());
    for (i, message) in messages.iter().enumerate() {
        let open = options.preserve_thinking || settled.is_none_or(|last| i > last);
        turn(&mut out, message, options.thinking && open, &format!("messages[{i}].content"), options.media)?;
    }
    if options.add_generation_prompt {
        out.control(n::IM_ASSISTANT);
        out.text("assistant");
        out.control(n::IM_MIDDLE);
        out.control(n::THINK);
        if !options.thinking {
            out.control(n::THINK_END);
        }
    }
    Ok(out.finish())
}

fn turn(out: &mut Segments, m: &Message, thought: bool, at: &str, media: Media) -> Result<(), PromptError> {
    out.control(match m.role {
        Role::User => n::IM_USER,
        Role::Assistant => n::IM_ASSISTANT,
        _ => n::IM_SYSTEM,
    });
    out.text(m.speaker());
    out.control(n::IM_MIDDLE);
    match m.role {
        Role::Assistant => {
            out.control(n::THINK);
            if thought {
                out.text(m.thought());
            }
            out.control(n::THINK_END);
        }
        Role::Tool => {
            out.text("## Return of ");
            out.text(m.tool_call_id.as_deref().unwrap_or(""));
            out.text("\n");
        }
        _ => {}
    }
    body(out, m.content.as_ref(), at, media)?;
    calls(out, m);
    out.control(n::IM_END);
    Ok(())
}

fn calls(out: &mut Segments, m: &Message) {
    if m.tool_calls.is_empty() {
        return;
    }
    out.control(n::SECTION_BEGIN);
    for call in &m.tool_calls {
        out.control(n::CALL_BEGIN);
        out.text(&call.id);
        out.control(n::ARGUMENT_BEGIN);
        match &call.arguments {
            Arguments::Text(text) => out.text(text),
            Arguments::Json(value) => out.text(&pyjson::dumps(value, &pyjson::Style::default())),
        }
        out.control(n::CALL_END);
    }
    out.control(n::SECTION_END);
}

fn body(out: &mut Segments, content: Option<&Content>, at: &str, media: Media) -> Result<(), PromptError> {
    let parts = match content {
        None => return Ok(()),
        Some(Content::Text(text)) => {
            out.text(text);
            return Ok(());
        }
        Some(Content::Parts(parts)) => parts,
    };
    for (i, part) in parts.iter().enumerate() {
        let kind = match part {
            Part::Text(text) => {
                out.text(text);
                continue;
            }
            Part::Image => "image",
            Part::Video => "video",
        };
        if media == Media::Refuse {
            return Err(PromptError::Media { field: format!("{at}[{i}]"), kind });
        }
        if *part == Part::Image {
            out.control(n::MEDIA_BEGIN);
            out.text("image");
            out.control(n::MEDIA_CONTENT);
            out.control(n::MEDIA_PAD);
            out.control(n::MEDIA_END);
        } else {
            out.text(VIDEO_PLACEHOLDER);
        }
        out.text("\n");
    }
    Ok(())
}
