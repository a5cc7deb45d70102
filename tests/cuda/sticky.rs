//! A device error that does not go away: every request hears of it, nothing hangs, nothing more is taken.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kd_engine::{Event, Request, Speculation, StreamError, SubmitError};
use kd_kernels::families::moe_combine;
use kd_kernels::testing::kernels_or_skip;
use kd_kernels::{Buffer, Choice, Profile};

use crate::{OPTIONS, engine, prompts, request};

/// Set in the process whose device is broken: an illegal address ends the device's context for everything in the process.
const CHILD: &str = "KD_TEST_BROKEN_DEVICE";
/// What that process prints when all is as it should be.
const DONE: &str = "every request was told";
/// Longer than loading and a few rounds of the demo pair take.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn an_illegal_address_fails_every_request_and_hangs_nothing() {
    let test = "an_illegal_address_fails_every_request_and_hangs_nothing";
    if kernels_or_skip(test, "demo-tp1").is_none() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "sticky::the_process_with_the_broken_device", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let begin = Instant::now();
    while child.try_wait().expect("a state").is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().expect("killed");
            panic!("the process hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().expect("an end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(DONE), "{output:?}");
}

/// Does nothing but in a process of its own.
#[test]
fn the_process_with_the_broken_device() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let Some(mut engine) = engine("the_process_with_the_broken_device", 16, OPTIONS) else { return };
    let requests: Vec<Request> =
        prompts(20).into_iter().map(|p| request(p, 1.0, Speculation::Tree { nodes: 16 })).collect();
    let mut waiting: Vec<_> =
        requests.iter().map(|request| engine.submit(request.clone()).expect("a valid request")).collect();
    for _ in 0..4 {
        assert!(!engine.step().events.iter().any(|event| matches!(event, Event::Failed { .. })));
    }
    break_device();
    let mut steps = 0;
    while !engine.is_idle() {
        steps += 1;
        assert!(steps < 3, "the engine goes on with a broken device");
        for event in engine.step().events {
            match event {
                Event::Failed { id, error: error @ StreamError::Device(_), .. } => {
                    let message = error.to_string();
                    assert!(
                        message.contains("ILLEGAL_ADDRESS") && message.contains("start again"),
                        "{message}"
                    );
                    waiting.retain(|other| *other != id);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(waiting, [], "requests that were not told, running or waiting");
    let refused = engine.submit(requests[0].clone()).expect_err("no device");
    assert!(matches!(refused, SubmitError::Device(_)), "{refused}");
    // Graphs, memory and kernels of a lost context are given back without a word.
    drop(engine);
    println!("{DONE}");
}

/// Reads far behind the memory of an operand, in the context that all of the process shares.
fn break_device() {
    let (device, kernels) = kernels_or_skip("break_device", "demo-tp1").expect("the device of the engine");
    let stream = device.stream().expect("a stream");
    let profile = Profile::named("demo-tp1").expect("a profile");
    let (hidden, top_k) = (profile.hidden, profile.experts_per_token);
    let dims = moe_combine::Dims { h: hidden as i64, t: top_k as i64 };
    let combine = moe_combine::MoeCombine::load(&kernels, dims).expect("kernels");
    let parts = Buffer::new(&stream, &vec![0f32; hidden]).expect("memory");
    let weights = Buffer::new(&stream, &vec![1f32; top_k]).expect("memory");
    let places = Buffer::new(&stream, &vec![i32::MAX; top_k]).expect("memory");
    let mut y = kd_kernels::selftest::upload(&stream, &vec![half::bf16::ZERO; hidden]).expect("memory");
    let args = moe_combine::Args {
        parts: parts.head(&stream, [1, hidden]).expect("a shape"),
        weights: weights.head(&stream, [1, top_k]).expect("a shape"),
        places: places.head(&stream, [1, top_k]).expect("a shape"),
        y: kd_kernels::TensorMut::new(&stream, y.as_view_mut(), [1, hidden]).expect("a shape"),
    };
    combine.launch(&stream, Choice::Auto, args).expect("a launch");
    let error = stream.synchronize().expect_err("an illegal address").to_string();
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");
}
