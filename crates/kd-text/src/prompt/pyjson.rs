//! JSON and scalars as Python prints them: the published template and tool encoder are Python.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

/// Layout of a JSON text, as the parameters of Python's `json.dumps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Style {
    /// Between items.
    pub(super) item: String,
    /// Between key and value.
    pub(super) key: String,
    /// One level of indentation; `None` writes everything on one line.
    pub(super) indent: Option<String>,
    /// Escape everything outside ASCII.
    pub(super) ensure_ascii: bool,
    /// Sort the keys of every object.
    pub(super) sort_keys: bool,
}

impl Default for Style {
    /// What chat templates get from `tojson`: Python's separators, Unicode kept.
    fn default() -> Self {
        Self { item: ", ".into(), key: ": ".into(), indent: None, ensure_ascii: false, sort_keys: false }
    }
}

impl Style {
    /// No white space at all.
    pub(super) fn compact() -> Self {
        Self { item: ",".into(), key: ":".into(), ..Self::default() }
    }
}

/// `json.dumps(value)`.
pub(super) fn dumps(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_json(&mut out, value, style, 0);
    out
}

fn write_json(out: &mut String, value: &Value, style: &Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&number(n)),
        Value::String(s) => write_string(out, s, style.ensure_ascii),
        Value::Array(list) => {
            write_items(out, style, depth, ['[', ']'], list.iter(), |out, v| {
                write_json(out, v, style, depth + 1)
            });
        }
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            if style.sort_keys {
                pairs.sort_unstable_by_key(|(k, _)| *k);
            }
            write_items(out, style, depth, ['{', '}'], pairs.into_iter(), |out, (k, v)| {
                write_string(out, k, style.ensure_ascii);
                out.push_str(&style.key);
                write_json(out, v, style, depth + 1);
            });
        }
    }
}

fn write_items<T>(
    out: &mut String,
    style: &Style,
    depth: usize,
    [open, close]: [char; 2],
    items: impl ExactSizeIterator<Item = T>,
    write: impl Fn(&mut String, T),
) {
    let newline = |out: &mut String, depth| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    let empty = items.len() == 0;
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        newline(out, depth + 1);
        write(out, item);
    }
    if !empty {
        newline(out, depth);
    }
    out.push(close);
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => repr(other),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(b) => if *b { "True" } else { "False" }.into(),
        Value::Number(n) => number(n),
        Value::String(text) => repr_string(text),
        Value::Array(list) => format!("[{}]", list.iter().map(repr).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pair = |(k, v): (&String, &Value)| format!("{}: {}", repr_string(k), repr(v));
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}

fn repr_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn number(n: &Number) -> String {
    match n.as_f64() {
        Some(f) if n.is_f64() => float(f),
        _ => n.to_string(),
    }
}

/// A float as Python's `repr`: shortest digits, an exponent below 1e-4 and from 1e16 on.
fn float(f: f64) -> String {
    let scientific = format!("{f:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(e) if !(-4..16).contains(&e) => {
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.unsigned_abs())
        }
        _ => {
            let plain = f.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

/// Whether Python takes a value for true.
pub(super) fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::String(s) => !s.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A copy with the keys of every object in code point order.
pub(super) fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(sorted).collect(),
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_unstable_by_key(|(k, _)| *k);
            Value::Object(pairs.into_iter().map(|(k, v)| (k.clone(), sorted(v))).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (f, expected) in [
            (1.5, "1.5"),
            (1.0, "1.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e-7, "1.25e-07"),
            (-2.5e300, "-2.5e+300"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(float(f), expected);
        }
    }

    #[test]
    fn json_prints_as_in_python() {
        let v = json!({"b": [1, {"k": null}], "a": "<é\u{1}\n😀>", "c": [], "d": {}});
        assert_eq!(
            dumps(&v, &Style::default()),
            r#"{"b": [1, {"k": null}], "a": "<é\u0001\n😀>", "c": [], "d": {}}"#
        );
        assert_eq!(
            dumps(&sorted(&v), &Style::compact()),
            r#"{"a":"<é\u0001\n😀>","b":[1,{"k":null}],"c":[],"d":{}}"#
        );
        let style =
            Style { item: ",".into(), indent: Some("  ".into()), ensure_ascii: true, ..Style::default() };
        assert_eq!(
            dumps(&v, &style),
            "{\n  \"b\": [\n    1,\n    {\n      \"k\": null\n    }\n  ],\n  \
             \"a\": \"<\\u00e9\\u0001\\n\\ud83d\\ude00>\",\n  \"c\": [],\n  \"d\": {}\n}"
        );
    }

    #[test]
    fn repr_prints_as_in_python() {
        assert_eq!(
            repr(&json!(["it's", "a\"b'", true, null, {"k": 1.0}])),
            r#"["it's", 'a"b\'', True, None, {'k': 1.0}]"#
        );
    }
}
