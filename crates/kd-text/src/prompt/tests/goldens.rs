//! The published prompts.

use super::*;

#[test]
fn every_golden_prompt_is_rendered_exactly() {
    let (inputs, goldens) =
        (read_json("tests/golden/text/chat.inputs.json"), read_json("tests/golden/text/chat.json"));
    let (inputs, goldens) = (inputs.as_array().unwrap(), goldens.as_array().unwrap());
    assert!(inputs.len() == goldens.len() && !inputs.is_empty());
    for (input, golden) in inputs.iter().zip(goldens) {
        let segments = render_native(&conversation(input), &options(input)).unwrap();
        assert_eq!(render_text(&segments), golden["text"].as_str().unwrap(), "{}", golden["name"]);
    }
}

/// A template of our own that does what Kimi's does, with the constructs that Kimi's uses.
const KIMI_LIKE: &str = include_str!("kimi_like.jinja");

#[test]
fn a_template_like_kimis_gives_the_same_segments_as_the_native_renderer() {
    let template = template(KIMI_LIKE).unwrap();
    for golden in read_json("tests/golden/text/chat.json").as_array().unwrap() {
        let (conversation, options) = (conversation(golden), options(golden));
        let jinja = template.render(&conversation, &options, &controls()).unwrap();
        assert_eq!(render_text(&jinja), golden["text"].as_str().unwrap(), "{}", golden["name"]);
        assert_eq!(jinja, render_native(&conversation, &options).unwrap(), "{}", golden["name"]);
    }
}

#[test]
fn the_checkpoints_template_decides_the_renderer() {
    let dir = tempfile::tempdir().unwrap();
    let describe = |template: ChatTemplate| template.describe();
    assert_eq!(
        describe(ChatTemplate::from_dir(dir.path()).unwrap()),
        "native K2.6 renderer (no chat_template.jinja)"
    );
    let file = dir.path().join("chat_template.jinja");
    std::fs::write(&file, KIMI_LIKE).unwrap();
    let native = describe(ChatTemplate::from_dir(dir.path()).unwrap());
    assert_eq!(native, "native K2.6 renderer (chat_template.jinja reads tools_ts_str)");
    std::fs::write(&file, "{# tools_ts_str #}{{ messages[0].content }}").unwrap();
    let jinja = describe(ChatTemplate::from_dir(dir.path()).unwrap());
    assert_eq!(jinja, format!("Jinja template {}", file.display()));
    assert!(matches!(
        ChatTemplate::resolve(Some("native"), dir.path()),
        Ok(ChatTemplate::Native(Native::Chosen))
    ));
    assert!(matches!(ChatTemplate::resolve(file.to_str(), dir.path()), Ok(ChatTemplate::Jinja(_))));
    let missing = ChatTemplate::resolve(Some("/nowhere/x.jinja"), dir.path()).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/x.jinja"), "{missing}");
}

#[test]
fn pictures_are_refused_unless_a_placeholder_is_asked_for() {
    let json =
        br#"[{"role": "user", "content": ["look: ", {"type": "image_url", "image_url": {"url": "x"}}]}]"#;
    let (conversation, options) = Conversation::from_json(json).unwrap();
    for template in [ChatTemplate::Native(Native::Chosen), demo_template()] {
        let error = template.render(&conversation, &options, &controls()).unwrap_err().to_string();
        assert!(error.starts_with("messages[0].content[1]: image input is not supported"), "{error}");
    }
}
