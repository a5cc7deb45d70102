//! The base vocabulary: `tiktoken.model`, one token a line.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use rustc_hash::FxHashMap;

use crate::error::{TokenizerError, shorten};
use crate::file;

/// Token bytes by rank and rank by token bytes. A token's rank is its id and its merge priority at once.
pub(crate) struct Vocab {
    tokens: Vec<Box<[u8]>>,
    ranks: FxHashMap<Box<[u8]>, u32>,
    /// The token of each single byte.
    bytes: [u32; 256],
    longest: usize,
}

impl Vocab {
    /// Reads a file of lines `<base64 bytes> <rank>`. Ranks may come in any order but must be 0 … lines − 1, since the
    /// control ids start at the number of lines.
    pub(crate) fn load(path: &Path) -> Result<Self, TokenizerError> {
        let bytes = file::read(path, file::MAX_VOCAB_FILE).map_err(|reason| match reason.kind() {
            std::io::ErrorKind::NotFound => TokenizerError::Missing { path: path.to_owned() },
            _ => TokenizerError::Io { path: path.to_owned(), reason },
        })?;
        Self::parse(&bytes, path)
    }

    fn parse(file: &[u8], path: &Path) -> Result<Self, TokenizerError> {
        let fault = |line: usize, found: &[u8], expected: String| TokenizerError::VocabLine {
            path: path.to_owned(),
            line,
            found: shorten(&String::from_utf8_lossy(found)),
            expected,
        };

        let mut entries = Vec::new();
        for (index, line) in file.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let shape = || fault(index + 1, line, "`<base64 bytes> <rank>`".into());
            let space = line.iter().position(|&byte| byte == b' ').ok_or_else(shape)?;
            let token = STANDARD.decode(&line[..space]).map_err(|_| shape())?;
            let rank = std::str::from_utf8(&line[space + 1..]).ok().and_then(|rank| rank.parse::<u32>().ok());
            let rank = rank.ok_or_else(shape)?;
            if token.is_empty() {
                return Err(fault(index + 1, line, "a token of at least one byte".into()));
            }
            entries.push((index + 1, token.into_boxed_slice(), rank));
        }

        let count = entries.len();
        let mut tokens = vec![Box::default(); count];
        let mut ranks = FxHashMap::with_capacity_and_hasher(count, Default::default());
        for (line, token, rank) in entries {
            let bad_rank = |expected: String| fault(line, rank.to_string().as_bytes(), expected);
            let slot: &mut Box<[u8]> = tokens
                .get_mut(rank as usize)
                .ok_or_else(|| bad_rank(format!("a rank below {count}, the number of tokens in the file")))?;
            if !slot.is_empty() {
                return Err(bad_rank("a rank that no earlier line has".into()));
            }
            slot.clone_from(&token);
            if let Some(earlier) = ranks.insert(token, rank) {
                let expected = format!("a token other than that of rank {earlier}");
                return Err(fault(line, STANDARD.encode(&*slot).as_bytes(), expected));
            }
        }

        let mut bytes = [0; 256];
        for (byte, id) in (0..=u8::MAX).zip(&mut bytes) {
            let rank = ranks.get([byte].as_slice());
            *id = *rank.ok_or_else(|| TokenizerError::VocabByte { path: path.to_owned(), byte })?;
        }
        let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
        Ok(Self { tokens, ranks, bytes, longest })
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The bytes of a base token, `None` from the first control id on.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(|token| &**token)
    }

    /// The token of a single byte.
    pub(crate) fn byte(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    /// The rank of the token with exactly these bytes.
    pub(crate) fn rank(&self, bytes: &[u8]) -> Option<u32> {
        // Without the bound a long word would be hashed in full at every merge.
        if bytes.len() > self.longest { None } else { self.ranks.get(bytes).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All single bytes, then `extra` from line 257 on.
    fn parse(extra: &str) -> Result<Vocab, String> {
        let mut file: String =
            (0..=255u8).map(|byte| format!("{} {byte}\n", STANDARD.encode([byte]))).collect();
        file.push_str(extra);
        Vocab::parse(file.as_bytes(), Path::new("dir/tiktoken.model")).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_lines_in_any_order_and_line_ending() {
        let vocab = parse("YWJj 257\r\n\r\nYWI= 256").unwrap();
        assert_eq!((vocab.len(), vocab.longest), (258, 3));
        assert_eq!(
            (vocab.rank(b"ab"), vocab.rank(b"abc"), vocab.rank(b"abcd")),
            (Some(256), Some(257), None)
        );
        assert_eq!((vocab.bytes(257), vocab.bytes(258)), (Some(b"abc".as_slice()), None));
    }

    #[test]
    fn bad_lines_name_file_line_found_and_expected() {
        for (extra, parts) in [
            ("YWI=", &["dir/tiktoken.model, line 257", "\"YWI=\"", "<base64 bytes> <rank>"][..]),
            ("YW!= 256", &["line 257", "YW!= 256", "base64"]),
            ("YWI= 256 9", &["line 257", "YWI= 256 9"]),
            ("YWI= -1", &["line 257", "YWI= -1"]),
            ("YWI= 4294967296", &["line 257", "4294967296"]),
            (" 256", &["line 257", "at least one byte"]),
            ("\nYWI= 300", &["line 258", "\"300\"", "a rank below 257"]),
            ("YWI= 7", &["line 257", "\"7\"", "a rank that no earlier line has"]),
            ("YQ== 256", &["line 257", "\"YQ==\"", "other than that of rank 97"]),
            ("\u{fffd}\u{fffd} 256", &["line 257"]),
        ] {
            let error = parse(extra).err().unwrap_or_else(|| panic!("{extra:?} was accepted"));
            assert!(parts.iter().all(|part| error.contains(part)), "{extra:?}: {error}");
        }
    }

    #[test]
    fn a_vocabulary_without_all_bytes_is_refused() {
        let error = Vocab::parse(b"AA== 0\nAQ== 1\n", Path::new("m")).err().unwrap().to_string();
        assert!(error.contains("0x02"), "{error}");
        assert!(Vocab::parse(b"", Path::new("m")).is_err());
    }
}
