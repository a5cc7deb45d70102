//! Streams: neighbours, padding, graphs.

use std::sync::{Arc, Mutex, MutexGuard};

use kd_kernels::ranks::OneRank;
use kd_kernels::{Buffer, KernelError, Stream, TensorRef};
use kd_model::cuda::{Committed, CudaError, DeviceLent};
use kd_tensor::Matrix;

use super::{Both, LIMITS, STARTS, bits};
use kd_attn::PAGE_TOKENS;

#[test]
fn a_stream_drafts_the_same_bits_whatever_its_neighbours() {
    let Some(mut both) = Both::demo("a_stream_drafts_the_same_bits_whatever_its_neighbours") else { return };
    both.read_all();
    let alone: Vec<Matrix> = (0..STARTS.len()).map(|at| both.draft(&[at], 0)).collect();
    let drafted = both.gpu.dims().drafted();
    let forwards: Vec<usize> = (0..STARTS.len()).collect();
    let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
    for (order, padding) in [(forwards, 0), (backwards, 1), (vec![3, 1], 7), (vec![5, 0, 4], 0)] {
        let together = both.draft(&order, padding);
        for (place, &at) in order.iter().enumerate() {
            let own = &together.data()[place * drafted * together.cols()..][..drafted * together.cols()];
            assert_eq!(
                bits(own),
                bits(alone[at].data()),
                "text {at} in {order:?} with {padding} padding streams"
            );
        }
    }
}

#[test]
fn padding_streams_change_no_context() {
    let Some(mut both) = Both::demo("padding_streams_change_no_context") else { return };
    both.read_all();
    let layers = 0..both.gpu.dims().layers.len();
    let cached = |both: &Both| -> Vec<Vec<u32>> {
        layers
            .clone()
            .map(|layer| bits(both.gpu.cached(&both.stream, layer).expect("copied").data()))
            .collect()
    };
    let before = cached(&both);
    both.draft(&[0], LIMITS.streams - 1);
    both.draft(&[], LIMITS.streams);
    assert_eq!(cached(&both), before);
}

/// What a graph owns.
struct Round {
    both: Both,
    /// Taps of the tokens of a round.
    taps: Buffer<half::bf16>,
}

const TOKENS: usize = 6;

fn locked(round: &Mutex<Round>) -> MutexGuard<'_, Round> {
    round.lock().expect("no panic while it is held")
}

/// A round's context, then its draft, of all streams that were planned.
fn record(stream: &Stream, round: &mut Arc<Mutex<Round>>) -> Result<(), KernelError> {
    let mut round = locked(round);
    let Round { both, taps } = &mut *round;
    let lent = DeviceLent { embed: &both.embed, head: &both.head };
    let taps = TensorRef::new(stream, taps.view(), [TOKENS, both.gpu.dims().tap_width])?;
    let rows = both.inputs.context(taps).map_err(kernel_error)?;
    both.gpu.context(stream, &OneRank, rows).map_err(kernel_error)?;
    let blocks = both.inputs.blocks(LIMITS.streams).map_err(kernel_error)?;
    both.gpu.draft(stream, &OneRank, lent, &blocks).map_err(kernel_error)
}

fn kernel_error(error: CudaError) -> KernelError {
    match error {
        CudaError::Kernel(error) => error,
        other => KernelError::Exchange { what: other.to_string() },
    }
}

#[test]
fn replays_give_the_bits_of_eager_drafts() {
    let test = "replays_give_the_bits_of_eager_drafts";
    let (Some(mut eager), Some(mut both)) = (Both::demo(test), Both::demo(test)) else { return };
    eager.read_all();
    both.read_all();
    let stream = both.stream.clone();
    let taps =
        Buffer::new(&stream, &vec![half::bf16::NAN; TOKENS * both.gpu.dims().tap_width]).expect("memory");
    let round = Arc::new(Mutex::new(Round { both, taps }));
    let graph = stream.capture(round.clone(), record).expect("a graph");
    // Streams that join, leave, change places; some commit a few tokens over a page edge first.
    for (order, committed) in
        [(vec![2, 0], 3), (vec![1, 6, 3, 5], TOKENS), (vec![4], 1), (vec![0, 1, 2, 3, 4, 5, 6, 7], 0)]
    {
        let grown = order[0];
        for both in [&mut eager, &mut locked(&round).both] {
            grow(both, grown, committed);
        }
        let first = eager.texts[grown].start - committed;
        eager.read(grown, first);
        let expected = eager.draft(&order, 0);
        let place = |text: &super::Text, position: usize| {
            Some(Committed { position, page: text.pages[position / PAGE_TOKENS] })
        };
        {
            let round = locked(&round);
            let (both, text) = (&round.both, &round.both.texts[grown]);
            let places: Vec<_> = (first..text.start).map(|position| place(text, position)).collect();
            let mut rows: Vec<half::bf16> =
                (first..text.start).flat_map(|position| text.taps.row(position).to_vec()).collect();
            rows.resize(TOKENS * text.taps.cols(), half::bf16::NAN);
            round.taps.write(&stream, &rows).expect("taps");
            both.inputs.write_context(&stream, &places).expect("inputs");
            let (bonus, segments) = both.streams(&order);
            both.inputs.write_blocks(&stream, &bonus, &segments).expect("inputs");
        }
        graph.launch().expect("a replay");
        let found = locked(&round).both.gpu.logits(&stream, order.len()).expect("logits");
        assert_eq!(bits(found.data()), bits(expected.data()), "{order:?}, {committed} committed");
    }
}

/// `tokens` more of a text are committed: those that it begins with, once more.
fn grow(both: &mut Both, at: usize, tokens: usize) {
    let text = &mut both.texts[at];
    let more: Vec<u32> = text.tokens.iter().copied().cycle().take(tokens).collect();
    let old = text.taps.rows();
    let rows = (0..old + tokens).flat_map(|row| text.taps.row(row % old).to_vec()).collect::<Vec<_>>();
    text.taps = kd_tensor::Bf16Matrix::new(old + tokens, text.taps.cols(), rows).expect("a shape");
    text.tokens.extend(more);
    text.start += tokens;
}
