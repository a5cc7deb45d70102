//! `kd doctor`: what this machine has, one verdict a line.

mod cpu;
mod disk;
mod gpu;
mod kernels;
mod memory;

use std::io::{Write, stdout};

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::models;

/// How a part of the machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// Nothing to do.
    Ok,
    /// Worth knowing: something is slower or absent.
    Note,
    /// Something is broken.
    Bad,
}

/// One line.
#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    text: String,
}

impl Finding {
    fn ok(what: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, what, text: text.into() }
    }

    fn note(what: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Note, what, text: text.into() }
    }

    fn bad(what: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Bad, what, text: text.into() }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let model = args.model.clone().or_else(|| models::demo_pair().map(|demo| demo.join("target")));
    let mut findings = vec![cpu::features(), memory::available()];
    findings.push(match &model {
        Some(dir) => disk::speed(dir),
        None => Finding::note("disk", "not measured: no model folder; name one with --model DIR"),
    });
    findings.extend(gpu::driver_and_gpus());
    findings.push(gpu::libraries());
    findings.extend(kernels::bundles());
    print(args, &findings)?;
    let bad = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count();
    anyhow::ensure!(bad == 0, "{bad} of {} checks failed", findings.len());
    Ok(())
}

fn print(args: &DoctorArgs, findings: &[Finding]) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, findings)?;
        writeln!(out)?;
        return Ok(());
    }
    for Finding { verdict, what, text } in findings {
        let mark = match verdict {
            Verdict::Ok => "ok  ",
            Verdict::Note => "note",
            Verdict::Bad => "BAD ",
        };
        writeln!(out, "{mark}  {what:9} {text}")?;
    }
    Ok(())
}
