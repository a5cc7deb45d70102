//! The Python methods of strings and dictionaries that chat templates call.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Bytes that one unit of work pays for.
const BYTES_PER_FUEL: usize = 64;

/// Answers a method call that the template engine does not know.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => dict(state, value, method, args),
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args),
        _ => Err(unknown(value.kind(), method)),
    }
}

fn unknown(kind: ValueKind, method: &str) -> Error {
    Error::new(ErrorKind::UnknownMethod, format!("a {kind} has no method named {method}"))
}

fn dict(state: &mut State<'_, '_>, map: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = map.get_item(key)?;
            Ok(if found.is_undefined() { default.unwrap_or_else(|| Value::from(())) } else { found })
        }
        "items" => {
            from_args::<()>(args)?;
            state.apply_filter("items", std::slice::from_ref(map))
        }
        "keys" => {
            from_args::<()>(args)?;
            Ok(map.try_iter()?.collect())
        }
        "values" => {
            from_args::<()>(args)?;
            map.try_iter()?.map(|key| map.get_item(&key)).collect()
        }
        _ => Err(unknown(ValueKind::Map, method)),
    }
}

fn string(state: &State<'_, '_>, s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64)?;
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (set,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
            let s = if method == "rstrip" { s } else { s.trim_start_matches(cut) };
            Value::from(if method == "lstrip" { s } else { s.trim_end_matches(cut) })
        }
        "removeprefix" => Value::from(from_args::<(&str,)>(args).map(|(p,)| s.strip_prefix(p).unwrap_or(s))?),
        "removesuffix" => Value::from(from_args::<(&str,)>(args).map(|(p,)| s.strip_suffix(p).unwrap_or(s))?),
        "startswith" => Value::from(any_of(args, |p| s.starts_with(p))?),
        "endswith" => Value::from(any_of(args, |p| s.ends_with(p))?),
        "upper" => no_args(args, s.to_uppercase())?,
        "lower" => no_args(args, s.to_lowercase())?,
        "title" => no_args(args, title(s))?,
        "capitalize" => no_args(args, capitalize(s))?,
        "isdigit" => no_args(args, !s.is_empty() && s.chars().all(char::is_numeric))?,
        "isalpha" => no_args(args, !s.is_empty() && s.chars().all(char::is_alphabetic))?,
        "isspace" => no_args(args, !s.is_empty() && s.chars().all(char::is_whitespace))?,
        "splitlines" => no_args(args, s.lines().map(Value::from).collect::<Value>())?,
        "find" | "rfind" => {
            let (needle,): (&str,) = from_args(args)?;
            let at = if method == "find" { s.find(needle) } else { s.rfind(needle) };
            Value::from(at.map_or(-1, |at| s[..at].chars().count() as i64))
        }
        "count" => Value::from(from_args::<(&str,)>(args).map(|(needle,)| s.matches(needle).count())?),
        "replace" => replace(state, s, args)?,
        "join" => join(state, s, args)?,
        "split" | "rsplit" => {
            // A list slot outweighs the byte that fills it.
            pay(state, s.len().saturating_mul(std::mem::size_of::<Value>()))?;
            split(s, method == "rsplit", args)?
        }
        _ => return Err(unknown(ValueKind::String, method)),
    })
}

fn no_args(args: &[Value], result: impl Into<Value>) -> Result<Value, Error> {
    from_args::<()>(args)?;
    Ok(result.into())
}

/// Tests one string, or each of a tuple.
fn any_of(args: &[Value], test: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    match wanted.as_str() {
        Some(one) => Ok(test(one)),
        None => Ok(wanted.try_iter()?.any(|w| w.as_str().is_some_and(&test))),
    }
}

fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + &chars.as_str().to_lowercase()
    })
}

fn title(s: &str) -> String {
    s.split_inclusive(|c: char| !c.is_alphabetic()).map(capitalize).collect()
}

/// `s.replace(old, new, count)`; the size of the result is paid for before it is made.
fn replace(state: &State<'_, '_>, s: &str, args: &[Value]) -> Result<Value, Error> {
    let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
    let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let hits = s.matches(old).count().min(count);
    pay(state, hits.saturating_mul(new.len()).saturating_add(s.len()))?;
    Ok(Value::from(s.replacen(old, new, count)))
}

/// `s.join(items)`; the size of the result is paid for before it is made.
fn join(state: &State<'_, '_>, s: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let Some(item) = item.as_str() else {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("join: item {i} is not a string")));
        };
        pay(state, s.len().saturating_add(item.len()).saturating_add(BYTES_PER_FUEL))?;
        if i > 0 {
            out.push_str(s);
        }
        out.push_str(item);
    }
    Ok(Value::from(out))
}

fn pay(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
}

/// `s.split(sep, maxsplit)` and `s.rsplit(…)`; without a separator at runs of white space.
fn split(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let limit = limit.or(kwargs.get("maxsplit")?);
    let limit = limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let separator = match separator {
        Some(v) => Some(v),
        None => kwargs.get::<Option<Value>>("sep")?,
    }
    .filter(|v| !v.is_none());
    kwargs.assert_all_used()?;
    let Some(separator) = separator else { return split_white(s, from_right, limit) };
    match separator.as_str() {
        None => Err(Error::new(ErrorKind::InvalidOperation, "split: the separator is not a string")),
        Some("") => Err(Error::new(ErrorKind::InvalidOperation, "split: the separator is empty")),
        Some(sep) if from_right => {
            let mut parts: Vec<&str> = s.rsplitn(limit.saturating_add(1), sep).collect();
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        Some(sep) => Ok(s.splitn(limit.saturating_add(1), sep).map(Value::from).collect()),
    }
}

fn split_white(s: &str, from_right: bool, limit: usize) -> Result<Value, Error> {
    let mut rest = s.trim();
    let mut parts = Vec::new();
    while parts.len() < limit {
        let cut = if from_right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(cut) = cut else { break };
        let width = rest[cut..].chars().next().map_or(1, char::len_utf8);
        let (left, right) = (&rest[..cut], &rest[cut + width..]);
        let (part, remainder) =
            if from_right { (right, left.trim_end()) } else { (left, right.trim_start()) };
        parts.push(Value::from(part));
        rest = remainder;
    }
    if !rest.is_empty() {
        parts.push(Value::from(rest));
    }
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts))
}
