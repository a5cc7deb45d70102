//! Prompt chunks: against the CPU, and against each other in other pieces.

use kd_attn::{Mask, Segment};
use kd_kernels::ranks::OneRank;
use kd_model::cuda::{ChunkLimits, PrefillState};

use crate::common::{Both, Draft, LIMITS, TAPS, Work, assert_same, compare, texts};

/// Larger than some prompts and smaller than others; a block of keys is a page.
const CHUNKS: ChunkLimits = ChunkLimits { rows: 200, streams: LIMITS.streams, block: 64 };

/// Reads `pieces`, a number of tokens for each stream, of `texts` as one chunk.
fn read(work: &mut Work<'_>, chunk: &mut PrefillState, texts: &[Vec<u32>], pieces: &[usize]) {
    let starts = work.committed.clone();
    let each = || pieces.iter().zip(&starts).enumerate();
    let tokens: Vec<u32> =
        each().flat_map(|(s, (count, start))| texts[s][*start..start + count].to_vec()).collect();
    let segments: Vec<Segment<'_>> = each()
        .map(|(s, (&rows, &committed))| Segment {
            pages: &work.tables[s],
            committed,
            rows,
            mask: Mask::Causal,
        })
        .collect();
    let Both { gpu, stream, .. } = work.both;
    gpu.prefill(stream, &mut work.state, chunk, &tokens, &segments, &OneRank).expect("a chunk");
    work.committed.iter_mut().zip(pieces).for_each(|(committed, count)| *committed += count);
}

fn chunks(work: &Work<'_>) -> PrefillState {
    let Both { gpu, stream, device, kernels, .. } = work.both;
    gpu.prefill_state(device, stream, kernels, &work.state, CHUNKS, 1).expect("memory for chunks")
}

#[test]
fn chunks_match_the_cpu_on_the_demo_target() {
    let Some(both) = Both::demo("chunks_match_the_cpu_on_the_demo_target") else { return };
    let texts = texts();
    let mut work = Work::new(&both, 3, true);
    let mut chunk = chunks(&work);
    for pieces in [[70, 1, 64], [65, 60, 0]] {
        let draft = |s: usize| match pieces[s] {
            0 => Draft { tokens: Vec::new(), parents: Vec::new() },
            count => Draft::chain(&texts[s][work.committed[s]..work.committed[s] + count]),
        };
        let drafts: Vec<Draft> = (0..3).map(draft).collect();
        let (expected, margins) = work.expected(&drafts);
        read(&mut work, &mut chunk, &texts, &pieces);
        let rows: usize = pieces.iter().sum();
        let found = chunk.hidden(&both.stream, rows).expect("copied");
        compare(&format!("{pieces:?}, hidden"), &found, &expected.hidden, &margins, 0.05);
        // The last row of each stream through the head.
        let ends: Vec<usize> =
            pieces.iter().scan(0, |end, count| Some(*end + count).inspect(|to| *end = *to)).collect();
        let last: Vec<usize> =
            ends.iter().zip(pieces).filter(|(_, count)| *count > 0).map(|(end, _)| end - 1).collect();
        chunk.inputs.choose(&both.stream, &last).expect("rows");
        both.gpu.prefill_logits(&both.stream, &mut work.state, &chunk, last.len()).expect("logits");
        let logits = work.state.logits(&both.stream, last.len()).expect("copied");
        let wanted = expected.logits.gather(last.iter().copied());
        let margins: Vec<f32> = last.iter().map(|row| margins[*row]).collect();
        println!("margins of the last rows: {margins:?}");
        compare(&format!("{pieces:?}, logits"), &logits, &wanted, &vec![1.0; last.len()], 0.2);
        // The CPU's cache, for the next chunk.
        let cache = work.cache.as_mut().expect("compared");
        for (s, &count) in pieces.iter().enumerate() {
            let rows: Vec<usize> = (ends[s] - count..ends[s]).collect();
            cache.commit(&expected.latents, &rows, &work.tables[s], work.committed[s] - count);
        }
    }
}

/// What chunks leave in the pages, and their taps, do not depend on where chunks begin, nor on what else is in them.
#[test]
fn prompts_have_the_same_bits_in_any_pieces() {
    let Some(both) = Both::demo("prompts_have_the_same_bits_in_any_pieces") else { return };
    let texts = texts();
    let plans: [&[[usize; 2]]; 4] =
        [&[[130, 0], [0, 66]], &[[130, 66]], &[[50, 1], [1, 64], [79, 1]], &[[64, 33], [64, 0], [2, 33]]];
    let width = both.gpu.dims().hidden * TAPS.len();
    let mut first: Option<(crate::common::Seen, Vec<Vec<u32>>)> = None;
    for plan in plans {
        let mut work = Work::new(&both, 2, false);
        let mut chunk = chunks(&work);
        let mut taps = vec![Vec::new(); 2];
        for pieces in plan {
            read(&mut work, &mut chunk, &texts, pieces);
            let kept = both.stream.cuda().clone_dtoh(&chunk.kept_taps(pieces.iter().sum()).expect("planned"));
            let mut kept = kept.expect("copied").into_iter().map(|value| u32::from(value.to_bits()));
            for (taps, rows) in taps.iter_mut().zip(pieces) {
                taps.extend(kept.by_ref().take(rows * width));
            }
        }
        let drafts = [Draft::bushy(&texts[0][130..140], 4), Draft::chain(&texts[1][66..73])];
        let seen = work.pass(&drafts, 17);
        match &first {
            None => first = Some((seen, taps)),
            Some((expected, expected_taps)) => {
                for row in 0..17 {
                    assert_same(&format!("{plan:?}"), (&seen.logits, row), (&expected.logits, row));
                }
                assert!(taps == *expected_taps, "{plan:?}: taps");
            }
        }
    }
}

/// A chunk whose rows have no pages is refused before anything runs.
#[test]
fn a_chunk_beyond_its_pages_is_refused() {
    let Some(both) = Both::demo("a_chunk_beyond_its_pages_is_refused") else { return };
    let mut work = Work::new(&both, 1, false);
    let mut chunk = chunks(&work);
    let segment = Segment { pages: &work.tables[0][..1], committed: 10, rows: 60, mask: Mask::Causal };
    let Both { gpu, stream, .. } = &both;
    let refused = gpu.prefill(stream, &mut work.state, &mut chunk, &[5; 60], &[segment], &OneRank);
    let message = refused.expect_err("beyond").to_string();
    assert!(message.contains("70") && message.contains("64"), "{message}");
}
