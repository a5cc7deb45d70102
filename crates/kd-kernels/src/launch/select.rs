//! Choosing a variant: what can run is one question, what is better another.

use super::{Family, KernelError};

/// How a launch wants its variant chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The preferred one among those that can run.
    Auto,
    /// This one, or an error.
    Forced(&'a str),
}

/// Which variant ran, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Variant.
    pub variant: &'static str,
    /// Why.
    pub source: Source,
}

/// Who chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The declaration prefers it for these operands.
    Preferred,
    /// It can run, and no preferred one can.
    Eligible,
    /// The launch forced it.
    Forced,
}

/// Chooses among `available`, the loaded variants in declaration order. Returns an index into it.
pub(super) fn choose(
    family: &Family,
    available: &[&'static str],
    choice: Choice<'_>,
    eligible: impl Fn(&str) -> Option<bool>,
    preferred: impl Fn(&str) -> Option<bool>,
) -> Result<(usize, Selection), KernelError> {
    // A condition without a value (an overflow) does not hold.
    let holds = |answer: Option<bool>| answer == Some(true);
    let not_eligible = |variant: String| KernelError::NotEligible { family: family.name, variant };
    let picked = |index: usize, source| Ok((index, Selection { variant: available[index], source }));
    if let Choice::Forced(wanted) = choice {
        let Some(index) = available.iter().position(|variant| *variant == wanted) else {
            let (variant, known) = (wanted.to_owned(), available.join(", "));
            return Err(KernelError::UnknownVariant { family: family.name, variant, known });
        };
        if !holds(eligible(wanted)) {
            return Err(not_eligible(format!("forced variant `{wanted}`")));
        }
        return picked(index, Source::Forced);
    }
    let able: Vec<usize> = (0..available.len()).filter(|index| holds(eligible(available[*index]))).collect();
    match able.iter().find(|index| holds(preferred(available[**index]))) {
        Some(index) => picked(*index, Source::Preferred),
        None => match able.first() {
            Some(index) => picked(*index, Source::Eligible),
            None => Err(not_eligible("no variant".to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: Family =
        Family { name: "gemm", contract: "", variants: &["n8", "n64"], cooperative: false, pdl: false };

    fn pick(
        choice: Choice<'_>,
        eligible: &[&str],
        preferred: &[&str],
    ) -> Result<(usize, Selection), KernelError> {
        let among = |list: &[&str], variant: &str| Some(list.contains(&variant));
        choose(&FAMILY, FAMILY.variants, choice, |v| among(eligible, v), |v| among(preferred, v))
    }

    #[test]
    fn preference_decides_only_among_what_can_run() {
        let selection = |variant, source| Selection { variant, source };
        let all = ["n8", "n64"];
        assert_eq!(pick(Choice::Auto, &all, &["n64"]), Ok((1, selection("n64", Source::Preferred))));
        assert_eq!(pick(Choice::Auto, &all, &all), Ok((0, selection("n8", Source::Preferred))));
        assert_eq!(pick(Choice::Auto, &["n8"], &["n64"]), Ok((0, selection("n8", Source::Eligible))));
        assert!(matches!(pick(Choice::Auto, &[], &all), Err(KernelError::NotEligible { .. })));
    }

    #[test]
    fn a_forced_variant_still_passes_eligibility() {
        let forced = Selection { variant: "n8", source: Source::Forced };
        assert_eq!(pick(Choice::Forced("n8"), &["n8"], &["n64"]), Ok((0, forced)));
        assert!(matches!(pick(Choice::Forced("n8"), &["n64"], &[]), Err(KernelError::NotEligible { .. })));
        let message = pick(Choice::Forced("n9"), &["n8"], &[]).expect_err("unknown").to_string();
        assert!(message.contains("n9") && message.contains("n8, n64"), "{message}");
    }
}
