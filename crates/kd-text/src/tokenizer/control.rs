//! The 256 control ids that follow the base vocabulary, named by `tokenizer_config.json`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::{Map, Value};

use crate::error::{TokenizerError, shorten};
use crate::file;

/// Number of control ids in every vocabulary of this family, named or not.
const COUNT: usize = 256;

struct Control {
    name: String,
    special: bool,
}

/// Names, flags and a matcher of the control ids.
pub(crate) struct ControlTokens {
    first: u32,
    tokens: Vec<Control>,
    ids: HashMap<String, u32>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Finds the leftmost control string, the longest one where several begin.
    pub(crate) matcher: Regex,
}

impl ControlTokens {
    /// Reads the configuration beside a vocabulary of `base` tokens. Ids it does not name become
    /// `<|reserved_token_ID|>`.
    pub(crate) fn load(path: &Path, base: usize) -> Result<Self, TokenizerError> {
        let bytes = file::read(path, file::MAX_TEXT_FILE)
            .map_err(|reason| TokenizerError::Io { path: path.to_owned(), reason })?;
        let config = serde_json::from_slice(&bytes)
            .map_err(|reason| TokenizerError::ConfigJson { path: path.to_owned(), reason })?;
        ConfigReader { path: path.to_owned(), config }.control_tokens(base)
    }

    pub(crate) fn name(&self, id: u32) -> Option<&str> {
        self.get(id).map(|token| token.name.as_str())
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.get(id).is_some_and(|token| token.special)
    }

    pub(crate) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    fn get(&self, id: u32) -> Option<&Control> {
        self.tokens.get(id.checked_sub(self.first)? as usize)
    }
}

/// The parsed file, with its path for messages.
struct ConfigReader {
    path: PathBuf,
    config: Map<String, Value>,
}

impl ConfigReader {
    fn control_tokens(&self, base: usize) -> Result<ControlTokens, TokenizerError> {
        let out_of_ids = |_| self.fault("vocabulary", &base.into(), "fewer than 2^32 - 256 tokens");
        let end = u32::try_from(base.saturating_add(COUNT)).map_err(out_of_ids)?;
        let first = end - COUNT as u32;

        let mut tokens: Vec<Control> = (first..end)
            .map(|id| Control { name: format!("<|reserved_token_{id}|>"), special: false })
            .collect();
        for (key, entry) in self.added_tokens()? {
            let field = format!("added_tokens_decoder.{key}");
            let range = format!("a control id, {first} to {} for a vocabulary of {base} tokens", end - 1);
            let id = key.parse::<u32>().ok().filter(|id| (first..end).contains(id));
            let id = id.ok_or_else(|| self.fault(&field, &key.as_str().into(), &range))?;
            tokens[(id - first) as usize] = self.control(&field, entry)?;
        }

        let mut ids = HashMap::with_capacity(COUNT);
        for (token, id) in tokens.iter().zip(first..) {
            if let Some(earlier) = ids.insert(token.name.clone(), id) {
                let field = format!("added_tokens_decoder.{id}.content");
                let expected = format!("a name other than that of id {earlier}");
                return Err(self.fault(&field, &token.name.as_str().into(), &expected));
            }
        }

        let mut names: Vec<&str> = tokens.iter().map(|token| token.name.as_str()).collect();
        names.sort_by_key(|name| Reverse(name.len()));
        let alternatives = names.into_iter().map(regex::escape).collect::<Vec<_>>().join("|");
        let matcher = Regex::new(&alternatives).map_err(|error| {
            self.fault("added_tokens_decoder", &error.to_string().into(), "names short enough for a matcher")
        })?;
        let bos = self.role("bos_token", "[BOS]", &ids)?;
        let eos = self.role("eos_token", "[EOS]", &ids)?;
        Ok(ControlTokens { first, tokens, ids, bos, eos, matcher })
    }

    fn added_tokens(&self) -> Result<&Map<String, Value>, TokenizerError> {
        let field = "added_tokens_decoder";
        let value = self.config.get(field).unwrap_or(&Value::Null);
        value.as_object().ok_or_else(|| self.fault(field, value, "an object from ids to tokens"))
    }

    fn control(&self, field: &str, entry: &Value) -> Result<Control, TokenizerError> {
        let name = entry.get("content").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| self.fault(field, entry, "an object with a non-empty `content`"))?;
        let special = match entry.get("special") {
            None => false,
            Some(Value::Bool(special)) => *special,
            Some(other) => return Err(self.fault(&format!("{field}.special"), other, "true or false")),
        };
        Ok(Control { name: name.to_owned(), special })
    }

    /// The id that a field such as `bos_token` names: a string or an object with `content`, null for none. Where the
    /// field is absent the published tokenizer falls back to `default`.
    fn role(
        &self,
        field: &str,
        default: &str,
        ids: &HashMap<String, u32>,
    ) -> Result<Option<u32>, TokenizerError> {
        let value = match self.config.get(field) {
            None => return Ok(ids.get(default).copied()),
            Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let name = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
        match name.and_then(|name| ids.get(name)) {
            Some(&id) => Ok(Some(id)),
            None => Err(self.fault(field, value, "the name of a control token, or null")),
        }
    }

    fn fault(&self, field: &str, found: &Value, expected: &str) -> TokenizerError {
        TokenizerError::ConfigField {
            path: self.path.clone(),
            field: field.to_owned(),
            found: shorten(&found.to_string()),
            expected: expected.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> Result<ControlTokens, String> {
        let Value::Object(config) = config else { panic!("the test gives an object") };
        ConfigReader { path: "tokenizer_config.json".into(), config }
            .control_tokens(256)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn names_flags_and_roles() {
        let control = read(json!({
            "added_tokens_decoder": {
                "256": {"content": "[BOS]", "special": true},
                "257": {"content": "<think>", "special": false},
                "258": {"content": "<think>x"},
            },
            "eos_token": {"content": "<think>"},
        }))
        .unwrap();
        assert_eq!((control.len(), control.bos, control.eos), (256, Some(256), Some(257)));
        assert!(control.is_special(256) && !control.is_special(257) && !control.is_special(258));
        assert!(!control.is_special(0) && !control.is_special(512));
        assert_eq!(control.name(511), Some("<|reserved_token_511|>"));
        assert_eq!((control.name(255), control.name(512)), (None, None));
        assert_eq!(control.id("<|reserved_token_300|>"), Some(300));
        assert_eq!(control.matcher.find("a<think>x").unwrap().as_str(), "<think>x", "the longest name wins");
    }

    #[test]
    fn a_null_role_is_none_and_an_absent_one_needs_its_default() {
        let control = read(json!({"added_tokens_decoder": {"300": {"content": "[BOS]"}}, "bos_token": null}));
        assert_eq!(control.map(|control| (control.bos, control.eos)), Ok((None, None)));
    }

    #[test]
    fn bad_fields_are_named() {
        for (config, parts) in [
            (json!({}), ["added_tokens_decoder", "found null"]),
            (json!({"added_tokens_decoder": {"255": {"content": "a"}}}), ["decoder.255", "256 to 511"]),
            (json!({"added_tokens_decoder": {"512": {"content": "a"}}}), ["decoder.512", "256 to 511"]),
            (json!({"added_tokens_decoder": {"x": {"content": "a"}}}), ["decoder.x", "a control id"]),
            (json!({"added_tokens_decoder": {"300": {"content": ""}}}), ["decoder.300", "non-empty"]),
            (json!({"added_tokens_decoder": {"300": "a"}}), ["decoder.300", "`content`"]),
            (
                json!({"added_tokens_decoder": {"300": {"content": "a", "special": 1}}}),
                ["300.special", "true or false"],
            ),
            (
                json!({"added_tokens_decoder": {"300": {"content": "a"}, "301": {"content": "a"}}}),
                ["decoder.301.content", "other than that of id 300"],
            ),
            (
                json!({"added_tokens_decoder": {"300": {"content": "<|reserved_token_301|>"}}}),
                ["decoder.301.content", "other than that of id 300"],
            ),
            (json!({"added_tokens_decoder": {}, "bos_token": "<s>"}), ["bos_token", "\"<s>\""]),
            (json!({"added_tokens_decoder": {}, "eos_token": 3}), ["eos_token", "found 3"]),
        ] {
            let error = read(config.clone()).err().unwrap_or_else(|| panic!("{config} was accepted"));
            assert!(parts.iter().all(|part| error.contains(part)), "{config}: {error}");
        }
    }
}
