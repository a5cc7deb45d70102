//! What prompts must say, and what no message may make of them.

mod demo;
mod goldens;
mod huge;
mod jinja;
mod json;
mod safety;
mod tools;

use std::path::{Path, PathBuf};

use super::*;

fn repo(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn read_json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(repo(path)).unwrap()).unwrap()
}

/// Kimi's named control strings and two of its reserved ones.
fn control_strings() -> Vec<String> {
    let config = read_json("models/demo/target/tokenizer_config.json");
    let named = config["added_tokens_decoder"].as_object().unwrap().values();
    let named = named.map(|t| t["content"].as_str().unwrap().to_owned());
    named.chain(["<|reserved_token_163589|>".to_owned(), "<|reserved_token_163700|>".to_owned()]).collect()
}

fn controls() -> ControlStrings {
    ControlStrings::new(control_strings())
}

fn demo_template() -> ChatTemplate {
    ChatTemplate::from_dir(&repo("models/demo/target")).unwrap()
}

/// A template of the given source in a directory of its own.
fn template(source: &str) -> Result<ChatTemplate, PromptError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat_template.jinja");
    std::fs::write(&file, source).unwrap();
    ChatTemplate::from_file(&file, dir.path())
}

fn user(text: &str) -> Conversation {
    Conversation { messages: vec![Message::new(Role::User, text)], tools: Vec::new() }
}

fn options(case: &serde_json::Value) -> RenderOptions {
    RenderOptions {
        thinking: case["thinking"].as_bool().unwrap(),
        preserve_thinking: case["preserve_thinking"].as_bool().unwrap(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        media: Media::Placeholder,
        ..RenderOptions::default()
    }
}

fn conversation(case: &serde_json::Value) -> Conversation {
    let request = ["messages", "tools"].map(|key| (key.to_owned(), case[key].clone())).into_iter().collect();
    Conversation::from_request(&request).unwrap().0
}
