//! `kd doctor`: what this machine has, one verdict a line.

mod cpu;
mod disk;
mod gpu;
mod kernels;
mod memory;
mod run_kernels;

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

/// What was found so far. Text is printed as it comes, since some checks take a while; JSON is one array at the end.
struct Report {
    json: bool,
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, finding: Finding) -> anyhow::Result<()> {
        if !self.json {
            let mark = match finding.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Note => "note",
                Verdict::Bad => "BAD ",
            };
            writeln!(stdout(), "{mark}  {:9} {}", finding.what, finding.text)?;
        }
        self.findings.push(finding);
        Ok(())
    }

    fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) -> anyhow::Result<()> {
        findings.into_iter().try_for_each(|finding| self.add(finding))
    }
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let model = args.model.clone().or_else(|| models::demo_pair().map(|demo| demo.join("target")));
    let mut report = Report { json: args.json, findings: Vec::new() };
    report.extend([cpu::features(), memory::available()])?;
    report.add(match &model {
        Some(dir) => disk::speed(dir),
        None => Finding::note("disk", "not measured: no model folder; name one with --model DIR"),
    })?;
    report.extend(gpu::driver_and_gpus())?;
    report.add(gpu::libraries())?;
    report.extend(kernels::bundles())?;
    if let Some(names) = &args.kernels {
        run_kernels::check_all(names, &args.rows, &mut report)?;
    }
    let findings = report.findings;
    if args.json {
        let mut out = stdout().lock();
        serde_json::to_writer(&mut out, &findings)?;
        writeln!(out)?;
    }
    let bad = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count();
    anyhow::ensure!(bad == 0, "{bad} of {} checks failed", findings.len());
    Ok(())
}
