//! Between JSON values and template values.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value as Jinja};
use serde_json::{Map, Number, Value};

/// Deepest nesting that is turned into JSON.
const MAX_DEPTH: usize = 200;

/// Calls `f` with every string in a JSON value, keys included.
pub(super) fn each_text(value: &Value, f: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => f(text),
        Value::Array(list) => list.iter().for_each(|v| each_text(v, f)),
        Value::Object(map) => map.iter().for_each(|(key, v)| {
            f(key);
            each_text(v, f);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A JSON value for a template, every string and key passed through `map`.
pub(super) fn from_json<'t>(value: &'t Value, map: &impl Fn(&'t str) -> Cow<'t, str>) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Jinja::from(i),
            (None, Some(u)) => Jinja::from(u),
            (None, None) => Jinja::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Jinja::from(map(text)),
        Value::Array(list) => list.iter().map(|v| from_json(v, map)).collect(),
        Value::Object(object) => {
            Jinja::from_pairs(object.iter().map(|(k, v)| (map(k).into_owned(), from_json(v, map))))
        }
    }
}

/// A template's value as JSON. Every item costs a unit of the template's work, so that a value that holds itself many
/// times over cannot grow without bound.
pub(super) fn to_json(state: &State<'_, '_>, value: &Jinja, depth: usize) -> Result<Value, Error> {
    state.consume_fuel(1)?;
    if depth > MAX_DEPTH {
        return Err(invalid(format!("tojson: nested deeper than {MAX_DEPTH} levels")));
    }
    match value.kind() {
        ValueKind::None => Ok(Value::Null),
        ValueKind::Bool => Ok(Value::Bool(value.is_true())),
        ValueKind::Number => number(value),
        ValueKind::String => Ok(Value::String(value.as_str().unwrap_or_default().to_owned())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| to_json(state, &item, depth + 1));
            Ok(Value::Array(items.collect::<Result<_, _>>()?))
        }
        ValueKind::Map => {
            let mut out = Map::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                out.insert(key.to_string(), to_json(state, &item, depth + 1)?);
            }
            Ok(Value::Object(out))
        }
        kind => Err(invalid(format!("tojson: a value of type {kind} is not JSON"))),
    }
}

fn number(value: &Jinja) -> Result<Value, Error> {
    if value.is_integer() {
        if let Ok(i) = i64::try_from(value.clone()) {
            return Ok(i.into());
        }
        return Ok(u64::try_from(value.clone())?.into());
    }
    let float = f64::try_from(value.clone())?;
    Number::from_f64(float).map(Value::Number).ok_or_else(|| invalid(format!("tojson: {float} is not JSON")))
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
