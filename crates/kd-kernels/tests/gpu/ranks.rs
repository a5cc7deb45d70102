//! Partial sums of ranks that meet in front of the residual add, whoever brings them together.

use half::bf16;
use kd_kernels::families::add_rms_norm;
use kd_kernels::ranks::{Exchange, InProcessRanks, Nccl, NcclId, OneRank, Order};
use kd_kernels::{Choice, KernelError, Kernels, Stream, TensorMut, TensorRef, selftest, testing};

const ROWS: usize = 5;
const WIDTH: usize = 7168;

/// The residual stream after `part` of this rank has met those of the others.
fn residual(
    kernels: &Kernels,
    exchange: &dyn Exchange,
    stream: &Stream,
    part: &[bf16],
) -> Result<Vec<bf16>, KernelError> {
    let upload = |values: &[bf16]| stream.cuda().clone_htod(values).expect("memory");
    let (mut h, gain) = (upload(&residual_before()), upload(&[bf16::ONE; WIDTH]));
    // What lies behind the elements that are exchanged must not matter.
    let mut part = upload(&[part, &[bf16::NAN; 8]].concat());
    let mut room = upload(&vec![bf16::NAN; exchange.parts() * ROWS * WIDTH]);
    let mut y = upload(&[bf16::ZERO; ROWS * WIDTH]);
    let norm = add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h: WIDTH as i64 })?;
    let parts = exchange.meet(stream, &mut part, ROWS * WIDTH, &mut room)?;
    let args = add_rms_norm::Args {
        h: TensorMut::new(stream, h.as_view_mut(), [ROWS, WIDTH])?,
        parts: TensorRef::new(stream, parts, [exchange.parts(), ROWS, WIDTH])?,
        gain: TensorRef::new(stream, gain.as_view(), [WIDTH])?,
        eps: 1e-5,
        early: 0,
        tap: TensorMut::none([0, WIDTH]),
        y: TensorMut::new(stream, y.as_view_mut(), [ROWS, WIDTH])?,
    };
    norm.launch(stream, Choice::Auto, args)?;
    let h = stream.cuda().clone_dtoh(&h).expect("copied");
    stream.synchronize()?;
    Ok(h)
}

fn residual_before() -> Vec<bf16> {
    selftest::Random::new(1).values(ROWS * WIDTH, 1.0)
}

/// Parts that cancel: what the small ones keep depends on when the large ones are added.
fn parts(ranks: usize) -> Vec<Vec<bf16>> {
    let scale = |rank: usize| [1.0, 3e7, 1.0, -3e7][rank % 4];
    let part = |rank: usize| selftest::Random::new(10 + (rank % 2) as u64).values(ROWS * WIDTH, scale(rank));
    (0..ranks).map(part).collect()
}

fn expected(parts: &[Vec<bf16>]) -> Vec<bf16> {
    let sum = |i: usize| parts[1..].iter().fold(parts[0][i].to_f32(), |sum, part| sum + part[i].to_f32());
    residual_before().iter().enumerate().map(|(i, h)| bf16::from_f32(h.to_f32() + sum(i))).collect()
}

#[test]
fn four_ranks_in_one_process_add_in_rank_order() {
    let test = "four_ranks_in_one_process_add_in_rank_order";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let parts = parts(4);
    let expected = expected(&parts);
    let mut turned = parts.clone();
    turned.rotate_left(1);
    assert_ne!(expected, self::expected(&turned), "these parts would not show another order");
    let found: Vec<_> = std::thread::scope(|scope| {
        let ranks = InProcessRanks::connect(4).into_iter().zip(&parts);
        let threads: Vec<_> = ranks
            .map(|(exchange, part)| {
                let (device, kernels) = (&device, &kernels);
                scope.spawn(move || {
                    let stream = device.stream().expect("a stream");
                    let first = residual(kernels, &exchange, &stream, part);
                    (first, residual(kernels, &exchange, &stream, part))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    });
    for (rank, (first, second)) in found.into_iter().enumerate() {
        assert!(first.expect("exchanged") == expected, "rank {rank}");
        assert!(second.expect("exchanged again") == expected, "rank {rank}, second exchange");
    }
}

#[test]
fn ranks_that_disagree_all_fail() {
    let Some((device, _)) = testing::kernels_or_skip("ranks_that_disagree_all_fail", "k26-tp8") else {
        return;
    };
    std::thread::scope(|scope| {
        for (rank, exchange) in InProcessRanks::connect(3).into_iter().enumerate() {
            let device = &device;
            scope.spawn(move || {
                let stream = device.stream().expect("a stream");
                let zeros = |count| stream.cuda().alloc_zeros::<bf16>(count).expect("memory");
                let (mut part, mut room) = (zeros(16), zeros(64));
                let met = exchange.meet(&stream, &mut part, 8 + 8 * (rank / 2), &mut room).map(drop);
                assert!(matches!(met, Err(KernelError::Exchange { .. })), "rank {rank}: {met:?}");
            });
        }
    });
}

#[test]
fn one_rank_is_its_own_sum_with_and_without_nccl() {
    let test = "one_rank_is_its_own_sum_with_and_without_nccl";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let parts = parts(1);
    let expected = expected(&parts);
    let stream = device.stream().expect("a stream");
    let alone = residual(&kernels, &OneRank, &stream, &parts[0]).expect("added");
    assert!(alone == expected, "one rank");
    for order in [Order::Ranks, Order::Any] {
        let nccl = NcclId::new().and_then(|id| Nccl::join(&stream, 0, 1, id, order));
        let nccl = match nccl {
            Ok(nccl) => nccl,
            Err(error) => return eprintln!("NCCL was not tried: {error}"),
        };
        let found = residual(&kernels, &nccl, &stream, &parts[0]).expect("added");
        assert!(found == expected, "NCCL, {order:?}");
        let other = device.stream().expect("a stream");
        let refused = residual(&kernels, &nccl, &other, &parts[0]);
        assert!(matches!(refused, Err(KernelError::Exchange { .. })), "another stream");
    }
}
