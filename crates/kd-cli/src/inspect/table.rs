//! A report as text.

use std::io::{self, Write};

use super::report::Report;

/// Bytes in the largest unit of which there is at least one.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, bits)| bytes >> bits > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(name, bits)| format!("{:.2} {name}", bytes as f64 / (1u64 << bits) as f64),
    )
}

pub(super) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "{}", report.dir.display())?;
    if let Some(model) = &report.model {
        writeln!(out, "{}", model.kind)?;
        for line in model.sizes.chunks(3) {
            let cells: Vec<String> = line.iter().map(|(name, size)| format!("{name} {size}")).collect();
            writeln!(out, "  {}", cells.join(", "))?;
        }
        if !model.ignored_keys.is_empty() {
            writeln!(out, "  keys read over: {}", model.ignored_keys.join(", "))?;
        }
    }
    if let Some(c) = &report.constants {
        writeln!(out, "derived")?;
        writeln!(out, "  softmax scale {:.7}, rotary gain {}", c.softmax_scale, c.rope_gain)?;
        let yarn = c.yarn.as_ref().map_or_else(|| "none".to_owned(), Clone::clone);
        let [first, last] = c.inv_freq;
        writeln!(out, "  theta {}, YaRN {yarn}, inv_freq {first:.6e} … {last:.6e}", c.rope_theta)?;
        writeln!(out, "  {} bytes of cache a token, context of {} tokens", c.kv_bytes_per_token, c.context)?;
    }
    if let Some(text) = &report.text {
        let tokenizer = text.tokenizer.map_or_else(|| "none".to_owned(), |ids| format!("{ids} ids"));
        writeln!(out, "  tokenizer: {tokenizer}; chat: {}", text.template)?;
    }
    tensors(out, report)?;
    if !report.ranks.is_empty() {
        writeln!(out, "memory of a rank (before workspace, graphs and the driver's own)")?;
        for rank in &report.ranks {
            let weights = size(rank.weight_bytes);
            match rank.refused.as_slice() {
                [] => {
                    writeln!(
                        out,
                        "  --tp {:<3} {weights:>12} of weights, {:>10} tokens fit",
                        rank.tp, rank.kv_tokens
                    )?;
                }
                reasons => writeln!(out, "  --tp {:<3} refused: {}", rank.tp, reasons.join("; "))?,
            }
        }
    }
    for problem in &report.refused {
        writeln!(out, "refused: {problem}")?;
    }
    Ok(())
}

fn tensors(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let (count, bytes) =
        report.tensors.iter().fold((0, 0), |(n, b), group| (n + group.count, b + group.bytes));
    writeln!(out, "tensors: {count}, {}", size(bytes))?;
    for group in &report.tensors {
        let shape = format!("{:?}", group.shape);
        writeln!(
            out,
            "  {:>7} x {:<5} {shape:<18} {:>12}  {}",
            group.count,
            group.dtype,
            size(group.bytes),
            group.name
        )?;
    }
    if report.skipped > 0 {
        writeln!(out, "  of these {} vision tensors are skipped", report.skipped)?;
    }
    Ok(())
}
