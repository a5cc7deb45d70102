//! Tool declarations: forms that the goldens do not show, by the published encoder's rules.

use serde_json::{Value, json};

use super::super::tools_ts::declare;

fn declaration(parameters: Value) -> String {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let text = declare(&[tool]);
    match text.strip_prefix("# Tools\n\n## functions\nnamespace functions {\n") {
        Some(rest) => rest.strip_suffix("\n}\n").unwrap().to_owned(),
        None => {
            assert!(text.starts_with("[{\"function\":"), "{text}");
            "json".to_owned()
        }
    }
}

#[test]
fn schemas_are_declared_by_their_form() {
    for (property, expected) in [
        (json!({}), "any"),
        (json!(true), "any"),
        (json!(false), "null"),
        (json!({"type": ["array", "object", "boolean"]}), "Array<any> | {} | boolean"),
        (json!({"enum": [1, 1.0, null, true, "a\"b"]}), "1 | 1.0 | None | True | \"a\"b\""),
        (json!({"enum": ["a", null], "type": ["null", "string"]}), "\"a\" | None"),
        (
            json!({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"enum": [2]}]}),
            "Array<number> | 2",
        ),
        (
            json!({"type": "array", "items": {"type": "string", "maxLength": 3}}),
            "Array<\n    // maxLength: 3\n    string\n  >",
        ),
        (json!({"type": "object", "additionalProperties": true}), "{\n    [k: string]: any\n  }"),
        (json!({"type": "object", "additionalProperties": null}), "{}"),
        (json!({"type": "file"}), "file"),
    ] {
        let expected = format!("type f = (_: {{\n  p?: {expected}\n}}) => any;");
        assert_eq!(declaration(json!({"properties": {"p": property}})), expected);
    }
}

#[test]
fn comments_carry_limits_and_defaults() {
    let schema = json!({"properties": {
        "a": {"type": "number", "maximum": 1e16, "minimum": -0.5, "default": 2},
        "b": {"type": "string", "pattern": "^x$", "default": {"é": [1, true]}},
        "c": {"anyOf": [{"type": "string"}], "description": "two\n\nlines", "default": null},
    }});
    let expected = "type f = (_: {\n  // maximum: 1e+16, minimum: -0.5\n  // Default: 2\n  a?: number,\n  \
                    // pattern: ^x$\n  // Default: {\"é\": [1, true]}\n  b?: string,\n  // two\n\n  // lines\n  c?: string\n}) => any;";
    assert_eq!(declaration(schema), expected);
}

#[test]
fn recursive_parameters_become_an_interface() {
    let schema = json!({"required": ["z"], "properties": {
        "z": {"type": "string"}, "a": {"type": "array", "items": {"$ref": "#"}},
    }});
    let expected =
        "interface parameters {\n  a?: Array<parameters>,\n  z: string\n}\ntype f = (_: parameters) => any;";
    assert_eq!(declaration(schema), expected);
}

#[test]
fn unknown_forms_fall_back_to_json() {
    for property in [
        json!({"oneOf": [{"type": "string"}]}),
        json!({"$ref": "#/definitions/x"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"type": ["string", "date"]}),
        json!({"type": "string", "enum": [1]}),
        json!({"type": ["string", "number", "null"], "enum": ["a"]}),
        json!({"type": "integer", "enum": [1.5]}),
        json!({"type": "object", "additionalProperties": "no"}),
        json!({"type": "string", "description": ["x"]}),
        json!({"anyOf": "x"}),
        json!("string"),
        json!(null),
    ] {
        assert_eq!(declaration(json!({"properties": {"p": property.clone()}})), "json", "{property}");
    }
    assert_eq!(declaration(json!({"properties": []})), "json");
    assert_eq!(declare(&[json!({"type": "_plugin", "b": 1, "a": 2})]), r#"[{"a":2,"b":1,"type":"_plugin"}]"#);
}
