//! Whole passes against `Target::forward`, teacher-forced.

use crate::common::{Both, Draft, Work, assert_same, compare, compare_best, texts};

/// Hidden states, latents, taps and logits within the limits of bf16 (`tests/golden/check.py --bf16`: 0.08), for one row, a
/// few and many, over no context, within a page, at its edges and over several pages.
#[test]
fn passes_match_the_cpu_on_the_demo_target() {
    let Some(both) = Both::demo("passes_match_the_cpu_on_the_demo_target") else { return };
    let texts = texts();
    let committed = [0, 63, 64, 65, 150, 31];
    let mut work = Work::new(&both, committed.len(), true);
    let before: Vec<&[u32]> = texts.iter().zip(committed).map(|(text, count)| &text[..count]).collect();
    work.read(&before, 50);
    for sizes in [[1, 0, 0, 0, 0, 0], [1, 1, 1, 2, 1, 1], [9, 5, 4, 6, 8, 1], [17, 33, 9, 33, 65, 3]] {
        let draft = |(i, count): (usize, usize)| {
            let tokens = &texts[i][committed[i]..committed[i] + count];
            match (count, i % 2) {
                (0, _) => Draft { tokens: Vec::new(), parents: Vec::new() },
                (_, 0) => Draft::chain(tokens),
                _ => Draft::bushy(tokens, 5),
            }
        };
        let drafts: Vec<Draft> = sizes.into_iter().enumerate().map(draft).collect();
        let rows: usize = sizes.iter().sum();
        let (expected, margins) = work.expected(&drafts);
        // One row has launches of its own, which must have the bits of any other pass.
        let alone = (rows == 1).then(|| work.pass(&drafts, 1));
        // Buckets with padding and without.
        let found = work.pass(&drafts, if rows.is_multiple_of(2) { rows } else { rows.next_multiple_of(8) });
        if let Some(alone) = alone {
            assert_same("one row, hidden", (&alone.hidden, 0), (&found.hidden, 0));
            assert_same("one row, logits", (&alone.logits, 0), (&found.logits, 0));
            for (slot, (alone, found)) in alone.taps.iter().zip(&found.taps).enumerate() {
                assert_same(&format!("one row, tap {slot}"), (alone, 0), (found, 0));
            }
        }
        if rows > 1 {
            compare(&format!("{rows} rows, hidden"), &found.hidden, &expected.hidden, &margins, 0.05);
            compare(&format!("{rows} rows, logits"), &found.logits, &expected.logits, &margins, 0.05);
            let last = expected.latents.len() - 1;
            for layer in [0, last] {
                let what = format!("{rows} rows, latents of layer {layer}");
                compare(&what, &found.latents[layer], &expected.latents[layer], &margins, 0.05);
            }
            for (slot, tap) in found.taps.iter().enumerate() {
                compare(&format!("{rows} rows, tap {slot}"), tap, &expected.taps[slot], &margins, 0.05);
            }
            compare_best(&found.logits, &expected.logits, &margins, 1.0);
        }
    }
}
