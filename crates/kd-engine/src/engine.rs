//! The engine: streams that come and go, and the step that advances them all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kd_attn::PagedCache;
use kd_ddtree::budget::{Allocator, Options, Outcome};
use kd_ddtree::{Forest, MAX_NODES, TreeBuilder};
use kd_model::{Drafter, OpCounter, Target};
use kd_sample::{Choice, Sampler};
use kd_tensor::Pool;
use kd_text::Tokenizer;

use crate::backend::{Backend, DeviceError};
use crate::calibrate::Calibration;
use crate::cpu::Cpu;
use crate::pages::PageAllocator;
use crate::round::Round;
use crate::stream::Stream;
use crate::{EngineError, Event, FinishReason, Request, RequestId, Speculation, StreamError, SubmitError};

/// What the engine runs.
#[derive(Debug, Clone)]
pub struct Models {
    /// Decides every token.
    pub target: Arc<Target>,
    /// Proposes trees; without one, only plain decoding is possible.
    pub drafter: Option<Arc<Drafter>>,
    /// Turns tokens into text; without one, events carry no text.
    pub tokenizer: Option<Tokenizer>,
}

/// Limits of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most streams that run at once; others wait in the order they came.
    pub max_streams: usize,
    /// Tokens that the cache holds, rounded up to pages of 64.
    pub cache_tokens: usize,
    /// Most prompt rows of one pass while no stream generates. The memory of passes is planned for so many.
    pub prefill_chunk: usize,
    /// Most prompt rows of one pass beside streams that generate, which wait for it; never more than `prefill_chunk`.
    pub mixed_chunk: usize,
}

impl EngineOptions {
    /// Streams that run at once.
    pub(crate) fn slots(&self) -> usize {
        self.max_streams.max(1)
    }

    /// Most prompt rows of the next pass.
    pub(crate) fn chunk(&self, generating: bool) -> usize {
        let most = if generating { self.prefill_chunk.min(self.mixed_chunk) } else { self.prefill_chunk };
        most.max(1)
    }

    /// Pages of the cache.
    pub(crate) fn pages(&self) -> usize {
        PagedCache::pages_for(self.cache_tokens)
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { max_streams: 16, cache_tokens: 16 * 2048, prefill_chunk: 4096, mixed_chunk: 512 }
    }
}

/// What one [`Engine::step`] did.
#[derive(Debug, Default)]
pub struct Step {
    /// What the callers should hear, in order.
    pub events: Vec<Event>,
    /// The rounds that were run, one for each stream that generated.
    pub rounds: Vec<Round>,
    /// What they took together; `None` if there were none.
    pub outcome: Option<Outcome>,
    /// Graphs that a device was given for these rounds: one where it can draw, walk and draft by itself, none on a CPU.
    pub graphs: u64,
    /// Time that a device spent in the passes of these rounds; `None` unless [`Engine::time_device`] asked for it.
    pub device: Option<Duration>,
}

/// Runs any number of requests over one target and its drafter.
#[derive(Debug)]
pub struct Engine {
    pub(crate) models: Models,
    pub(crate) options: EngineOptions,
    pub(crate) backend: Box<dyn Backend>,
    /// Why the backend runs no more.
    failure: Option<DeviceError>,
    /// Most draft nodes of a stream.
    pub(crate) nodes: usize,
    pub(crate) allocator: PageAllocator,
    pub(crate) waiting: VecDeque<Stream>,
    pub(crate) running: Vec<Stream>,
    pub(crate) sampler: Sampler,
    pub(crate) builder: TreeBuilder,
    pub(crate) forest: Forest,
    pub(crate) budget: Allocator,
    pub(crate) calibration: Calibration,
    /// Members of the last round, if none drafted though some may: as long as none comes, goes or changes what it drafts.
    pub(crate) resting: Option<usize>,
    next_id: u64,
}

impl Engine {
    /// An engine without requests that runs on the CPU.
    ///
    /// # Errors
    /// If drafter and target do not fit together, models and pool are made for different numbers of ranks, or the caches
    /// do not fit in memory.
    pub fn new(models: Models, pool: Pool, options: EngineOptions) -> Result<Self, EngineError> {
        let (target, pool_ranks) = (models.target.ranks(), pool.ranks());
        let drafter = models.drafter.as_ref().map_or(target, |drafter| drafter.ranks());
        Self::check_pair(&models)?;
        if target != pool_ranks || drafter != target {
            return Err(EngineError::Ranks { target, drafter, pool: pool_ranks });
        }
        let backend = Cpu::new(&models, pool, options.slots(), options.pages())?;
        Ok(Self::over(Box::new(backend), models, MAX_NODES, options))
    }

    pub(crate) fn check_pair(models: &Models) -> Result<(), EngineError> {
        models.drafter.as_ref().map_or(Ok(()), |drafter| Ok(drafter.check_target(&models.target)?))
    }

    /// An engine over a backend that holds what `options` say, and verifies trees of up to `nodes` nodes.
    pub(crate) fn over(
        backend: Box<dyn Backend>,
        models: Models,
        nodes: usize,
        options: EngineOptions,
    ) -> Self {
        Self {
            backend,
            failure: None,
            nodes,
            allocator: PageAllocator::new(options.pages()),
            waiting: VecDeque::new(),
            running: Vec::new(),
            sampler: Sampler::new(),
            builder: TreeBuilder::new(),
            forest: Forest::new(),
            budget: Allocator::new(Options::default()),
            calibration: Calibration::default(),
            resting: None,
            next_id: 0,
            models,
            options,
        }
    }

    /// Takes a request; it starts with the next step that has room for it.
    ///
    /// # Errors
    /// If the request can never run. Nothing is changed then.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        if let Some(error) = &self.failure {
            return Err(error.clone().into());
        }
        self.check(&request)?;
        let id = RequestId(self.next_id);
        let stream = Stream::new(id, request, self.models.tokenizer.as_ref())?;
        self.next_id += 1;
        self.waiting.push_back(stream);
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let config = self.models.target.config();
        let vocab = config.vocab_size;
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if let Some(index) = request.prompt.iter().position(|&id| id as usize >= vocab) {
            return Err(SubmitError::TokenId { index, id: request.prompt[index], vocab });
        }
        let (prompt, max_tokens) = (request.prompt.len(), request.max_tokens);
        if max_tokens == 0 {
            return Err(SubmitError::NoTokens);
        }
        let limit = config.max_position_embeddings;
        if prompt.checked_add(max_tokens).is_none_or(|longest| longest > limit) {
            return Err(SubmitError::ContextLength { prompt, max_tokens, limit });
        }
        let (needed, pages) = (PagedCache::pages_for(prompt + max_tokens), self.allocator.total());
        if needed > pages {
            return Err(SubmitError::Capacity { needed, pages });
        }
        self.check_speculation(request.speculation)?;
        Ok(request.params.validate(vocab)?)
    }

    fn check_speculation(&self, speculation: Speculation) -> Result<(), SubmitError> {
        match speculation {
            Speculation::Tree { nodes } if nodes > self.nodes => {
                Err(SubmitError::Budget { nodes, limit: self.nodes })
            }
            Speculation::Chain | Speculation::Tree { nodes: 1.. } if self.models.drafter.is_none() => {
                Err(SubmitError::NoDrafter)
            }
            _ => Ok(()),
        }
    }

    /// Drops a request, waiting or running; it is heard of no more. False if there is none with this id.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.running.iter().position(|s| s.id == id) {
            self.release(at);
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|s| s.id != id);
        self.waiting.len() < before
    }

    /// Changes what a request drafts from its next round on; its tokens stay the same. Nothing happens if there is no
    /// such request.
    ///
    /// # Errors
    /// If the request could not have been submitted so, or is to draft but was submitted without speculation.
    pub fn set_speculation(&mut self, id: RequestId, speculation: Speculation) -> Result<(), SubmitError> {
        self.check_speculation(speculation)?;
        let streams = self.running.iter_mut().chain(&mut self.waiting);
        let Some(stream) = streams.into_iter().find(|stream| stream.id == id) else { return Ok(()) };
        if speculation.drafts() && !stream.sequence.drafts {
            return Err(SubmitError::Unread);
        }
        stream.request.speculation = speculation;
        self.resting = None;
        Ok(())
    }

    /// What the budget of [`Speculation::Auto`] has learnt.
    pub fn budget(&self) -> &Allocator {
        &self.budget
    }

    /// As [`budget`](Self::budget), to start from costs that were measured before, or anew.
    pub fn budget_mut(&mut self) -> &mut Allocator {
        self.calibration = Default::default();
        self.resting = None;
        &mut self.budget
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Streams that run now.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Cache pages that no stream holds.
    pub fn free_pages(&self) -> usize {
        self.allocator.free()
    }

    /// What the target's passes have done so far.
    pub fn ops(&self) -> OpCounter {
        self.backend.ops()
    }

    /// From here on, or no more, a [`Step`] says how long a GPU was busy with its rounds: what is left of their time is the
    /// host's. Such a step waits for all that it has started.
    pub fn time_device(&mut self, on: bool) {
        self.backend.time_device(on);
    }

    /// Why the engine takes no more requests; `None` while it does.
    pub fn failure(&self) -> Option<&DeviceError> {
        self.failure.as_ref()
    }

    /// What the engine runs.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Admits what there is room for, reads one pass of prompt rows, and runs one round for every stream that
    /// generates. A device that fails ends every request that it has.
    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        if let Err(error) = self.try_step(&mut step) {
            self.fail(error, &mut step);
        }
        step
    }

    fn try_step(&mut self, step: &mut Step) -> Result<(), DeviceError> {
        if self.calibrate()? {
            return Ok(());
        }
        self.admit()?;
        self.prefill(step)?;
        let before = self.backend.graphs();
        self.round(step)?;
        step.graphs = self.backend.graphs() - before;
        step.device = self.backend.device_time()?;
        Ok(())
    }

    pub(crate) fn admit(&mut self) -> Result<(), DeviceError> {
        while self.running.len() < self.options.slots() {
            let Some(next) = self.waiting.front() else { break };
            // Strictly in order: a long request is not overtaken for ever by short ones.
            let Some(pages) = self.allocator.take(PagedCache::pages_for(next.longest())) else { break };
            let mut stream = self.waiting.pop_front().expect("the front was just seen");
            let taken = |slot: &usize| self.running.iter().any(|other| other.sequence.slot == *slot);
            let slot = (0..).find(|slot| !taken(slot)).expect("fewer streams than numbers");
            stream.admit(slot, pages);
            self.running.push(stream);
            self.backend.open(&self.running[self.running.len() - 1].sequence)?;
        }
        Ok(())
    }

    /// Ends every request, running or waiting, with the error of the device.
    fn fail(&mut self, error: DeviceError, step: &mut Step) {
        self.running.extend(self.waiting.drain(..));
        let ended = (0..self.running.len()).map(|at| (at, Err(error.clone().into()))).collect();
        self.failure = Some(error);
        self.end(ended, step);
    }

    /// Hands newly chosen tokens of the running stream `at` to its caller. `failure` is what came after them, and counts
    /// only if they did not end the answer: plain decoding would not have gone on to meet it.
    pub(crate) fn deliver(
        &mut self,
        at: usize,
        choices: Vec<Choice>,
        failure: Option<StreamError>,
        step: &mut Step,
    ) -> Delivered {
        let stream = &mut self.running[at];
        let id = stream.id;
        let accepted = stream.accept(&choices);
        let mut tokens = choices;
        tokens.truncate(accepted.taken);
        if !tokens.is_empty() {
            step.events.push(Event::Tokens { id, tokens, text: accepted.text });
        }
        let failure = accepted.failure.or(failure);
        let end = accepted.finish.map(Ok).or(failure.map(Err));
        Delivered { gained: accepted.gained, taken: accepted.taken, end }
    }

    /// Takes ended streams out and tells their callers. `ended` holds indices of running streams, ascending.
    pub(crate) fn end(&mut self, ended: Vec<(usize, Result<FinishReason, StreamError>)>, step: &mut Step) {
        for &(at, ref result) in &ended {
            let stream = &mut self.running[at];
            let id = stream.id;
            match result {
                Ok(reason) => {
                    step.events.push(Event::Finished { id, reason: *reason, stats: stream.stats.clone() });
                }
                Err(error) => {
                    let mut text = String::new();
                    stream.finish(&mut text);
                    if !text.is_empty() {
                        step.events.push(Event::Tokens { id, tokens: Vec::new(), text });
                    }
                    let (error, stats) = (error.clone(), stream.stats.clone());
                    step.events.push(Event::Failed { id, error, stats });
                }
            }
        }
        ended.into_iter().rev().for_each(|(at, _)| self.release(at));
    }

    /// Takes the running stream `at` out.
    pub(crate) fn release(&mut self, at: usize) {
        self.resting = None;
        let stream = self.running.remove(at);
        self.backend.close(&stream.sequence);
        self.allocator.give_back(stream.sequence.pages);
    }
}

/// What [`Engine::deliver`] did.
pub(crate) struct Delivered {
    /// Tokens that a round counts.
    pub(crate) gained: usize,
    /// Tokens that belong to the answer.
    pub(crate) taken: usize,
    /// Set if the stream has ended.
    pub(crate) end: Option<Result<FinishReason, StreamError>>,
}
