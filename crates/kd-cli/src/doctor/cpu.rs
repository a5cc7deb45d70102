//! The processor.

use super::Finding;

/// Threads, and the instruction sets that the CPU operations can use.
pub(super) fn features() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (known, wanted) = instruction_sets();
    let has: Vec<&str> = known.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    let text = format!("{}, {threads} threads, {}", std::env::consts::ARCH, has.join(" "));
    let lacking: Vec<&str> = wanted.iter().copied().filter(|name| !has.contains(name)).collect();
    if lacking.is_empty() {
        Finding::ok("cpu", text)
    } else {
        Finding::note("cpu", format!("{text}; without {} the CPU backend is slow", lacking.join(", ")))
    }
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> (Vec<(&'static str, bool)>, &'static [&'static str]) {
    let known = vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    (known, &["avx2", "fma"])
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_sets() -> (Vec<(&'static str, bool)>, &'static [&'static str]) {
    (Vec::new(), &[])
}
