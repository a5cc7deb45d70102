//! What the engine does when a backend fails, or cannot say a token.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kd_ddtree::{DraftRow, MAX_NODES};
use kd_model::{Drafter, OpCounter, Target};
use kd_sample::SampleError;
use kd_tensor::Pool;

use super::{Answers, Backend, Chunk, DeviceError, Head, Kept, Member, Row, Sequence};
use crate::cpu::Cpu;
use crate::{
    Engine, EngineOptions, Event, Models, Request, RequestId, Speculation, StreamError, SubmitError,
};

const OPTIONS: EngineOptions =
    EngineOptions { max_streams: 2, cache_tokens: 512, prefill_chunk: 64, mixed_chunk: 64 };

/// Slot and rows of what was committed.
type Committed = Arc<Mutex<Vec<(usize, usize)>>>;

/// The CPU, with something wrong in one of its verify passes.
#[derive(Debug)]
struct Faulty {
    inner: Cpu,
    fault: Fault,
    passes: usize,
    /// After the faulty pass.
    committed: Committed,
    /// Answers of the last verify pass that were not handed out.
    held: Vec<Row>,
    /// Rows whose logits were asked for.
    fetched: Arc<Mutex<Vec<usize>>>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The pass fails, as after a sticky error.
    Device { pass: usize },
    /// The root of the first member has no token.
    Row { pass: usize },
    /// No row's logits can be fetched after the pass; before, every row's must be.
    Fetch { pass: usize },
    /// Nothing; but what was begun ahead takes so long, beside a prompt or alone.
    Ahead { beside: bool, wait: Duration },
}

impl Backend for Faulty {
    fn open(&mut self, sequence: &Sequence) -> Result<(), DeviceError> {
        self.inner.open(sequence)
    }

    fn close(&mut self, sequence: &Sequence) {
        self.inner.close(sequence);
    }

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Answers, DeviceError> {
        self.inner.prefill(chunks)
    }

    fn verify(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError> {
        self.passes += 1;
        let answers = self.inner.verify(members)?;
        match self.fault {
            Fault::Device { pass } if self.passes == pass => Err(DeviceError("illegal address".to_owned())),
            Fault::Row { pass } if self.passes == pass => {
                let mut rows = answers.0;
                rows[0] = Row::Token(None);
                Ok(Answers::new(rows))
            }
            Fault::Fetch { .. } => {
                self.held = answers.0;
                Ok(Answers::new(vec![Row::Held; self.held.len()]))
            }
            _ => Ok(answers),
        }
    }

    fn logits(&mut self, row: usize) -> Result<Vec<f32>, DeviceError> {
        self.fetched.lock().expect("one thread").push(row);
        match (&self.held[row], self.fault) {
            (_, Fault::Fetch { pass }) if self.passes == pass => {
                Err(DeviceError("illegal address".to_owned()))
            }
            (Row::Logits(logits, at), _) => Ok(logits.row(*at).to_vec()),
            other => panic!("{other:?} is not held"),
        }
    }

    fn commit(&mut self, kept: &[Kept<'_>]) -> Result<(), DeviceError> {
        if let Fault::Row { pass } = self.fault
            && self.passes == pass
        {
            let slots = kept.iter().map(|kept| (kept.sequence.slot, kept.rows.len()));
            self.committed.lock().expect("one thread").extend(slots);
        }
        self.inner.commit(kept)
    }

    fn unread(&self, slot: usize) -> usize {
        self.inner.unread(slot)
    }

    fn catch_up(&mut self, sequences: &[&Sequence]) -> Result<usize, DeviceError> {
        self.inner.catch_up(sequences)
    }

    fn draft(&mut self, heads: &[Head<'_>]) -> Result<Vec<Vec<DraftRow>>, DeviceError> {
        self.inner.draft(heads)
    }

    fn settle(&mut self) -> Result<bool, DeviceError> {
        let Fault::Ahead { beside, wait } = self.fault else { return self.inner.settle() };
        std::thread::sleep(wait);
        Ok(beside)
    }

    fn ops(&self) -> OpCounter {
        self.inner.ops()
    }
}

fn demo_models() -> Models {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo"));
    Models {
        target: Arc::new(Target::load(&demo.join("target")).expect("the demo target")),
        drafter: Some(Arc::new(Drafter::load(&demo.join("drafter")).expect("the demo drafter"))),
        tokenizer: None,
    }
}

/// An engine with this fault, and what is committed after it.
fn faulty(fault: Fault) -> (Engine, Committed) {
    let (engine, committed, _) = watched(fault);
    (engine, committed)
}

/// As [`faulty`], and the rows whose logits were fetched.
fn watched(fault: Fault) -> (Engine, Committed, Arc<Mutex<Vec<usize>>>) {
    let (models, committed, fetched) = (demo_models(), Arc::default(), Arc::default());
    let inner = Cpu::new(&models, Pool::single(), OPTIONS.slots(), OPTIONS.pages()).expect("a small cache");
    let (held, kept, seen) = (Vec::new(), Arc::clone(&committed), Arc::clone(&fetched));
    let backend = Faulty { inner, fault, passes: 0, committed: kept, held, fetched: seen };
    (Engine::over(Box::new(backend), models, MAX_NODES, OPTIONS), committed, fetched)
}

fn submit(engine: &mut Engine, count: usize) -> Vec<RequestId> {
    let request = |first: u32| Request {
        speculation: Speculation::Tree { nodes: 6 },
        ..Request::new((first..first + 20).collect(), 30)
    };
    (0..count as u32).map(|i| engine.submit(request(300 + i)).expect("a valid request")).collect()
}

#[test]
fn a_failed_device_ends_every_request_and_takes_no_more() {
    let (mut engine, _) = faulty(Fault::Device { pass: 3 });
    let free = engine.free_pages();
    let mut waiting = submit(&mut engine, 3);
    let mut steps = 0;
    while !engine.is_idle() {
        steps += 1;
        assert!(steps < 10, "the engine goes on");
        for event in engine.step().events {
            match event {
                Event::Failed { id, error: StreamError::Device(DeviceError(what)), .. } => {
                    assert_eq!(what, "illegal address");
                    waiting.retain(|&other| other != id);
                }
                Event::Tokens { .. } => assert!(steps <= 3, "tokens of a lost pass"),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(waiting, [], "requests that were not told");
    assert_eq!(engine.free_pages(), free);
    assert!(engine.failure().is_some());
    let refused = engine.submit(Request::new(vec![300], 1)).expect_err("no device");
    assert!(matches!(&refused, SubmitError::Device(_)), "{refused}");
    assert!(refused.to_string().contains("illegal address"), "{refused}");
}

#[test]
fn a_row_without_a_token_ends_its_request_and_publishes_nothing() {
    let (mut engine, committed) = faulty(Fault::Row { pass: 2 });
    let ids = submit(&mut engine, 2);
    let mut ends = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().events {
            match event {
                Event::Failed { id, error, .. } => ends.push((id, Some(error))),
                Event::Finished { id, .. } => ends.push((id, None)),
                Event::Tokens { .. } => {}
            }
        }
    }
    let Some(StreamError::Sample { reason, .. }) = &ends[0].1 else { panic!("{ends:?}") };
    assert_eq!((ends[0].0, reason), (ids[0], &SampleError::NoFiniteMaximum));
    assert_eq!((ends.len(), &ends[1]), (2, &(ids[1], None)), "the other stream goes on");
    let committed = committed.lock().expect("one thread");
    assert!(
        !committed.is_empty() && committed.iter().all(|&(slot, rows)| slot == 1 && rows > 0),
        "{committed:?}"
    );
    assert!(engine.failure().is_none());
}

#[test]
fn logits_that_a_backend_holds_are_fetched_for_visited_rows_alone() {
    let mut found = Vec::new();
    for fault in [Fault::Fetch { pass: usize::MAX }, Fault::Row { pass: usize::MAX }] {
        let (mut engine, _, fetched) = watched(fault);
        submit(&mut engine, 2);
        let (mut tokens, mut visited, mut rows) = (Vec::new(), 0, 0);
        while !engine.is_idle() {
            let step = engine.step();
            for round in &step.rounds {
                (visited, rows) = (visited + round.tokens.len(), rows + round.tree.rows().len());
            }
            tokens.extend(step.events.into_iter().filter_map(|event| match event {
                Event::Tokens { id, tokens, .. } => {
                    Some((id, tokens.iter().map(|t| t.token).collect::<Vec<_>>()))
                }
                _ => None,
            }));
        }
        let fetched = fetched.lock().expect("one thread").len();
        found.push((tokens, fetched));
        if let Fault::Fetch { .. } = fault {
            // A path may go on behind the end of an answer.
            assert!(
                fetched >= visited && fetched < visited + 14 && fetched < rows / 2,
                "{fetched} of {rows}, {visited}"
            );
        }
    }
    assert_eq!(found[0].0, found[1].0, "the tokens of logits that are handed out");
    assert_eq!(found[1].1, 0);
}

#[test]
fn logits_that_cannot_be_fetched_are_a_failed_device() {
    let (mut engine, _) = faulty(Fault::Fetch { pass: 2 });
    let ids = submit(&mut engine, 2);
    let mut failed = Vec::new();
    while !engine.is_idle() {
        failed.extend(engine.step().events.into_iter().filter_map(|event| match event {
            Event::Failed { id, error: StreamError::Device(_), .. } => Some(id),
            _ => None,
        }));
    }
    assert_eq!(failed, ids);
    assert!(engine.failure().is_some());
}

#[test]
fn a_draft_behind_a_prompt_says_nothing_of_what_drafts_cost() {
    for beside in [true, false] {
        let (mut engine, _) = faulty(Fault::Ahead { beside, wait: Duration::ZERO });
        submit(&mut engine, 2);
        let outcome = engine.step().outcome.expect("both prompts fit one pass");
        assert_eq!((outcome.drafting, outcome.overlapped), (2, beside));
        let known = engine.budget().costs().store();
        assert_eq!((known.verify.len(), known.draft.len()), (1, usize::from(!beside)), "{beside}");
    }
}

#[test]
fn no_pass_is_charged_with_a_draft_that_nobody_takes() {
    let wait = Duration::from_millis(300);
    let (mut engine, _) = faulty(Fault::Ahead { beside: false, wait });
    let plain = Request { speculation: Speculation::Plain, ..Request::new((300..320).collect(), 30) };
    engine.submit(plain).expect("a valid request");
    let begin = Instant::now();
    let outcome = engine.step().outcome.expect("a round");
    let whole = begin.elapsed();
    assert!(whole.as_secs_f64() - outcome.seconds() >= wait.as_secs_f64(), "{whole:?}: {outcome:?}");
}
