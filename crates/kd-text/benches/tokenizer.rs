//! Encoding of 1 MB of mixed text and of one long run, and decoding: bytes per second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kd_text::{StreamDecoder, Tokenizer};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/target");

/// Code, prose in four scripts, digits, emoji and white space, repeated to 1 MB.
fn mixed_text() -> String {
    let sample = "fn main() {\n    println!(\"Hello, world!\"); // 12345\n}\n\nThe trees don't stop at the root, \
                  it's HTTPServer's turn.\t世界，你好。今天是2026年。Привет, мир! 안녕하세요 🙂🚀\r\n";
    sample.repeat(1_000_000 / sample.len() + 1)
}

fn bench(c: &mut Criterion) {
    let tokenizer = Tokenizer::from_dir(DEMO).expect("the demo checkpoint has a tokenizer");
    let text = mixed_text();
    let ids = tokenizer.encode_ordinary(&text).expect("1 MB is below the limit");

    let mut group = c.benchmark_group("encode");
    group.sample_size(20);
    for (name, text) in [("mixed_1mb", &text), ("one_letter_1mb", &"a".repeat(1_000_000))] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |b| b.iter(|| tokenizer.encode_ordinary(black_box(text))));
    }
    group.finish();

    let mut group = c.benchmark_group("decode");
    group.sample_size(20).throughput(Throughput::Elements(ids.len() as u64));
    group.bench_function("whole", |b| b.iter(|| tokenizer.decode(black_box(&ids), true)));
    group.bench_function("stream", |b| {
        b.iter(|| {
            let mut decoder = StreamDecoder::new(&tokenizer, true);
            let pieces = black_box(&ids).iter().map(|&id| decoder.push(id).expect("ids are in range").len());
            pieces.sum::<usize>()
        });
    });
    group.finish();
    c.bench_function("load", |b| b.iter(|| Tokenizer::from_dir(black_box(DEMO))));
}

criterion_group!(benches, bench);
criterion_main!(benches);
