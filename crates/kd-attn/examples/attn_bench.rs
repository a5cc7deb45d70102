//! Times tree-verify attention on device 0 beside the floor of the same run, and records it.
//!
//! `attn_bench [--profile NAME] [--kernels DIR|FILE] [--streams LIST] [--nodes LIST] [--context LIST] [--variant NAME]
//! [--warm yes] [--out FILE]`, lists with commas. With `--warm yes` passes follow each other on one context, which then lies
//! in the L2 if it fits.

use std::fmt::Write as _;
use std::process::ExitCode;

use kd_attn::bench::{Cell, Measured, floors, measure};
use kd_kernels::{Device, Kernels, Search};

const SAMPLES: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attn_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut profile, mut search) = ("k26-tp8".to_owned(), Search::standard());
    let (mut streams, mut nodes, mut contexts) = (vec![1, 8, 16], vec![1, 9, 33, 65, 129], Vec::new());
    contexts.extend([0, 1024, 8192, 32_768, 131_072]);
    let (mut variant, mut cold, mut out) = (None, true, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let list = || value.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
        match flag.as_str() {
            "--streams" => streams = list()?,
            "--nodes" => nodes = list()?,
            "--context" => contexts = list()?,
            "--profile" => profile = value,
            "--kernels" => search = Search::only(value),
            "--variant" => variant = Some(value),
            "--warm" => cold = value != "yes",
            "--out" => out = Some(value),
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let device = Device::open(0)?;
    let kernels = Kernels::open(&device, &profile, &search)?;
    let rates = floors(&device, &kernels)?;
    let (read, mma) = (rates.read / 1e12, rates.mma / 1e12);
    println!("{}, {profile}: read {read:.2} TB/s, mma.sync {mma:.0} TFLOP/s", device.name());
    println!(
        "{:>7} {:>5} {:>7} {:>9} {:>9} {:>5} {:>6} {:>6} {:>8}",
        "streams", "nodes", "context", "us", "floor", "by", "ratio", "TB/s", "TFLOP/s"
    );
    let mut cells = Vec::new();
    for &streams in &streams {
        for &nodes in &nodes {
            for &context in &contexts {
                let cell = Cell { streams, nodes, context };
                let measured = measure(&device, &kernels, cell, cold, variant.as_deref(), SAMPLES)?;
                let (micros, (floor, by)) = (measured.micros(), measured.floor(&rates));
                println!(
                    "{streams:>7} {nodes:>5} {context:>7} {micros:>9.1} {floor:>9.2} {by:>5} {:>6.3} {:>6.2} {:>8.1}",
                    floor / micros,
                    measured.bytes / micros / 1e6,
                    measured.operations / micros / 1e6
                );
                cells.push(json(&measured));
            }
        }
    }
    if let Some(out) = out {
        let head = format!(
            "{{\n\"what\": \"tree_mla and tree_mla_merge, {profile}\",\n\"device\": \"{}\",\n\"cold\": {cold},\n\
             \"read_bytes_per_second\": {:.4e},\n\"mma_operations_per_second\": {:.4e},\n\"cells\": [\n",
            device.name(),
            rates.read,
            rates.mma
        );
        std::fs::write(out, format!("{head}{}\n]\n}}\n", cells.join(",\n")))?;
    }
    Ok(())
}

fn json(measured: &Measured) -> String {
    let Measured { cell, samples, copies, bytes, operations, partial_rows } = measured;
    let mut text = format!(
        "{{\"streams\": {}, \"nodes\": {}, \"context\": {}, \"copies\": {copies}, \"bytes\": {bytes:.0}, \
         \"operations\": {operations:.0}, \"partial_rows\": {partial_rows}, \"samples_us\": [",
        cell.streams, cell.nodes, cell.context
    );
    for (i, sample) in samples.iter().enumerate() {
        let _ = write!(text, "{}{sample:.2}", if i == 0 { "" } else { ", " });
    }
    text + "]}"
}
