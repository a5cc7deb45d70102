//! Captured passes: a replay serves any round that fits, and gives the bits of an eager pass.

use std::sync::{Arc, Mutex, MutexGuard};

use kd_kernels::ranks::OneRank;
use kd_kernels::{KernelError, Stream};
use kd_model::cuda::{Bucket, CudaError, CudaTarget, Move, PassState};

use crate::common::{Both, Draft, LIMITS, Work, assert_same, texts};

/// What a graph owns: the model, and the state that its owner goes on writing inputs to.
struct Round {
    gpu: CudaTarget,
    state: PassState,
    bucket: Bucket,
}

fn locked(round: &Mutex<Round>) -> MutexGuard<'_, Round> {
    round.lock().expect("no panic while it is held")
}

fn record(stream: &Stream, round: &mut Arc<Mutex<Round>>) -> Result<(), KernelError> {
    let mut round = locked(round);
    let Round { gpu, state, bucket } = &mut *round;
    let pass =
        gpu.forward(stream, state, *bucket, &OneRank).and_then(|()| gpu.logits(stream, state, bucket.rows));
    pass.and_then(|()| gpu.commit(stream, state, 8)).map_err(|error| match error {
        CudaError::Kernel(error) => error,
        other => KernelError::Exchange { what: other.to_string() },
    })
}

#[test]
fn replays_give_the_bits_of_eager_passes() {
    let Some(both) = Both::demo("replays_give_the_bits_of_eager_passes") else { return };
    let Some(other) = Both::demo("replays_give_the_bits_of_eager_passes") else { return };
    let texts = texts();
    let (mut eager, mut work) = (Work::new(&both, 2, false), Work::new(&other, 2, false));
    let before: Vec<&[u32]> = texts.iter().take(2).map(|text| &text[..60]).collect();
    eager.read(&before, 60);
    work.read(&before, 60);
    let bucket = Bucket { rows: 33, streams: LIMITS.streams, pages: LIMITS.table_width() };
    let Work { state, tables, .. } = work;
    let Both { gpu, stream, .. } = other;
    let round = Arc::new(Mutex::new(Round { gpu, state, bucket }));
    let graph = stream.capture(round.clone(), record).expect("a graph");
    let mut committed = [60, 60];
    for sizes in [[3, 30], [33, 0], [0, 2], [16, 17], [1, 1]] {
        let draft = |s: usize| {
            let tokens = &texts[s][committed[s]..committed[s] + sizes[s]];
            if tokens.is_empty() {
                Draft { tokens: Vec::new(), parents: Vec::new() }
            } else {
                Draft::bushy(tokens, 7)
            }
        };
        let drafts: Vec<Draft> = (0..2).map(draft).collect();
        let rows = sizes[0] + sizes[1];
        let expected = eager.pass(&drafts, rows);
        let nodes: Vec<usize> = sizes.iter().map(|size: &usize| size.saturating_sub(1).min(3)).collect();
        let (mut moves, mut first) = (Vec::new(), 0);
        for (s, draft) in drafts.iter().enumerate().filter(|(_, draft)| !draft.tokens.is_empty()) {
            let path: Vec<usize> = draft.path(nodes[s]).into_iter().map(|row| first + row).collect();
            moves.extend(Move::path(&path, &tables[s], committed[s]));
            committed[s] += path.len();
            first += draft.tokens.len();
        }
        {
            let mut round = locked(&round);
            eager.write(&drafts);
            let tokens: Vec<u32> = drafts.iter().flat_map(|draft| draft.tokens.clone()).collect();
            let ancestors: Vec<_> = drafts.iter().map(Draft::ancestors).collect();
            let segments: Vec<_> = (0..2)
                .map(|s| kd_attn::Segment {
                    pages: &tables[s],
                    committed: eager.committed[s],
                    rows: sizes[s],
                    mask: kd_attn::Mask::Tree(&ancestors[s]),
                })
                .collect();
            round.state.inputs.write(&stream, &tokens, &segments).expect("inputs");
            round.state.inputs.write_moves(&stream, &moves).expect("moves");
        }
        graph.launch().expect("a replay");
        let round = locked(&round);
        let (hidden, logits) = (round.state.hidden(&stream, rows), round.state.logits(&stream, rows));
        let (hidden, logits) = (hidden.expect("copied"), logits.expect("copied"));
        for row in 0..rows {
            assert_same(&format!("{sizes:?}: hidden"), (&hidden, row), (&expected.hidden, row));
            assert_same(&format!("{sizes:?}: logits"), (&logits, row), (&expected.logits, row));
        }
        drop(round);
        eager.state.inputs.write_moves(&both.stream, &moves).expect("moves");
        both.gpu.commit(&both.stream, &mut eager.state, moves.len()).expect("a commit");
        eager.committed.copy_from_slice(&committed);
    }
    // The host's side of the graph's resources is the same memory.
    assert_eq!(Arc::strong_count(&round), 2);
}
