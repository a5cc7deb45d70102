//! `kd tree`: one round's draft tree, drawn.

use std::io::{IsTerminal, Write, stdout};

use anyhow::{Context, bail};
use kd_engine::{Event, Round, Tree};
use kd_text::Tokenizer;
use serde_json::json;

use crate::UsageError;
use crate::args::{Budget, ChunkArgs, SamplingArgs, TreeArgs};
use crate::place::Place;
use crate::{generate, interrupt, models};

/// Nodes of the tree unless asked for otherwise.
const DEFAULT_NODES: usize = 16;

pub(crate) fn run(args: &TreeArgs) -> anyhow::Result<()> {
    let loaded = models::load(&args.common)?;
    if loaded.models.drafter.is_none() {
        let message = "there is no drafter, so there are no trees; name one with --drafter DIR";
        return Err(UsageError(message.to_owned()).into());
    }
    let ids = generate::prompt_ids(&args.prompt, &loaded)?;
    // A budget that may be 0 makes a poor drawing, so it must be asked for.
    let budget = args.sampling.budget.or(Some(Budget::Nodes(DEFAULT_NODES)));
    let request = generate::request(&SamplingArgs { budget, ..args.sampling.clone() }, &loaded, ids)?;
    let place = Place::of(&args.common, &loaded.models)?;
    let mut engine = generate::engine(
        loaded.models,
        place,
        std::slice::from_ref(&request),
        ChunkArgs::default(),
        args.common.quiet,
    )?;
    engine.submit(request)?;
    interrupt::heed();
    let mut rounds = 0;
    while !engine.is_idle() {
        interrupt::check()?;
        let mut step = engine.step();
        if let Some(round) = step.rounds.into_iter().next() {
            rounds += 1;
            if rounds == args.round.get() {
                return print(args, engine.models().tokenizer.as_ref(), &round);
            }
        }
        if let Some(Event::Failed { error, .. }) = step.events.pop() {
            bail!("{error}");
        }
    }
    bail!("the generation ended after {rounds} rounds; ask for an earlier one with --round")
}

fn print(args: &TreeArgs, tokenizer: Option<&Tokenizer>, round: &Round) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    if args.json {
        let nodes: Vec<_> = round
            .tree
            .nodes()
            .iter()
            .map(|n| json!({"token": n.token, "parent": n.parent, "depth": n.depth, "logprob": n.score}))
            .collect();
        let object = json!({
            "start": round.start,
            "root": round.bonus,
            "nodes": nodes,
            "accepted": round.rows,
            "next_token": round.tokens.last(),
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let style = Style { color: out.is_terminal() };
    let mut drawing = Drawing { round, tokenizer, style, out: Vec::new() };
    drawing.node(0, "", "")?;
    out.write_all(&drawing.out)?;
    let gained = round.tokens.len();
    let next = *round.tokens.last().context("a round gains at least one token")?;
    let next = show(tokenizer, next);
    writeln!(
        out,
        "{} nodes, depth {}; accepted {} + the target's own {next} = {gained} tokens from one pass of {} rows",
        round.tree.len(),
        round.tree.max_depth(),
        gained - 1,
        round.tree.rows().len(),
    )?;
    Ok(())
}

/// A token as quoted text, or its id.
fn show(tokenizer: Option<&Tokenizer>, token: u32) -> String {
    match tokenizer.map(|t| t.decode(&[token], false)) {
        Some(Ok(text)) => format!("{text:?}"),
        _ => token.to_string(),
    }
}

struct Style {
    color: bool,
}

impl Style {
    fn accepted(&self, text: &str) -> String {
        if self.color { format!("\x1b[1;32m{text}\x1b[0m") } else { text.to_owned() }
    }
}

struct Drawing<'a> {
    round: &'a Round,
    tokenizer: Option<&'a Tokenizer>,
    style: Style,
    out: Vec<u8>,
}

impl Drawing<'_> {
    /// Draws a row and everything below it. `lead` stands before the row itself, `indent` before its children.
    fn node(&mut self, row: usize, lead: &str, indent: &str) -> std::io::Result<()> {
        let tree: &Tree = &self.round.tree;
        let accepted = self.round.rows.contains(&row);
        let token = if row == 0 { self.round.bonus } else { tree.nodes()[row - 1].token };
        let text = show(self.tokenizer, token);
        let label = match (row, accepted) {
            (0, _) => format!("{} root at position {}", self.style.accepted(&text), self.round.start),
            (_, true) => format!("{}  {:.2} ✓", self.style.accepted(&text), tree.score(row).exp()),
            (_, false) => format!("{text}  {:.2}", tree.score(row).exp()),
        };
        writeln!(self.out, "{lead}{label}")?;
        let children: Vec<usize> =
            (1..=tree.len()).filter(|&child| tree.nodes()[child - 1].parent as usize == row).collect();
        for (i, &child) in children.iter().enumerate() {
            let last = i + 1 == children.len();
            let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.node(child, &format!("{indent}{branch}"), &format!("{indent}{below}"))?;
        }
        Ok(())
    }
}
