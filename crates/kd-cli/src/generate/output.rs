//! What `kd generate` prints.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use anyhow::bail;
use kd_engine::{Engine, FinishReason, Request};
use serde_json::{Value, json};

use crate::args::GenerateArgs;
use crate::generate::Outcome;

/// Prints text as it comes, or all of it at the end where streams would mix.
pub(crate) struct Printer<'a> {
    args: &'a GenerateArgs,
    requests: &'a [Request],
    /// Whether there is one stream whose text can be printed as it comes.
    live: bool,
    /// Whether there is a tokenizer; without one, ids are printed.
    has_text: bool,
}

impl<'a> Printer<'a> {
    pub(crate) fn new(args: &'a GenerateArgs, requests: &'a [Request], engine: &Engine) -> Self {
        let has_text = engine.models().tokenizer.is_some();
        Self { args, requests, live: !args.json && requests.len() == 1, has_text }
    }

    /// Shows the prompt before its continuation, on stderr: stdout holds nothing but the generated text.
    pub(crate) fn prompt(&self, engine: &Engine) -> anyhow::Result<()> {
        if let (true, false, Some(tokenizer)) =
            (self.live, self.args.common.quiet, &engine.models().tokenizer)
        {
            let known =
                self.requests[0].prompt.iter().copied().filter(|&id| (id as usize) < tokenizer.vocab_size());
            let text = tokenizer.decode(&known.collect::<Vec<_>>(), false)?;
            let (dim, reset) = if stderr().is_terminal() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
            // As with every note: where it cannot be written, the work goes on.
            let _ = write!(stderr(), "{dim}{text}{reset}");
        }
        Ok(())
    }

    /// New text.
    pub(crate) fn text(&self, text: &str) -> anyhow::Result<()> {
        if self.live {
            let mut out = stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }

    /// Everything that waits for the end.
    pub(crate) fn finish(&self, outcomes: &[Outcome], plain: Option<&[Outcome]>) -> anyhow::Result<()> {
        if self.args.json {
            self.json(outcomes, plain)?;
        } else {
            self.texts(outcomes, plain)?;
        }
        // The error of a single stream is the error of the run.
        for (i, outcome) in outcomes.iter().enumerate().filter(|_| outcomes.len() > 1) {
            if let Some(error) = &outcome.error {
                say!("kd: stream {i}: {error}");
            }
        }
        if !self.args.common.quiet {
            self.report(outcomes, plain);
        }
        Ok(())
    }

    /// After an interruption: the streams that had ended by then. The others have said nothing that is final.
    pub(crate) fn cut_short(&self, outcomes: &[Outcome]) -> anyhow::Result<()> {
        if self.args.json { self.json(outcomes, None) } else { Ok(()) }
    }

    fn json(&self, outcomes: &[Outcome], plain: Option<&[Outcome]>) -> anyhow::Result<()> {
        let mut out = stdout().lock();
        let ended = self.requests.iter().zip(outcomes).enumerate();
        for (i, (request, outcome)) in ended.filter(|(_, (_, outcome))| outcome.is_final()) {
            let mut line = json_line(i, request, outcome);
            if let Some(plain) = plain {
                line["plain"] = json_line(i, request, &plain[i]);
                line["identical"] = json!(plain[i].output_ids == outcome.output_ids);
            }
            writeln!(out, "{line}")?;
        }
        Ok(out.flush()?)
    }

    fn texts(&self, outcomes: &[Outcome], plain: Option<&[Outcome]>) -> anyhow::Result<()> {
        let mut out = stdout().lock();
        for (i, outcome) in outcomes.iter().enumerate() {
            if !self.live {
                writeln!(out, "── stream {i} ──")?;
            }
            if !self.has_text {
                writeln!(out, "{}", ids(&outcome.output_ids))?;
            } else if !self.live {
                writeln!(out, "{}", outcome.text)?;
            } else if !outcome.output_ids.is_empty() && !outcome.text.ends_with('\n') {
                writeln!(out)?;
            }
        }
        for (i, (outcome, plain)) in outcomes.iter().zip(plain.unwrap_or(&[])).enumerate() {
            if outcome.error.is_some() {
                continue;
            }
            if outcome.output_ids == plain.output_ids {
                writeln!(
                    out,
                    "── plain decoding, stream {i}: the same {} tokens ──",
                    plain.output_ids.len()
                )?;
            } else {
                writeln!(out, "── plain decoding, stream {i} ──\n{}", plain.text)?;
            }
        }
        Ok(out.flush()?)
    }

    fn report(&self, outcomes: &[Outcome], plain: Option<&[Outcome]>) {
        let random = self.requests.iter().find(|r| r.params.temperature > 0.0);
        if let (None, Some(request)) = (self.args.sampling.seed, random) {
            say!("kd: seed {}", request.params.seed);
        }
        say!("kd: {}", summary(if plain.is_some() { "speculative" } else { "generated" }, outcomes));
        if let Some(plain) = plain {
            say!("kd: {}", summary("plain", plain));
        }
    }
}

/// Ids as `--prompt-ids` takes them.
fn ids(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// One line about what streams took together.
pub(crate) fn summary(what: &str, outcomes: &[Outcome]) -> String {
    let tokens: u64 = outcomes.iter().map(|o| o.stats.generated).sum();
    let rounds: u64 = outcomes.iter().map(|o| o.stats.rounds).sum();
    let gained: u64 = outcomes.iter().map(|o| o.stats.round_tokens).sum();
    let seconds = outcomes.iter().map(|o| o.elapsed).max().unwrap_or(Duration::ZERO).as_secs_f64();
    let prefill = outcomes.iter().map(|o| o.stats.prefill).max().unwrap_or(Duration::ZERO);
    let per_round = if rounds > 0 { format!("{:.2}", gained as f64 / rounds as f64) } else { "no".into() };
    format!(
        "{what}: {tokens} tokens, {rounds} rounds, {per_round} tokens/round, {:.1} tokens/s, first token after {:.0} ms",
        tokens as f64 / seconds.max(1e-9),
        prefill.as_secs_f64() * 1e3
    )
}

fn json_line(index: usize, request: &Request, outcome: &Outcome) -> Value {
    let stats = &outcome.stats;
    let reason = match outcome.reason {
        Some(FinishReason::Stop) => "stop",
        Some(FinishReason::Length) => "length",
        None => "error",
    };
    json!({
        "index": index,
        "prompt_ids": request.prompt,
        "output_ids": outcome.output_ids,
        "text": outcome.text,
        "finish_reason": reason,
        "seed": request.params.seed,
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
