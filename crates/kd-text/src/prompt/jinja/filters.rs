//! `tojson` as chat templates expect it: Python's `json.dumps`, nothing escaped for HTML.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, State, Value};

use super::convert::{invalid, to_json};
use crate::prompt::pyjson::{Style, dumps};

/// Widest indentation of one level.
const MAX_INDENT: usize = 64;

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    ascii: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let mut style = Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.or(ascii).unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent(kwargs.get::<Option<Value>>("indent")?)?,
        ..Style::default()
    };
    if style.indent.is_some() {
        style.item = ",".to_owned();
    }
    if let Some(separators) = kwargs.get::<Option<Value>>("separators")?.filter(|s| !s.is_none()) {
        let pair: Vec<Value> = separators.try_iter()?.collect();
        let [item, key] = pair.as_slice() else {
            return Err(invalid(format!(
                "tojson: separators must be two strings, not {} values",
                pair.len()
            )));
        };
        (style.item, style.key) = (item.to_string(), key.to_string());
    }
    kwargs.assert_all_used()?;
    Ok(dumps(&to_json(state, value, 0)?, &style))
}

fn indent(value: Option<Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(|v| !v.is_none()) else { return Ok(None) };
    let text = match value.kind() {
        ValueKind::String => value.to_string(),
        _ => " ".repeat(usize::try_from(value)?.min(MAX_INDENT + 1)),
    };
    if text.len() > MAX_INDENT {
        return Err(invalid(format!("tojson: indent must be at most {MAX_INDENT} characters wide")));
    }
    Ok(Some(text))
}
