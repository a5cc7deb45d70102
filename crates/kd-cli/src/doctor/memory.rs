//! Main memory, and the limit of a container.

use std::path::Path;

use super::Finding;

const GIB: f64 = (1u64 << 30) as f64;

pub(super) fn available() -> Finding {
    let Some((total, available)) = std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(meminfo)
    else {
        return Finding::note("memory", "unknown: /proc/meminfo does not say");
    };
    let mut text = format!("{:.1} GiB, {:.1} GiB available", total as f64 / GIB, available as f64 / GIB);
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit =
        limits.iter().find_map(|file| std::fs::read_to_string(Path::new(file)).ok()?.trim().parse().ok());
    if let Some(limit) = limit.filter(|&limit: &u64| limit < total) {
        text += &format!("; this container may use {:.1} GiB", limit as f64 / GIB);
    }
    Finding::ok("memory", text)
}

/// Total and available bytes.
fn meminfo(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some((field("MemTotal")?, field("MemAvailable")?))
}

#[cfg(test)]
mod tests {
    use super::meminfo;

    #[test]
    fn fields_are_read_and_nonsense_is_none() {
        let text = "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n";
        assert_eq!(meminfo(text), Some((16 << 10, 8 << 10)));
        assert_eq!(meminfo("MemTotal: x kB\nMemAvailable: 8 kB"), None);
        assert_eq!(meminfo(""), None);
        assert_eq!(meminfo("MemTotal: 18446744073709551615 kB\nMemAvailable: 8 kB"), None);
    }
}
