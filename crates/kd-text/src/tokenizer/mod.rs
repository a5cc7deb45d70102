//! Kimi's tokenizer: byte-level BPE over `tiktoken.model`, 256 control ids, and the published encoder's exact cuts.
//!
//! Encoding goes text → [`cuts`] → ([`control`] strings) → [`split`] into words → [`bpe`] merges.

mod bpe;
mod control;
mod cuts;
mod split;
mod stream;
mod vocab;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use split::pattern;
pub use stream::StreamDecoder;

use crate::error::TokenizerError;
use bpe::Merger;
use control::ControlTokens;
use vocab::Vocab;

/// File name of the base vocabulary inside a checkpoint directory.
pub const VOCAB_FILE: &str = "tiktoken.model";
/// File name of the configuration that names the control ids.
pub const CONFIG_FILE: &str = "tokenizer_config.json";

/// The longest text that is encoded, in bytes; a longer one is an error before any work is done.
///
/// K2.6 has 262,144 positions and the longest tokens in use have 128 bytes, so no text above 32 MiB fits its context.
/// Twice that leaves room and bounds the time: seconds for most texts, some tens of seconds for one endless run.
pub const MAX_INPUT_BYTES: usize = 64 << 20;

/// A loaded tokenizer. Cloning is cheap: clones share the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    vocab: Vocab,
    control: ControlTokens,
}

impl Tokenizer {
    /// Loads [`VOCAB_FILE`] and [`CONFIG_FILE`] from a checkpoint directory.
    ///
    /// # Errors
    /// [`TokenizerError::Missing`] if there is no vocabulary file: such a checkpoint is usable with token ids. Any other
    /// error means that a tokenizer is there but damaged, and names file, place, what was found and what was expected.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let vocab = Vocab::load(&dir.as_ref().join(VOCAB_FILE))?;
        let control = ControlTokens::load(&dir.as_ref().join(CONFIG_FILE), vocab.len())?;
        Ok(Self { inner: Arc::new(Inner { vocab, control }) })
    }

    /// Number of ids: base tokens and the 256 control ids after them.
    pub fn vocab_size(&self) -> usize {
        self.base_vocab_size() + self.inner.control.len()
    }

    /// Number of base tokens, which is also the first control id.
    pub fn base_vocab_size(&self) -> usize {
        self.inner.vocab.len()
    }

    /// The control id with this name, as `<|im_end|>` or `<|reserved_token_ID|>`.
    pub fn token_id(&self, name: &str) -> Option<u32> {
        self.inner.control.id(name)
    }

    /// The name of a control id; `None` for a base token and for an id out of range.
    pub fn control_name(&self, id: u32) -> Option<&str> {
        self.inner.control.name(id)
    }

    /// The names of all control ids, reserved ones included.
    pub fn control_names(&self) -> impl Iterator<Item = &str> {
        let first = self.base_vocab_size() as u32;
        (first..).map_while(|id| self.control_name(id))
    }

    /// Begin-of-sequence: the control id that the configuration names as `bos_token`.
    pub fn bos_id(&self) -> Option<u32> {
        self.inner.control.bos
    }

    /// End-of-sequence: the control id that the configuration names as `eos_token`.
    pub fn eos_id(&self) -> Option<u32> {
        self.inner.control.eos
    }

    /// Whether `id` is one of the 256 control ids.
    pub fn is_control(&self, id: u32) -> bool {
        self.control_name(id).is_some()
    }

    /// Whether `id` is left out when special tokens are skipped: the control ids that the configuration marks
    /// `"special": true`. Tool markers, think tags and unnamed ids are control ids but not special.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.control.is_special(id)
    }

    /// Encodes plain text. Control strings such as `<|im_end|>` are ordinary characters, so the result never holds a
    /// control id.
    ///
    /// # Errors
    /// [`TokenizerError::InputTooLong`] above [`MAX_INPUT_BYTES`].
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, |encoder, piece| encoder.ordinary(piece))
    }

    /// Encodes as the published tokenizer does: every control string anywhere in the text becomes its id. Not for text
    /// that a user wrote; see [`encode_ordinary`](Self::encode_ordinary).
    ///
    /// # Errors
    /// [`TokenizerError::InputTooLong`] above [`MAX_INPUT_BYTES`].
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, |encoder, piece| encoder.with_special(piece))
    }

    fn encode(
        &self,
        text: &str,
        encode_piece: impl Fn(&mut Encoder<'_>, &str),
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_INPUT_BYTES {
            return Err(TokenizerError::InputTooLong { bytes: text.len(), limit: MAX_INPUT_BYTES });
        }
        let mut encoder = Encoder { tokenizer: &self.inner, merger: Merger::default(), ids: Vec::new() };
        for piece in cuts::cut(text) {
            encode_piece(&mut encoder, piece);
        }
        Ok(encoder.ids)
    }

    /// The bytes that `id` stands for: part of a text, not always whole characters, or a control id's name.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`] if no token has this id.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let control = || self.control_name(id).map(str::as_bytes);
        let bytes = self.inner.vocab.bytes(id).or_else(control);
        bytes.ok_or_else(|| TokenizerError::IdOutOfRange { id, vocab_size: self.vocab_size() })
    }

    /// The text of `ids`, with U+FFFD for each maximal part that is not UTF-8. `skip_special` leaves out the
    /// [special](Self::is_special) ids.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`] for the first id that no token has, also where it would be left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        let mut bytes = Vec::with_capacity(ids.len().saturating_mul(4));
        for &id in ids {
            let token = self.token_bytes(id)?;
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(token);
            }
        }
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

/// State of one encode call.
struct Encoder<'a> {
    tokenizer: &'a Inner,
    merger: Merger,
    ids: Vec<u32>,
}

impl Encoder<'_> {
    fn ordinary(&mut self, text: &str) {
        for word in split::words(text) {
            self.merger.merge(&self.tokenizer.vocab, word.as_bytes(), &mut self.ids);
        }
    }

    /// Words never reach across a control string, so the text between two of them is split on its own.
    fn with_special(&mut self, text: &str) {
        let control = &self.tokenizer.control;
        let mut start = 0;
        for name in control.matcher.find_iter(text) {
            self.ordinary(&text[start..name.start()]);
            self.ids.extend(control.id(name.as_str()));
            start = name.end();
        }
        self.ordinary(&text[start..]);
    }
}
