//! Stop strings under every way of cutting the text.

use kd_sample::stop::{StopError, StopMatcher};
use proptest::prelude::*;

/// The rule written out plainly: delivered text and the stop string that ended it.
fn specification<'a>(text: &'a str, stops: &[String]) -> (&'a str, Option<usize>) {
    for end in text.char_indices().map(|(i, c)| i + c.len_utf8()) {
        let complete = (0..stops.len()).filter(|&i| text[..end].ends_with(&stops[i]));
        if let Some(i) = complete.min_by_key(|&i| std::cmp::Reverse(stops[i].len())) {
            return (&text[..end - stops[i].len()], Some(i));
        }
    }
    (text, None)
}

/// Feeds the pieces; the delivered text, and the stop string that ended it.
fn feed<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops).unwrap();
    let mut out = String::new();
    for piece in pieces {
        matcher.push(piece, &mut out);
    }
    matcher.finish(&mut out);
    (out, matcher.stopped())
}

#[test]
fn stop_string_across_seams() {
    assert_eq!(feed(&["END"], ["abE", "N", "Dxyz", "more"]), ("ab".into(), Some(0)));
    assert_eq!(feed(&["END"], ["abEN", "EN", "x"]), ("abENENx".into(), None));
    assert_eq!(feed(&["aab"], ["a", "a", "a", "b", "c"]), ("a".into(), Some(0)));
    assert_eq!(feed(&["é!"], ["caf", "é", "!"]), ("caf".into(), Some(0)));
    assert_eq!(feed(&[], ["all ", "of it"]), ("all of it".into(), None));
    assert_eq!(feed(&["x"], ["x", "y"]), (String::new(), Some(0)));
}

#[test]
fn first_completed_wins_then_the_longest() {
    assert_eq!(feed(&["abcd", "bc"], ["zabcd"]), ("za".into(), Some(1)));
    assert_eq!(feed(&["c", "abc", "bc"], ["zabc"]), ("z".into(), Some(1)));
    assert_eq!(feed(&["same", "same"], ["the same"]), ("the ".into(), Some(0)));
}

#[test]
fn holds_back_no_more_than_it_must() {
    let mut matcher = StopMatcher::new(&["\n\nQ:", "\n\n\n"]).unwrap();
    let mut out = String::new();
    for (piece, delivered, held) in [
        ("one\n", "one", "\n"),
        ("\n", "one", "\n\n"),
        ("A: two", "one\n\nA: two", ""),
        ("\n\nQ", "one\n\nA: two", "\n\nQ"),
        ("?", "one\n\nA: two\n\nQ?", ""),
    ] {
        assert_eq!(matcher.push(piece, &mut out), None);
        assert_eq!((out.as_str(), matcher.held()), (delivered, held));
    }
    assert_eq!(matcher.push("\n\n\n tail", &mut out), Some(1));
    assert_eq!(matcher.push("more", &mut out), Some(1));
    matcher.finish(&mut out);
    assert_eq!((out.as_str(), matcher.held()), ("one\n\nA: two\n\nQ?", ""));
}

#[test]
fn empty_stop_string_is_refused() {
    assert_eq!(StopMatcher::new(&["a", ""]).unwrap_err(), StopError::Empty { index: 1 });
}

/// Quadratic work would take minutes here.
#[test]
fn fault_long_repetitive_text_is_quadratic() {
    let stop = "a".repeat(50_000) + "b";
    let mut matcher = StopMatcher::new(&[&stop]).unwrap();
    let mut out = String::new();
    for _ in 0..1_000_000 {
        assert_eq!(matcher.push("a", &mut out), None);
    }
    assert_eq!(out.len(), 950_000);
    assert_eq!(matcher.push("b", &mut out), Some(0));
    assert_eq!(out.len(), 950_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_chunking_delivers_the_same(
        text in "[abéß\n]{0,60}",
        stops in prop::collection::vec("[abéß\n]{1,5}", 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (want, want_stop) = specification(&text, &stops);
        let chars: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|i| chars[i.index(chars.len())]).chain([0, text.len()]).collect();
        cuts.sort_unstable();

        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut out = String::new();
        for cut in cuts.windows(2) {
            let stopped = matcher.push(&text[cut[0]..cut[1]], &mut out);
            prop_assert!(want.starts_with(&out), "delivered {:?} of {:?}", out, want);
            if stopped.is_none() {
                // What is held back begins a stop string, and all the rest has been delivered.
                prop_assert_eq!(format!("{out}{}", matcher.held()), &text[..cut[1]]);
                prop_assert!(matcher.held().is_empty() || stops.iter().any(|s| s.starts_with(matcher.held())));
            }
        }
        matcher.finish(&mut out);
        prop_assert_eq!(&out, want);
        prop_assert_eq!(matcher.stopped(), want_stop);
        for stop in &stops {
            prop_assert!(!out.contains(stop.as_str()));
        }
    }
}
