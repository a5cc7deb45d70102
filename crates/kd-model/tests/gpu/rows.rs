//! A row's bits are those of plain decoding, whatever else is in the pass.

use crate::common::{Both, Draft, Work, assert_same, texts};

/// Tree rows of passes of 1 to 129 rows and several streams, against the same tokens decoded one by one.
#[test]
fn tree_rows_have_the_bits_of_plain_decoding() {
    let Some(both) = Both::demo("tree_rows_have_the_bits_of_plain_decoding") else { return };
    let texts = texts();
    let committed = [0, 58, 129];
    let before: Vec<&[u32]> = texts[3..].iter().zip(committed).map(|(text, count)| &text[..count]).collect();
    let tokens = |stream: usize, rows: usize| &texts[3 + stream][committed[stream]..committed[stream] + rows];

    // One by one: each token of the text alone, at every position.
    let steps = 20;
    let mut plain = Work::new(&both, 3, false);
    plain.read(&before, 50);
    let mut alone = Vec::new();
    for step in 0..steps {
        let drafts: Vec<Draft> = (0..3).map(|s| Draft::chain(&tokens(s, steps)[step..=step])).collect();
        alone.push(plain.pass(&drafts, 3));
        plain.commit(&drafts, &[0; 3], None);
    }
    for (sizes, bucket) in [([1, 1, 1], 3), ([20, 1, 1], 22), ([20, 17, 20], 57), ([20, 20, 20], 160)] {
        let mut tree = Work::new(&both, 3, false);
        tree.read(&before, 33);
        // The text as the last branch of a tree whose first nodes are others.
        let draft = |stream: usize| {
            let own = tokens(stream, sizes[stream]);
            let mut tokens = vec![own[0], 7, 8, 9];
            let mut parents = vec![0, 1, 0];
            tokens.extend(&own[1..]);
            parents.extend((4..tokens.len()).map(|node| if node == 4 { 0 } else { node - 1 }));
            if own.len() == 1 { Draft::chain(own) } else { Draft { tokens, parents } }
        };
        let drafts: Vec<Draft> = (0..3).map(draft).collect();
        let rows: usize = drafts.iter().map(|draft| draft.tokens.len()).sum();
        let found = tree.pass(&drafts, bucket.max(rows));
        let mut first = 0;
        for (stream, draft) in drafts.iter().enumerate() {
            for (step, alone) in alone.iter().enumerate().take(sizes[stream]) {
                let row = first + if step == 0 { 0 } else { step + 3 };
                let what = format!("{sizes:?}, stream {stream}, step {step}");
                assert_same(&format!("{what}: hidden"), (&found.hidden, row), (&alone.hidden, stream));
                assert_same(&format!("{what}: logits"), (&found.logits, row), (&alone.logits, stream));
            }
            first += draft.tokens.len();
        }
        // What a committed path leaves behind is what plain decoding leaves behind.
        let ends: Vec<usize> = drafts.iter().map(|draft| draft.tokens.len() - 1).collect();
        tree.commit(&drafts, &ends, None);
        if sizes == [steps; 3] {
            let next: Vec<Draft> = (0..3).map(|s| Draft::chain(&tokens(s, steps + 9)[steps..])).collect();
            let (after_tree, after_plain) = (tree.pass(&next, 27), plain.pass(&next, 40));
            for row in 0..27 {
                assert_same("after the commit", (&after_tree.logits, row), (&after_plain.logits, row));
            }
        }
    }
}
