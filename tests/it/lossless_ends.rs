//! An answer ends where plain decoding ends it, also in the middle of an accepted path.

use kd_engine::{FinishReason, Request, SamplingParams};
use kd_tests::demo_models;
use kd_tests::drive::{Answer, alone, plain};

use crate::pairs::{BUDGETS, NARROW, TEMPERATURES, at, fixed, narrow, tree};

/// Whether the last round had more to give than the answer took: tokens that `max_tokens` cut off, or a node for the very
/// token that ended the answer.
fn ended_mid_path(answer: &Answer) -> bool {
    let before: usize = answer.rounds.iter().rev().skip(1).map(|r| r.tokens.len()).sum();
    answer.rounds.last().is_some_and(|last| {
        let (Some(&row), Some(&token)) = (last.rows.last(), last.tokens.last()) else { return false };
        1 + before + last.tokens.len() > answer.choices.len() || last.tree.child(row, token).is_some()
    })
}

#[test]
fn fault_17_max_tokens_cuts_a_path() {
    let models = narrow();
    let mut cut = 0;
    for max_tokens in [1, 2, 3, 4, 5] {
        for temperature in TEMPERATURES {
            let request = at(temperature, fixed(64, NARROW, max_tokens));
            let expected = plain(&models, &request);
            for budget in BUDGETS {
                let answer = alone(&models, &tree(budget, &request));
                answer.assert_equals(&expected, &format!("max_tokens {max_tokens}, budget {budget}"));
                assert_eq!(answer.choices.len(), max_tokens);
                assert_eq!(answer.end, Some(Ok(FinishReason::Length)));
                cut += usize::from(ended_mid_path(&answer));
            }
        }
    }
    assert!(cut > 0, "no path was cut");
}

#[test]
fn fault_17_eos_in_the_middle_of_a_path() {
    let models = narrow();
    let mut inside = 0;
    for stop in 0..NARROW as u32 {
        for temperature in TEMPERATURES {
            for min_tokens in [0, 6] {
                let mut request = at(temperature, fixed(1, NARROW, 40));
                // The stop id is rare, or answers would all end at once.
                request.params.logit_bias = vec![(stop, -1.5)];
                (request.params.stop_ids, request.params.min_tokens) = (vec![stop], min_tokens);
                let expected = plain(&models, &request);
                let answer = alone(&models, &tree(128, &request));
                answer.assert_equals(&expected, &format!("stop id {stop}"));
                let tokens = answer.tokens();
                if answer.end == Some(Ok(FinishReason::Stop)) {
                    assert_eq!(tokens.iter().position(|&t| t == stop), Some(tokens.len() - 1));
                    assert!(tokens.len() > min_tokens);
                    assert!(answer.text.chars().count() < tokens.len(), "the stop token has text");
                    inside += usize::from(ended_mid_path(&answer));
                } else {
                    assert!(!tokens.contains(&stop));
                }
            }
        }
    }
    assert!(inside > 2, "only {inside} answers ended in mid-path");
}

#[test]
fn fault_17_without_stop_ids_eos_is_an_ordinary_token() {
    let models = narrow();
    let eos = models.target.config().eos_token_ids[0];
    let request = at(1.3, fixed(5, NARROW, 40));
    let answer = alone(&models, &tree(64, &request));
    answer.assert_equals(&plain(&models, &request), "no stop ids");
    let at = answer.tokens().iter().position(|&t| t == eos).expect("EOS is emitted");
    assert!(at + 1 < answer.choices.len(), "the answer goes on after EOS");
}

#[test]
fn fault_17_a_stop_string_across_the_seam_of_two_rounds() {
    let models = narrow();
    let request = at(1.3, fixed(9, NARROW, 30));
    let whole = plain(&models, &request);
    assert_eq!(whole.text.chars().count(), 30, "every token is one character");
    let (mut across, mut within) = (0, 0);
    for len in [2, 3, 5] {
        for from in 0..30 - len {
            let stop: String = whole.text.chars().skip(from).take(len).collect();
            let request = Request { stop: vec![stop.clone()], ..request.clone() };
            let answer = alone(&models, &tree(64, &request));
            answer.assert_equals(&plain(&models, &request), &format!("stop {stop:?}"));
            assert_eq!(answer.end, Some(Ok(FinishReason::Stop)));
            assert_eq!(Some(answer.text.as_str()), whole.text.split(&stop).next(), "stop {stop:?}");
            // The last round begins at this token; does the stop string?
            let last = answer.rounds.last().map_or(0, |r| r.start + 1 - request.prompt.len());
            if answer.text.chars().count() < last { across += 1 } else { within += 1 }
        }
    }
    assert!(across > 5 && within > 5, "{across} across a seam, {within} within a round");
}

#[test]
fn text_held_back_for_a_stop_string_comes_at_the_end() {
    let models = narrow();
    let request = at(0.7, fixed(9, NARROW, 12));
    let whole = plain(&models, &request);
    // The answer ends with what might have begun this stop string.
    let tail: String = whole.text.chars().skip(8).collect();
    let request = Request { stop: vec![format!("{tail}~")], ..request };
    let answer = alone(&models, &tree(64, &request));
    answer.assert_equals(&plain(&models, &request), "held back");
    assert_eq!(answer.text, whole.text);
    assert_eq!(answer.end, Some(Ok(FinishReason::Length)));
}

#[test]
fn the_demo_pair_stops_in_mid_path_by_id_and_by_string() {
    let models = demo_models();
    let tokenizer = models.tokenizer.as_ref().expect("a tokenizer");
    let prompt = tokenizer.encode_ordinary("// itoa/src/lib.rs\n/// Writes an integer").expect("ids");
    let free = alone(&models, &tree(64, &Request::new(prompt.clone(), 24)));
    let tokens = free.tokens();
    // A token that first occurs inside an accepted path, neither its first nor its last.
    let index = |r: &kd_engine::Round| r.start + 1 - prompt.len();
    let inner = free.rounds.iter().flat_map(|r| index(r) + 1..index(r) + r.tokens.len() - 1);
    let first = inner.filter(|&i| i < tokens.len()).find(|&i| !tokens[..i].contains(&tokens[i]));
    let at = first.expect("a path of three tokens");
    let params = SamplingParams { stop_ids: vec![tokens[at]], ..SamplingParams::default() };
    let text = tokenizer.decode(&tokens[at - 1..=at], false).expect("text");
    for request in [
        Request { params, ..Request::new(prompt.clone(), 24) },
        Request { stop: vec![text], ..Request::new(prompt.clone(), 24) },
    ] {
        let answer = alone(&models, &tree(64, &request));
        answer.assert_equals(&plain(&models, &request), "demo stop");
        assert_eq!(answer.end, Some(Ok(FinishReason::Stop)));
        assert!(ended_mid_path(&answer) && answer.choices.len() <= at + 1);
    }
}
