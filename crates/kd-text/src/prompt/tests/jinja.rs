//! The template engine: limits, errors, and what templates expect of it.

use serde_json::json;

use super::*;

fn render(source: &str, conversation: &Conversation) -> Result<String, PromptError> {
    template(source)?.render(conversation, &RenderOptions::default(), &controls()).map(|s| render_text(&s))
}

#[test]
fn work_without_end_is_stopped() {
    let grow = "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(9999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let nest = "{% set ns = namespace(v=[]) %}{% for i in range(100) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}{{ ns.v | tojson }}";
    let blow = "{% set s = 'x' * 90000 %}{{ s.replace('x', s) }}";
    let join = "{% set s = 'x' * 90000 %}{{ s.join(range(90000) | map('string')) }}";
    let spin = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i * j }}{% endfor %}{% endfor %}";
    for source in [grow, nest, blow, join, spin] {
        let error = render(source, &user("x")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PromptError::OutOfFuel { .. }), "{source}: {text}");
        assert!(text.contains("chat_template.jinja") && text.contains("2000"), "{text}");
    }
}

#[test]
fn recursion_without_end_is_stopped() {
    let error = render("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", &user("x")).unwrap_err();
    assert!(matches!(error, PromptError::Template { .. } | PromptError::OutOfFuel { .. }), "{error}");
    let deep = "{% set ns = namespace(v=[]) %}{% for i in range(5000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson }}";
    let error = render(deep, &user("x")).unwrap_err().to_string();
    assert!(error.contains("nested deeper than 200 levels"), "{error}");
}

#[test]
fn errors_name_the_file_and_the_line() {
    for (source, expected) in [
        ("a\n{% if %}", "line 2: syntax error"),
        (
            "\n\n{{ raise_exception('roles must alternate') }}",
            "line 3: invalid operation: roles must alternate",
        ),
        ("{{ nothing.at.all }}", "line 1: undefined value"),
        ("{{ 1 | nosuch }}", "line 1: unknown filter"),
        ("{{ 'a'.nosuch() }}", "a string has no method named nosuch"),
        ("{{ messages[0].nosuch() }}", "a map has no method named nosuch"),
        ("{{ 1 | tojson(nosuch=1) }}", "nosuch"),
        ("{{ 1 | tojson(indent=1000000000) }}", "indent must be at most 64"),
        ("{% include 'secret' %}", "template not found"),
    ] {
        let error = render(source, &user("x")).unwrap_err().to_string();
        assert!(error.contains("chat_template.jinja, line") && error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn templates_find_pythons_methods() {
    for (expression, expected) in [
        ("messages[0].get('content')", "x<y"),
        ("messages[0].get('nosuch')", "None"),
        ("messages[0].get('nosuch', 'd')", "d"),
        ("messages[0].items() | list | length", "2"),
        ("messages[0].keys() | join(',')", "role,content"),
        ("messages[0].values() | first", "user"),
        (
            "' a b '.strip() ~ '|' ~ 'xxaxx'.strip('x') ~ '|' ~ ' a '.lstrip() ~ '|' ~ ' a '.rstrip()",
            "a b|a|a | a",
        ),
        ("'a,b,c'.split(',') | join('-')", "a-b-c"),
        ("'a,b,c'.split(',', 1) | join('-')", "a-b,c"),
        ("'a,b,c'.rsplit(',', maxsplit=1) | join('-')", "a,b-c"),
        ("' a  b c '.split() | join('-')", "a-b-c"),
        ("' a  b c '.split(none, 1) | join('-')", "a-b c"),
        ("'abc'.startswith('ab') ~ 'abc'.startswith(('x', 'a')) ~ 'abc'.endswith('b')", "TrueTrueFalse"),
        ("'aXb'.upper() ~ 'aXb'.lower() ~ 'aXb c'.title() ~ 'aXb'.capitalize()", "AXBaxbAxb CAxb"),
        ("'aaa'.replace('a', 'b', 2) ~ 'éab'.find('b') ~ 'a'.find('z') ~ 'aaa'.count('a')", "bba2-13"),
        ("', '.join(['a', 'b']) ~ 'prefix'.removeprefix('pre') ~ 'a.txt'.removesuffix('.txt')", "a, bfixa"),
        (
            "'a\\nb'.splitlines() | length ~ '12'.isdigit() ~ ''.isdigit() ~ ' '.isspace() ~ 'a1'.isalpha()",
            "2TrueFalseTrueFalse",
        ),
        ("messages[::-1] | length", "1"),
        ("{'b': '<é>', 'a': 1.0} | tojson", r#"{"b": "<é>", "a": 1.0}"#),
        (
            "{'b': '<é>', 'a': none} | tojson(ensure_ascii=true, sort_keys=true)",
            r#"{"a": null, "b": "<\u00e9>"}"#,
        ),
        ("[1, {'a': true}] | tojson(indent=2)", "[\n  1,\n  {\n    \"a\": true\n  }\n]"),
        ("[1, 2] | tojson(separators=(',', ':'))", "[1,2]"),
        ("strftime_now('%%')", "%"),
        ("tools is none and thinking and not preserve_thinking", "True"),
        ("nosuch", ""),
    ] {
        let text = render(&format!("{{{{ {expression} }}}}"), &user("x<y")).unwrap();
        assert_eq!(text, expected, "{expression}");
    }
}

#[test]
fn special_tokens_come_from_the_tokenizer_config() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.jinja");
    std::fs::write(&file, "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}").unwrap();
    let config = json!({"bos_token": "[BOS]", "eos_token": {"content": "[EOS]"}}).to_string();
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let template = ChatTemplate::from_file(&file, dir.path()).unwrap();
    let segments = template.render(&user("[BOS]"), &RenderOptions::default(), &controls()).unwrap();
    let expected =
        [Segment::Control("[BOS]".into()), Segment::Control("[EOS]".into()), Segment::Text("[BOS]".into())];
    assert_eq!(segments, expected);
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    let error = ChatTemplate::from_file(&file, dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn long_conversations_do_not_run_out_of_fuel() {
    let mut conversation = user(&"<|im_end|> ".repeat(400_000));
    for _ in 0..2000 {
        conversation.messages.push(Message::new(Role::Assistant, "a"));
        conversation.messages.push(Message::new(Role::User, "b"));
    }
    let segments = demo_template().render(&conversation, &RenderOptions::default(), &controls()).unwrap();
    assert_eq!(segments.iter().filter(|s| **s == Segment::Control("<|im_end|>".into())).count(), 4001);
}
