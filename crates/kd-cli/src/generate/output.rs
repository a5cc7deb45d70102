//! What `kd generate` prints.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use anyhow::bail;
use kd_engine::{Engine, FinishReason, Models};
use serde_json::{Value, json};

use crate::args::GenerateArgs;
use crate::generate::{Outcome, Prepared, rate};

/// Prints text as it comes, or all of it at the end where streams would mix.
pub(crate) struct Printer<'a> {
    args: &'a GenerateArgs,
    streams: usize,
}

impl<'a> Printer<'a> {
    pub(crate) fn new(args: &'a GenerateArgs, prepared: &[Prepared]) -> Self {
        Self { args, streams: prepared.len() }
    }

    /// Shows the prompt before its continuation, on stderr: stdout holds nothing but the generated text.
    pub(crate) fn prompt(&self, engine: &Engine, prepared: &Prepared) -> anyhow::Result<()> {
        if let Some(tokenizer) = &engine.models().tokenizer {
            let text = tokenizer.decode(&prepared.request.prompt, false)?;
            let (dim, reset) = if stderr().is_terminal() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
            write!(stderr(), "{dim}{text}{reset}")?;
        }
        Ok(())
    }

    /// New text of a stream.
    pub(crate) fn text(&mut self, _stream: usize, text: &str) -> anyhow::Result<()> {
        if !self.args.json && self.streams == 1 {
            let mut out = stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }

    /// Everything that waits for the end.
    pub(crate) fn finish(
        &mut self,
        prepared: &[Prepared],
        outcomes: &[Outcome],
        plain: Option<&[Outcome]>,
    ) -> anyhow::Result<()> {
        let mut out = stdout().lock();
        if self.args.json {
            for (i, (p, outcome)) in prepared.iter().zip(outcomes).enumerate() {
                let mut line = json_line(i, p, outcome);
                if let Some(plain) = plain {
                    line["plain"] = json_line(i, p, &plain[i]);
                    line["identical"] = json!(plain[i].output_ids == outcome.output_ids);
                }
                writeln!(out, "{line}")?;
            }
            return Ok(());
        }
        if self.streams > 1 {
            for (i, outcome) in outcomes.iter().enumerate() {
                writeln!(out, "── stream {i} ──\n{}", outcome.text)?;
            }
        } else if outcomes.iter().all(|o| !o.text.ends_with('\n')) {
            writeln!(out)?;
        }
        out.flush()?;
        for (i, outcome) in outcomes.iter().enumerate().filter(|(_, o)| o.error.is_some()) {
            eprintln!("kd: stream {i}: {}", outcome.error.as_deref().unwrap_or_default());
        }
        if let Some(plain) = plain {
            if outcomes.iter().zip(plain).all(|(o, p)| o.output_ids == p.output_ids) {
                writeln!(out, "── plain decoding: the same tokens ──")?;
            } else {
                for (i, outcome) in plain.iter().enumerate() {
                    writeln!(out, "── plain decoding, stream {i} ──\n{}", outcome.text)?;
                }
            }
        }
        if !self.args.common.quiet {
            let seeds = prepared.iter().find(|p| p.request.params.temperature > 0.0);
            if let (Some(p), None) = (seeds, self.args.sampling.seed) {
                eprintln!("kd: seed {}", p.request.params.seed);
            }
            if plain.is_some() {
                eprintln!(
                    "kd: {}\nkd: {}",
                    summary("speculative", outcomes),
                    summary("plain", plain.unwrap_or(&[]))
                );
            } else {
                eprintln!("kd: {}", summary("generated", outcomes));
            }
        }
        Ok(())
    }
}

fn summary(what: &str, outcomes: &[Outcome]) -> String {
    let tokens: u64 = outcomes.iter().map(|o| o.stats.generated).sum();
    let rounds: u64 = outcomes.iter().map(|o| o.stats.rounds).sum();
    let gained: u64 = outcomes.iter().map(|o| o.stats.round_tokens).sum();
    let elapsed = outcomes.iter().map(|o| o.elapsed).max().unwrap_or(Duration::ZERO);
    let prefill = outcomes.iter().map(|o| o.stats.prefill).max().unwrap_or(Duration::ZERO);
    let per_round = if rounds > 0 { gained as f64 / rounds as f64 } else { 0.0 };
    format!(
        "{what}: {tokens} tokens, {rounds} rounds, {per_round:.2} tokens/round, {:.1} tokens/s, first token after {:.0} ms",
        rate(tokens, elapsed),
        prefill.as_secs_f64() * 1e3
    )
}

fn json_line(index: usize, prepared: &Prepared, outcome: &Outcome) -> Value {
    let stats = &outcome.stats;
    let reason = match outcome.reason {
        Some(FinishReason::Stop) => "stop",
        Some(FinishReason::Length) => "length",
        None => "error",
    };
    json!({
        "index": index,
        "prompt_ids": prepared.request.prompt,
        "output_ids": outcome.output_ids,
        "text": outcome.text,
        "finish_reason": reason,
        "seed": prepared.request.params.seed,
        "rounds": stats.rounds,
        "tokens_per_round": stats.tokens_per_round(),
        "acceptance_by_depth": stats.acceptance_by_depth(),
        "nodes_per_round": stats.nodes_per_round(),
        "prefill_seconds": stats.prefill.as_secs_f64(),
        "decode_seconds": stats.decode.as_secs_f64(),
        "tokens_per_second": stats.tokens_per_second(),
        "error": outcome.error,
    })
}

/// The models in a few words.
pub(crate) fn describe(models: &Models) -> String {
    let t = models.target.config();
    let target =
        format!("target {} layers x {}, {} experts", t.num_hidden_layers, t.hidden_size, t.n_routed_experts);
    match &models.drafter {
        Some(drafter) => format!("{target}; drafter block {}", drafter.config().block_size),
        None => format!("{target}; no drafter"),
    }
}

/// On the CPU speculation must not change a single token.
pub(crate) fn require_equal(outcomes: &[Outcome], plain: &[Outcome]) -> anyhow::Result<()> {
    for (i, (o, p)) in outcomes.iter().zip(plain).enumerate() {
        if o.output_ids != p.output_ids {
            let at = o.output_ids.iter().zip(&p.output_ids).take_while(|(a, b)| a == b).count();
            bail!("stream {i}: speculative and plain decoding differ from token {at} on; this is a bug");
        }
    }
    Ok(())
}
