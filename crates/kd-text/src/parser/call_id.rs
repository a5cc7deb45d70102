//! Tool-call ids: `functions.NAME:INDEX`, and what models make of them.

/// What an id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId<'a> {
    /// The function's name; may hold dots and hyphens.
    pub name: &'a str,
    /// The call's index, if the id ends in one.
    pub index: Option<u64>,
}

impl<'a> CallId<'a> {
    /// Reads an id. The prefix `functions.` may be missing; `functions_NAME_INDEX`, to which some clients change ids
    /// that they send back, is understood as well.
    #[must_use]
    pub fn parse(id: &'a str) -> Self {
        let id = id.trim();
        if let Some((name, index)) = split_index(id, ':') {
            let name = ["functions.", "functions_"].iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
            return Self { name: name.trim(), index: Some(index) };
        }
        if let Some(rest) = id.strip_prefix("functions_") {
            return match split_index(rest, '_') {
                Some((name, index)) => Self { name, index: Some(index) },
                None => Self { name: rest, index: None },
            };
        }
        Self { name: id.strip_prefix("functions.").unwrap_or(id).trim(), index: None }
    }
}

/// The function that a tool-call id names.
#[must_use]
pub fn function_name(id: &str) -> &str {
    CallId::parse(id).name
}

fn split_index(id: &str, separator: char) -> Option<(&str, u64)> {
    let (name, index) = id.rsplit_once(separator)?;
    let digits = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
    Some((name, index.parse().ok().filter(|_| digits)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_kinds_are_read() {
        for (id, name, index) in [
            ("functions.get_weather:0", "get_weather", Some(0)),
            ("functions.mcp.files.read:12", "mcp.files.read", Some(12)),
            ("mcp.files.read:1", "mcp.files.read", Some(1)),
            ("functions.a-b:3", "a-b", Some(3)),
            ("functions.a:b:3", "a:b", Some(3)),
            ("search:2", "search", Some(2)),
            (" functions.查询:0 ", "查询", Some(0)),
            ("functions_get_weather_1", "get_weather", Some(1)),
            ("functions_get_weather", "get_weather", None),
            ("get_user_2", "get_user_2", None),
            ("functions.get_user_2", "get_user_2", None),
            ("functions.f:+1", "f:+1", None),
            ("functions.f:99999999999999999999", "f:99999999999999999999", None),
            ("functions.:0", "", Some(0)),
            ("", "", None),
        ] {
            assert_eq!(CallId::parse(id), CallId { name, index }, "{id}");
        }
    }
}
