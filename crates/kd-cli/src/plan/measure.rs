//! Timing rounds of every size, and seeing what drafts gain.

use std::time::Instant;

use anyhow::bail;
use kd_engine::budget::{SIZES, Stored, StoredCell, edge};
use kd_engine::{Engine, MAX_NODES, Models, RequestId, Speculation};

use crate::args::PlanArgs;
use crate::bench::generate::{engine, requests};
use crate::bench::samples::Samples;
use crate::interrupt;
use crate::place::Place;

/// Rounds of each size that are timed, after one that is not.
const ROUNDS: usize = 7;
/// Nodes of the trees that show what drafts gain.
const NODES: usize = 64;
/// Tokens of each answer that shows it.
const TOKENS: usize = 64;

/// Timed passes of one size and context.
#[derive(Debug)]
pub(super) struct Passes {
    pub(super) streams: usize,
    /// Rows, or streams that draft.
    pub(super) size: usize,
    pub(super) context: usize,
    pub(super) seconds: Samples,
    /// Of a GPU: the share of whole rounds, drafts and host included, in which it ran nothing.
    pub(super) gaps: Samples,
}

/// Everything measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) verify: Vec<Passes>,
    pub(super) draft: Vec<Passes>,
    /// Seconds of reading one committed token.
    pub(super) read: Samples,
    /// `gain[n]`: draft tokens that a tree of `n` nodes gains a round.
    pub(super) gain: Vec<f64>,
    /// Rounds behind `gain`.
    pub(super) rounds: usize,
}

impl Measured {
    /// Medians, as an allocator starts from them.
    pub(super) fn stored(&self) -> Stored {
        let cell = |p: &Passes| StoredCell {
            streams: p.streams,
            size: p.size,
            context: p.context,
            seconds: p.seconds.median(),
        };
        Stored {
            verify: self.verify.iter().map(cell).collect(),
            draft: self.draft.iter().map(cell).collect(),
            read_token: (!self.read.0.is_empty()).then(|| self.read.median()),
        }
    }
}

/// The experiment.
pub(super) struct Meter<'a> {
    models: &'a Models,
    place: &'a Place,
    prompts: &'a [(String, Vec<u32>)],
    args: &'a PlanArgs,
    measured: Measured,
}

impl<'a> Meter<'a> {
    pub(super) fn new(
        models: &'a Models,
        place: &'a Place,
        prompts: &'a [(String, Vec<u32>)],
        args: &'a PlanArgs,
    ) -> anyhow::Result<Self> {
        let longest = models.target.config().max_position_embeddings;
        let room = Self::room(1);
        let shortest = args.contexts.iter().map(|n| n.get()).min().unwrap_or(0);
        if shortest + room > longest {
            bail!(
                "--contexts begins at {shortest}, but with {room} tokens of timed rounds only {} fit the context of {longest}",
                longest.saturating_sub(room)
            );
        }
        Ok(Self { models, place, prompts, args, measured: Measured::default() })
    }

    /// An engine of its own for streams of `tokens` tokens and trees of `nodes` nodes.
    fn engine(&self, streams: usize, nodes: usize, tokens: usize) -> anyhow::Result<Engine> {
        let place = self.place.again(&self.args.common, self.models)?;
        engine(self.models, place, [streams, nodes, tokens])
    }

    /// Most tokens that the timed rounds of `streams` streams add to one of them.
    fn room(streams: usize) -> usize {
        let depth = 8;
        Self::sizes(streams, usize::MAX).len() * (ROUNDS + 1) * depth
    }

    /// Nodes a stream at which passes of `streams` streams are timed: none, and those that fill a bucket of at most
    /// `most` rows.
    fn sizes(streams: usize, most: usize) -> Vec<usize> {
        let rows = (0..SIZES).map(edge).filter(|&rows| rows % streams == 0 && rows <= most);
        rows.map(|rows| rows / streams - 1).filter(|&nodes| nodes < MAX_NODES).collect()
    }

    /// Measures everything.
    pub(super) fn run(mut self) -> anyhow::Result<Measured> {
        let longest = self.models.target.config().max_position_embeddings;
        let mut contexts: Vec<usize> = self.args.contexts.iter().map(|n| n.get()).collect();
        contexts.sort_unstable();
        contexts.retain(|&context| context + Self::room(1) <= longest);
        // All numbers of streams at the shortest context; the others by one stream.
        for (i, &context) in contexts.iter().enumerate() {
            let mut streams: Vec<usize> = self.args.streams.iter().map(|n| n.get()).collect();
            streams.push(1);
            streams.sort_unstable();
            streams.dedup();
            streams.truncate(if i == 0 { streams.len() } else { 1 });
            for streams in streams {
                self.time(streams, context)?;
            }
        }
        self.see_gain()?;
        Ok(self.measured)
    }

    /// Times passes of all sizes for `streams` streams of `context` tokens.
    fn time(&mut self, streams: usize, context: usize) -> anyhow::Result<()> {
        let most = self.args.max_rows.get();
        let text = self.prompts.iter().flat_map(|(_, ids)| ids).copied();
        let prompt: Vec<u32> = text.cycle().take(context).collect();
        let sizes = Self::sizes(streams, most);
        let nodes = sizes.iter().copied().max().unwrap_or(0).max(1);
        let mut engine = self.engine(streams, nodes, context + Self::room(streams))?;
        let requests = requests(&prompt, streams, 0.0, Self::room(streams), Speculation::Tree { nodes: 1 });
        let ids: Vec<RequestId> =
            requests.into_iter().map(|request| engine.submit(request)).collect::<Result<_, _>>()?;
        while engine.step().outcome.is_none_or(|outcome| outcome.drafting < streams) {
            interrupt::check()?;
        }
        engine.time_device(true);
        let mut drafts = Samples::default();
        let (mut verify, mut read) = (Vec::new(), Samples::default());
        for nodes in sizes {
            ids.iter().try_for_each(|&id| engine.set_speculation(id, Speculation::Tree { nodes }))?;
            let (mut seconds, mut gaps) = (Samples::default(), Samples::default());
            for round in 0..=ROUNDS {
                interrupt::check()?;
                let begin = Instant::now();
                let step = engine.step();
                let whole = begin.elapsed();
                let Some(outcome) = step.outcome else { bail!("the streams ended before their rounds") };
                if round > 0 {
                    gaps.0.extend(step.device.map(|busy| 1.0 - busy.as_secs_f64() / whole.as_secs_f64()));
                    seconds.0.push(outcome.verify);
                    if outcome.drafting == streams {
                        drafts.0.push(outcome.draft);
                        read.0.push(outcome.read / outcome.read_tokens.max(1) as f64);
                    }
                }
            }
            verify.push(Passes { streams, size: streams * (1 + nodes), context, seconds, gaps });
        }
        self.measured.read.0.extend(read.0);
        self.measured.draft.push(Passes {
            streams,
            size: streams,
            context,
            seconds: drafts,
            gaps: Samples::default(),
        });
        self.measured.verify.extend(verify);
        self.measured.verify.sort_by_key(|p| (p.context, p.streams, p.size));
        Ok(())
    }

    /// Sees what trees gain. A tree of fewer nodes is a head of the larger one, so one size shows all smaller ones.
    fn see_gain(&mut self) -> anyhow::Result<()> {
        let longest = self.prompts.iter().map(|(_, ids)| ids.len()).max().unwrap_or(0);
        let mut engine = self.engine(self.prompts.len(), NODES, longest + TOKENS)?;
        for (_, ids) in self.prompts {
            let speculation = Speculation::Tree { nodes: NODES };
            for request in requests(ids, 1, 0.0, TOKENS, speculation) {
                engine.submit(request)?;
            }
        }
        let mut accepted = vec![0usize; NODES + 1];
        let mut rounds = 0;
        while !engine.is_idle() {
            interrupt::check()?;
            for round in engine.step().rounds {
                rounds += 1;
                for &row in round.rows.iter().filter(|&&row| row > 0) {
                    accepted[row..].iter_mut().for_each(|n| *n += 1);
                }
            }
        }
        self.measured.gain = accepted.iter().map(|&n| n as f64 / rounds.max(1) as f64).collect();
        self.measured.rounds = rounds;
        Ok(())
    }
}
