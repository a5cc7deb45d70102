//! Stop strings across token and round seams.
//!
//! The answer ends at the first character that completes a stop string; if several are completed by the same character,
//! the longest counts. The text before it is delivered, nothing of it or after it is. The result depends on the joined
//! text alone, not on how it was cut into pieces.

use thiserror::Error;

/// Why a list of stop strings was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StopError {
    /// An empty string would stop every answer before it began.
    #[error("stop string {index} is empty, but must have at least one character")]
    Empty {
        /// Index in the list.
        index: usize,
    },
}

/// One stop string with the state of its Knuth-Morris-Pratt search.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `border[n]`: length of the longest proper prefix of the first n + 1 bytes that is also their suffix.
    border: Box<[usize]>,
    /// Length of the longest prefix that the text read so far ends in.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut border = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            border[i] = extend(bytes, &border, border[i - 1], bytes[i]);
        }
        Self { bytes: bytes.into(), border: border.into(), matched: 0 }
    }

    /// Reads a byte and says whether it completes the string. Not to be called again after that.
    fn advance(&mut self, byte: u8) -> bool {
        self.matched = extend(&self.bytes, &self.border, self.matched, byte);
        self.matched == self.bytes.len()
    }
}

/// The longest prefix that ends in `byte`, given the longest one, `matched`, that ended before it.
fn extend(bytes: &[u8], border: &[usize], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && bytes[matched] != byte {
        matched = border[matched - 1];
    }
    matched + usize::from(bytes[matched] == byte)
}

/// Passes text through until a stop string appears, holding back what may be the beginning of one.
///
/// Time is linear in the text for each stop string, whatever the pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text not delivered yet, from `start` on.
    held: String,
    start: usize,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher of the given stop strings; with none, all text passes at once.
    ///
    /// # Errors
    /// [`StopError::Empty`] if one of them is empty.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        if let Some(index) = stops.iter().position(|s| s.as_ref().is_empty()) {
            return Err(StopError::Empty { index });
        }
        let patterns = stops.iter().map(|s| Pattern::new(s.as_ref())).collect();
        Ok(Self { patterns, held: String::new(), start: 0, stopped: None })
    }

    /// Reads the next piece of text and appends to `out` what is safe to deliver.
    ///
    /// Returns the index of the stop string once one is complete; from then on nothing is delivered any more.
    pub fn push(&mut self, piece: &str, out: &mut String) -> Option<usize> {
        if self.stopped.is_some() {
            return self.stopped;
        }
        let seam = self.held.len();
        self.held.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            if let Some(index) = self.advance(byte) {
                let end = seam + i + 1;
                self.deliver(end - self.patterns[index].bytes.len(), out);
                self.clear();
                self.stopped = Some(index);
                return self.stopped;
            }
        }
        // A prefix of a stop string begins with a whole character, so this is a character boundary.
        let back = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        self.deliver(self.held.len() - back, out);
        None
    }

    /// The text has ended: appends what was held back, which turned out to be no stop string.
    pub fn finish(&mut self, out: &mut String) {
        self.deliver(self.held.len(), out);
        self.clear();
        for p in &mut self.patterns {
            p.matched = 0;
        }
    }

    /// The text that is held back because a stop string may begin with it.
    pub fn held(&self) -> &str {
        &self.held[self.start..]
    }

    /// Index of the stop string that ended the text, if one has.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Reads a byte into every search; the longest of the stop strings that it completes, the first of equal ones.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for i in 0..self.patterns.len() {
            let longer = |j: usize| self.patterns[i].bytes.len() > self.patterns[j].bytes.len();
            let longest = complete.is_none_or(longer);
            if self.patterns[i].advance(byte) && longest {
                complete = Some(i);
            }
        }
        complete
    }

    fn deliver(&mut self, end: usize, out: &mut String) {
        out.push_str(&self.held[self.start..end]);
        self.start = end;
        // Moving the rest only when it is the smaller part keeps the total work linear.
        if 2 * self.start >= self.held.len() {
            self.held.drain(..self.start);
            self.start = 0;
        }
    }

    fn clear(&mut self) {
        self.held.clear();
        self.start = 0;
    }
}
