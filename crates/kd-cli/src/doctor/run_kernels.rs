//! Every image of the bundles for this GPU, against its CPU operation.

use std::num::NonZeroUsize;
use std::time::{SystemTime, UNIX_EPOCH};

use kd_kernels::selftest::{Check, Failure, Outcome};
use kd_kernels::{Bundle, Device, Kernels, Search};

use super::{Finding, Report};
use crate::UsageError;

/// The name of all checks together.
const ALL: &str = "all";

/// Runs the checks of these names, each with launches of so many rows.
pub(super) fn check_all(names: &[String], rows: &[NonZeroUsize], report: &mut Report) -> anyhow::Result<()> {
    let chosen = chosen(names)?;
    let rows: Vec<usize> = rows.iter().map(|rows| rows.get()).collect();
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            return report.add(Finding::bad("selftest", format!("no kernel can run here: {error}")));
        }
    };
    let mut bundles = Search::standard().files().into_iter().filter_map(|path| Bundle::open(&path).ok());
    let mine = |bundle: &Bundle| bundle.header().kind == "cubin" && bundle.header().arch == device.arch();
    let bundles: Vec<Bundle> = bundles.by_ref().filter(mine).collect();
    if bundles.is_empty() {
        let arch = device.arch();
        let text = format!(
            "no kernel bundle for {} ({arch}); run `cargo xtask build-kernels --arch {arch}`",
            device.name()
        );
        return report.add(Finding::bad("selftest", text));
    }
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for bundle in bundles {
        let profile = bundle.header().profile.clone();
        let kernels = match Kernels::with_bundle(&device, bundle) {
            Ok(kernels) => kernels,
            Err(error) => {
                report.add(Finding::bad("selftest", error.to_string()))?;
                continue;
            }
        };
        for (name, check) in &chosen {
            report.add(verdict(&profile, name, check(&device, &kernels, &rows, seed), &rows, seed))?;
        }
    }
    Ok(())
}

/// The checks of every crate that owns a CPU operation.
fn checks() -> impl Iterator<Item = (&'static str, Check)> {
    let owned = [&kd_kernels::selftest::CHECKS[..], &kd_attn::selftest::CHECKS, &kd_moe::selftest::CHECKS];
    owned.into_iter().flatten().copied()
}

/// The checks that `names` name.
fn chosen(names: &[String]) -> Result<Vec<(&'static str, Check)>, UsageError> {
    let known = || checks().map(|(name, _)| name);
    match names.iter().find(|name| *name != ALL && !known().any(|known| known == name.as_str())) {
        Some(name) => {
            let known: Vec<&str> = known().collect();
            Err(UsageError(format!(
                "--kernels={name}: there is no such check, but {ALL}, {}",
                known.join(", ")
            )))
        }
        None => Ok(checks()
            .filter(|(name, _)| names.iter().any(|wanted| wanted == ALL || wanted == name))
            .collect()),
    }
}

fn verdict(
    profile: &str,
    name: &str,
    result: Result<Vec<Outcome>, Failure>,
    rows: &[usize],
    seed: u64,
) -> Finding {
    let outcomes = match result {
        Ok(outcomes) => outcomes,
        Err(failure) => {
            let text = format!("{profile} {name}: {failure} (rows {rows:?}, seed {seed})");
            return Finding::bad("selftest", text);
        }
    };
    if outcomes.is_empty() {
        return Finding::note("selftest", format!("{profile} {name}: this bundle has no such kernel"));
    }
    let worst = outcomes.iter().map(|outcome| outcome.error).fold(0.0, f64::max);
    let text = format!(
        "{profile} {name}: {} launches right, largest error {:.0} % of its bound",
        outcomes.len(),
        100.0 * worst
    );
    Finding::ok("selftest", text)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn outcome(error: f64) -> Outcome {
        Outcome { unit: "u".to_owned(), rows: 1, error, micros: 1.0, bytes: 1 }
    }

    #[test]
    fn a_wrong_kernel_is_bad_and_an_absent_one_a_note() {
        let right = verdict("demo-tp1", "norms", Ok(vec![outcome(0.25), outcome(0.5)]), &[7], 7);
        assert_eq!(right.verdict, Verdict::Ok);
        assert_eq!(right.text, "demo-tp1 norms: 2 launches right, largest error 50 % of its bound");
        let what = "row 3 differs".to_owned();
        let wrong = Failure::Wrong { unit: "rms_norm__H256__v2".to_owned(), rows: 7, what };
        let wrong = verdict("demo-tp1", "norms", Err(wrong), &[7], 7);
        assert_eq!(wrong.verdict, Verdict::Bad);
        assert!(wrong.text.contains("rms_norm__H256__v2 with 7 rows: row 3 differs"), "{}", wrong.text);
        assert!(wrong.text.contains("seed 7"), "{}", wrong.text);
        assert_eq!(verdict("demo-tp1", "norms", Ok(Vec::new()), &[7], 7).verdict, Verdict::Note);
    }

    #[test]
    fn checks_are_chosen_by_name_and_an_unknown_one_is_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = chosen(&names(&["router", "dense"])).expect("two checks");
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["dense", "router"]);
        assert_eq!(chosen(&names(&["all"])).expect("all").len(), checks().count());
        let message = chosen(&names(&["rooter"])).map(|found| found.len()).expect_err("unknown").to_string();
        assert!(message.contains("--kernels=rooter") && message.contains("tree_mla"), "{message}");
    }

    #[test]
    fn no_check_is_listed_twice() {
        let mut names: Vec<&str> = checks().map(|(name, _)| name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(all >= 11 && names.len() == all, "{names:?}");
    }
}
