//! Reading conversations: what is accepted, and which field an error names.

use proptest::prelude::*;

use super::*;

fn error(json: &str) -> String {
    Conversation::from_json(json.as_bytes()).unwrap_err().to_string()
}

#[test]
fn errors_name_the_field() {
    for (json, expected) in [
        ("3", "the file: expected an array of messages"),
        ("{}", "messages is missing"),
        (r#"{"messages": [], "tool": []}"#, "tool is not known here"),
        (r#"{"messages": {}}"#, "messages: expected an array, found an object of 0 keys"),
        (r#"{"messages": [], "tools": [7]}"#, "tools[0]: expected an object, found 7"),
        (r#"["hi"]"#, "messages[0]: expected an object, found \"hi\""),
        (r#"[{"content": "x"}]"#, "messages[0].role is missing"),
        (r#"[{"role": "user"}]"#, "messages[0].content is missing"),
        (r#"[{"role": "user", "contnet": "x"}]"#, "messages[0].content is missing"),
        (
            r#"[{"role": "user", "content": 1}]"#,
            "messages[0].content: expected a string, an array of parts or null",
        ),
        (r#"[{"role": "user", "content": "", "name": 1}]"#, "messages[0].name: expected a string, found 1"),
        (r#"[{"role": "user", "content": [{"text": "x"}]}]"#, "messages[0].content[0].type is missing"),
        (r#"[{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0].text is missing"),
        (
            r#"[{"role": "user", "content": [{"type": "pdf"}]}]"#,
            "messages[0].content[0].type: expected `text`",
        ),
        (r#"[{"role": "tool", "content": "x"}]"#, "messages[0].tool_call_id is missing"),
        (r#"[{"role": "assistant", "function_call": {}}]"#, "messages[0].function_call: expected null"),
        (r#"[{"role": "assistant", "partial": true}]"#, "messages[0].partial: expected false"),
        (r#"[{"role": "assistant", "tool_calls": [{}]}]"#, "messages[0].tool_calls[0].id is missing"),
        (
            r#"[{"role": "assistant", "tool_calls": [{"id": "a"}]}]"#,
            "messages[0].tool_calls[0].function is missing",
        ),
        (
            r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]"#,
            "messages[0].tool_calls[0].function.arguments is missing",
        ),
        (
            r#"{"messages": [], "chat_template_kwargs": {"think": false}}"#,
            "chat_template_kwargs.think is not known here; known are thinking",
        ),
        (
            r#"{"messages": [], "chat_template_kwargs": {"thinking": "no"}}"#,
            "chat_template_kwargs.thinking: expected true or false, found \"no\"",
        ),
        (r#"{"messages": [], "thinking": {"type": "off"}}"#, "thinking.type: expected \"enabled\""),
        (
            r#"{"messages": [], "thinking": {"type": "enabled", "keep": "some"}}"#,
            "thinking.keep: expected \"all\"",
        ),
        (
            r#"{"messages": [], "chat_template_kwargs": {"thinking": true}, "thinking": {"type": "disabled"}}"#,
            "chat_template_kwargs.thinking and thinking.type contradict each other",
        ),
    ] {
        let error = error(json);
        assert!(error.starts_with(expected), "{json}: {error}");
    }
}

/// privatemode 7: the wrong off-switch leaked the reasoning.
#[test]
fn thinking_is_off_in_each_spelling() {
    for switch in [
        r#""chat_template_kwargs": {"thinking": false}"#,
        r#""chat_template_kwargs": {"enable_thinking": false}"#,
        r#""thinking": {"type": "disabled"}"#,
        r#""thinking": false"#,
    ] {
        let (conversation, options) =
            Conversation::from_json(format!("{{\"messages\": [], {switch}}}").as_bytes()).unwrap();
        let text = render_text(&render_native(&conversation, &options).unwrap());
        assert_eq!(text, "<|im_assistant|>assistant<|im_middle|><think></think>", "{switch}");
    }
    let kept = br#"{"messages": [], "thinking": {"type": "enabled", "keep": "all"}}"#;
    assert!(Conversation::from_json(kept).unwrap().1.preserve_thinking);
}

#[test]
fn an_answer_that_a_client_sends_back_is_accepted() {
    let json = br#"[{"role": "assistant", "content": "x", "refusal": null, "annotations": [], "audio": null,
        "function_call": null, "tool_calls": null, "reasoning": null, "reasoning_content": "r"}]"#;
    let (conversation, _) = Conversation::from_json(json).unwrap();
    assert_eq!(conversation.messages[0].thought(), "r");
    let (conversation, _) = Conversation::from_json(br#"[{"role": "developer", "content": "x"}]"#).unwrap();
    let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
    let text = render_text(&render_native(&conversation, &options).unwrap());
    assert_eq!(text, "<|im_system|>developer<|im_middle|>x<|im_end|>");
}

#[test]
fn a_lone_surrogate_is_an_error_and_nul_is_text() {
    for lone in [r#"["\ud800"]"#, r#"["\udc00"]"#, r#"["\ud800x"]"#] {
        assert!(error(lone).starts_with("not valid JSON"), "{lone}");
    }
    assert!(Conversation::from_json(b"[{\"role\": \"\xff\"}]").is_err());
    let (conversation, options) =
        Conversation::from_json(br#"[{"role": "user", "content": "a\u0000b"}]"#).unwrap();
    for template in [ChatTemplate::Native(Native::Chosen), demo_template()] {
        let segments = template.render(&conversation, &options, &controls()).unwrap();
        assert!(render_text(&segments).contains("a\0b"));
    }
}

#[test]
fn nesting_without_end_is_an_error() {
    let deep = "[".repeat(1_000_000);
    assert!(error(&deep).contains("recursion limit"));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Conversation::from_json(&bytes);
    }
}
