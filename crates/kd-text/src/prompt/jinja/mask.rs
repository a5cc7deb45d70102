//! Private-use stand-ins for the characters that control strings begin and end with.

use std::borrow::Cow;

use minijinja::Environment;

use super::variables::Variables;

/// Code points without meaning, of which a rendering takes a few that occur nowhere in its input.
const PRIVATE_USE: [std::ops::RangeInclusive<char>; 3] =
    ['\u{e000}'..='\u{f8ff}', '\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

/// No private-use character is left.
#[derive(Debug)]
pub(super) struct Exhausted;

/// A one-to-one exchange of characters: lengths, trimming, slicing and joining are not disturbed by it.
#[derive(Debug)]
pub(super) struct Mask {
    pairs: Vec<(char, char)>,
}

impl Mask {
    /// A mask for `edges`, or `None` if no text has any of them and nothing needs to be masked.
    ///
    /// # Errors
    /// [`Exhausted`] if the input uses nearly every private-use character there is.
    pub(super) fn new(
        edges: &[char],
        input: &Variables,
        env: &Environment<'_>,
        template: &str,
    ) -> Result<Option<Self>, Exhausted> {
        let mut needed = false;
        input.each_text(&mut |text| needed |= text.contains(edges));
        if !needed {
            return Ok(None);
        }
        let mut used = Vec::new();
        let mut look =
            |text: &str| used.extend(text.chars().filter(|c| PRIVATE_USE.iter().any(|r| r.contains(c))));
        input.each_text(&mut look);
        if let Ok(template) = env.get_template(template) {
            look(template.source());
        }
        used.sort_unstable();
        used.dedup();
        let free = PRIVATE_USE.into_iter().flatten().filter(|c| used.binary_search(c).is_err());
        let pairs: Vec<_> = edges.iter().copied().zip(free).collect();
        if pairs.len() < edges.len() { Err(Exhausted) } else { Ok(Some(Self { pairs })) }
    }

    /// Replaces the characters by their stand-ins.
    pub(super) fn hide<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.exchange(text, |&(real, private)| (real, private))
    }

    /// Puts the characters back.
    pub(super) fn reveal<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.exchange(text, |&(real, private)| (private, real))
    }

    fn exchange<'t>(&self, text: &'t str, direction: impl Fn(&(char, char)) -> (char, char)) -> Cow<'t, str> {
        let swap = |c: char| self.pairs.iter().map(&direction).find(|(from, _)| *from == c).map(|(_, to)| to);
        if text.chars().all(|c| swap(c).is_none()) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(text.chars().map(|c| swap(c).unwrap_or(c)).collect())
    }
}
