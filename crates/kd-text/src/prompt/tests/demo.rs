//! The demo's own template.

use serde_json::json;

use super::*;

#[test]
fn the_demos_chat_prompts_are_reproduced() {
    let golden = read_json("models/demo/golden/golden.json");
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        let text = case["prompt_text"].as_str().unwrap();
        let Some(turns) = text.strip_suffix("<|im_assistant|>assistant<|im_middle|><think>") else {
            continue;
        };
        let messages = turns.split_terminator("<|im_end|>").map(|turn| {
            let (head, said) = turn.split_once("<|im_middle|>").unwrap();
            let role = if head == "<|im_user|>user" { Role::User } else { Role::System };
            Message::new(role, said)
        });
        let conversation = Conversation { messages: messages.collect(), tools: Vec::new() };
        let segments = demo_template().render(&conversation, &RenderOptions::default(), &controls()).unwrap();
        assert_eq!(render_text(&segments), text);
        compared += 1;
    }
    assert_eq!(compared, 3);
}

/// Written by hand from the template: tools as compact JSON in the order they were sent, arguments as Python prints them.
#[test]
fn the_demos_tools_are_declared_as_compact_json() {
    let conversation = json!({
        "messages": [
            {"role": "user", "content": "find <T> & 'co'"},
            {"role": "assistant", "content": null, "reasoning": "look it up", "tool_calls": [
                {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": {"q": "<T>", "n": 1.0}}}
            ]},
            {"role": "tool", "tool_call_id": "functions.find:0", "content": [{"type": "text", "text": "fn a<T>()"}]},
        ],
        "tools": [{"type": "function", "function": {
            "name": "find", "description": "Finds <T> & \"é\".",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "number", "default": 1.5}}},
        }}],
    });
    let (conversation, options) = Conversation::from_json(conversation.to_string().as_bytes()).unwrap();
    let segments = demo_template().render(&conversation, &options, &controls()).unwrap();
    let expected = concat!(
        r#"<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"find","#,
        r#""description":"Finds <T> & \"é\".","parameters":{"type":"object","properties":"#,
        r#"{"q":{"type":"string"},"n":{"type":"number","default":1.5}}}}}]<|im_end|>"#,
        "<|im_user|>user<|im_middle|>find <T> & 'co'<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|><think>look it up</think><|tool_calls_section_begin|><|tool_call_begin|>",
        r#"functions.find:0<|tool_call_argument_begin|>{"q": "<T>", "n": 1.0}<|tool_call_end|>"#,
        "<|tool_calls_section_end|><|im_end|>",
        "<|im_system|>tool<|im_middle|>## Return of functions.find:0\nfn a<T>()<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|><think>",
    );
    assert_eq!(render_text(&segments), expected);
}
