//! Reading keys of a JSON object with errors that name the key, its value and what was expected.

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{ConfigError, ConfigProblem};

/// Shorter of the value as JSON and its first 80 characters: a message should not print a whole list.
const SHOWN: usize = 80;

/// One object of a configuration file, and the dotted path that leads to it.
///
/// A key whose value is null counts as absent: that is how the writers of these files say "unset".
#[derive(Clone)]
pub(super) struct Section<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    pub(super) fn root(value: &'a Value) -> Result<Self, ConfigProblem> {
        let not_an_object = || ConfigProblem::Invalid {
            key: "(top level)".to_owned(),
            found: show(value),
            expected: "an object".to_owned(),
        };
        Ok(Self { path: String::new(), map: value.as_object().ok_or_else(not_an_object)? })
    }

    /// The object under `key`.
    pub(super) fn section(&self, key: &str) -> Result<Option<Self>, ConfigProblem> {
        let map = self.read(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Self { path: format!("{}.", self.key(key)), map }))
    }

    /// The dotted path of one of this object's keys.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// `Ok(None)` if absent; an error if `convert` gives nothing.
    pub(super) fn read<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigProblem> {
        self.get(key).map(|value| convert(value).ok_or_else(|| self.invalid(key, expected))).transpose()
    }

    /// As [`Section::read`], with absence an error.
    pub(super) fn require<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, ConfigProblem> {
        self.read(key, expected, convert)?.ok_or_else(|| self.missing(key, expected))
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, ConfigProblem> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A whole number in `range`.
    pub(super) fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, ConfigProblem> {
        let expected = whole_number(&range);
        self.size_or_none(key, range)?.ok_or_else(|| self.missing(key, &expected))
    }

    /// A whole number in `range`, or nothing.
    pub(super) fn size_or_none(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ConfigProblem> {
        self.read(key, &whole_number(&range), |value| {
            value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .filter(|number| range.contains(number))
        })
    }

    /// A finite number that `holds`.
    pub(super) fn real(
        &self,
        key: &str,
        expected: &str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ConfigProblem> {
        self.read(key, expected, |value| value.as_f64().filter(|&number| number.is_finite() && holds(number)))
    }

    /// A token id below `vocab_size`.
    pub(super) fn token(&self, key: &str, vocab_size: usize) -> Result<Option<u32>, ConfigProblem> {
        self.read(key, &format!("a token id below {vocab_size}"), |value| token(value, vocab_size))
    }

    /// One token id or a list of them, each below `vocab_size`; none if absent.
    pub(super) fn tokens(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>, ConfigProblem> {
        let expected = format!("a token id below {vocab_size}, or a list of them");
        let ids = self.read(key, &expected, |value| match value {
            Value::Array(ids) => ids.iter().map(|id| token(id, vocab_size)).collect(),
            id => token(id, vocab_size).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// Refuses every value but `supported`; an absent key is the published default, which is supported.
    pub(super) fn only(&self, key: &str, supported: &[Value]) -> Result<(), ConfigProblem> {
        match self.get(key) {
            Some(value) if !supported.contains(value) => {
                let list: Vec<String> = supported.iter().map(show).collect();
                Err(self.unsupported(key, &list.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses every value: the key stands for something that is not implemented.
    pub(super) fn never(&self, key: &str) -> Result<(), ConfigProblem> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Object(map)) if map.is_empty() => Ok(()),
            Some(_) => Err(self.unsupported(key, "this key absent")),
        }
    }

    pub(super) fn missing(&self, key: &str, expected: &str) -> ConfigProblem {
        ConfigProblem::Missing { key: self.key(key), expected: expected.to_owned() }
    }

    pub(super) fn invalid(&self, key: &str, expected: &str) -> ConfigProblem {
        ConfigProblem::Invalid { key: self.key(key), found: self.show(key), expected: expected.to_owned() }
    }

    pub(super) fn unsupported(&self, key: &str, supported: &str) -> ConfigProblem {
        ConfigProblem::Unsupported {
            key: self.key(key),
            found: self.show(key),
            supported: supported.to_owned(),
        }
    }

    /// The value as messages show it.
    pub(super) fn show(&self, key: &str) -> String {
        self.map.get(key).map_or_else(|| "absent".to_owned(), show)
    }
}

/// The one value that all `places` of a setting give, or `None` if none gives any.
pub(super) fn agreed<T: PartialEq>(
    places: impl IntoIterator<Item = (String, Option<T>)>,
    show: impl Fn(&T) -> String,
) -> Result<Option<T>, ConfigProblem> {
    let mut given: Option<(String, T)> = None;
    for (key, value) in places {
        match (&given, value) {
            (Some((other_key, other)), Some(value)) if value != *other => {
                return Err(ConfigProblem::Conflict {
                    key,
                    found: show(&value),
                    other_key: other_key.clone(),
                    other: show(other),
                });
            }
            (None, Some(value)) => given = Some((key, value)),
            _ => {}
        }
    }
    Ok(given.map(|(_, value)| value))
}

/// Reads and parses a JSON file; `Ok(None)` if there is none.
pub(super) fn load(file: &Path) -> Result<Option<Value>, ConfigError> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(reason) => return Err(ConfigError::Io { file: file.to_path_buf(), reason }),
    };
    let value = serde_json::from_slice(&bytes)
        .map_err(|reason| ConfigError::Json { file: file.to_path_buf(), reason })?;
    Ok(Some(value))
}

/// As [`load`], with absence an error.
pub(super) fn load_required(file: &Path) -> Result<Value, ConfigError> {
    load(file)?.ok_or_else(|| ConfigError::Absent { file: file.to_path_buf() })
}

fn token(value: &Value, vocab_size: usize) -> Option<u32> {
    let id = u32::try_from(value.as_u64()?).ok()?;
    ((id as usize) < vocab_size).then_some(id)
}

fn whole_number(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

fn show(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    let head: String = text.chars().take(SHOWN).collect();
    format!("{head}…")
}
