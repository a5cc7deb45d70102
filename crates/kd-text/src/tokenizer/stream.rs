//! Incremental decoding: ids in, whole characters out.

use super::Tokenizer;
use crate::error::TokenizerError;

/// Decodes ids one by one. Every piece consists of whole characters, an incomplete one is held back until its last
/// byte arrives, and the pieces joined are what [`Tokenizer::decode`] gives for all ids at once.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Bytes of an incomplete character: at most three between calls.
    held: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a text. `skip_special` is that of [`Tokenizer::decode`].
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer: tokenizer.clone(), skip_special, held: Vec::new() }
    }

    /// The text that may be sent after `id`: possibly empty.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`] if no token has this id; the decoder is then as before the call.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let bytes = self.tokenizer.token_bytes(id)?;
        if self.skip_special && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.held.extend_from_slice(bytes);
        let incomplete = self.held.split_off(self.held.len() - incomplete_len(&self.held));
        let complete = std::mem::replace(&mut self.held, incomplete);
        Ok(String::from_utf8_lossy(&complete).into_owned())
    }

    /// Ends the text: U+FFFD for what was held back, nothing if nothing was. The decoder is then at the start of a
    /// new text.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How many bytes at the end of `bytes` may still become a character: 0 to 3.
///
/// The first two bytes of a UTF-8 encoded surrogate (ED A0 … ED BF) cannot, but like the published decoder this one
/// judges them only with the byte after them.
fn incomplete_len(bytes: &[u8]) -> usize {
    if let [.., 0xed, 0xa0..=0xbf] = bytes {
        return 2;
    }
    (1..=bytes.len().min(3))
        .rev()
        .find(|&len| {
            let tail = &bytes[bytes.len() - len..];
            // A lead byte whose sequence ends early, not an error inside it.
            tail[0] >= 0xc0
                && std::str::from_utf8(tail)
                    .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::incomplete_len;

    #[test]
    fn incomplete_tails() {
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"a", 0),
            (b"\x80", 0),
            (b"a\xc3", 1),
            (b"\xc3\xa9", 0),
            (b"\xc0", 0),
            (b"\xe4\xb8", 2),
            (b"\xe4\xb8\x96", 0),
            (b"\xe0\x80", 0),
            (b"\xed\xa0", 2),
            (b"\xed\xa0\x80", 0),
            (b"\xed\xa0\xed", 1),
            (b"\xf0\x9f\x99", 3),
            (b"\xf0\x9f\xf0\x9f", 2),
            (b"\xf0\x9f\x99\x82", 0),
            (b"\xf0\x9f\x99\x82\x80\x80", 0),
            (b"\xf4\x90", 0),
            (b"\xf5", 0),
        ] {
            assert_eq!(incomplete_len(bytes), expected, "{bytes:x?}");
        }
    }
}
