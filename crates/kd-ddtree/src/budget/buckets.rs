//! The sizes and contexts at which costs are kept.

/// Number of size buckets; the last one also takes everything larger.
pub const SIZES: usize = 28;
/// Number of context buckets; the last one also takes everything longer.
pub const CONTEXTS: usize = 6;

/// Largest size of bucket `bucket`: 1, 2, 3, 4, 6, 8, 12, 16, …, powers of two and the half-way points between them.
pub const fn edge(bucket: usize) -> usize {
    match bucket {
        0 => 1,
        odd if odd % 2 == 1 => 1 << odd.div_ceil(2),
        even => 3 << (even / 2 - 1),
    }
}

/// The bucket of a size: the first one whose edge reaches it.
pub(crate) fn bucket(size: usize) -> usize {
    (0..SIZES).find(|&bucket| edge(bucket) >= size).unwrap_or(SIZES - 1)
}

/// Longest context of bucket `bucket` in tokens: 256, 1,024, 4,096, …
pub const fn context_edge(bucket: usize) -> usize {
    256 << (2 * bucket)
}

/// The bucket of a context of `tokens` tokens.
pub(crate) fn context_bucket(tokens: usize) -> usize {
    (0..CONTEXTS).find(|&bucket| context_edge(bucket) >= tokens).unwrap_or(CONTEXTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_powers_of_two_and_the_points_between() {
        let edges: Vec<usize> = (0..12).map(edge).collect();
        assert_eq!(edges, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(edge(SIZES - 1), 1 << 14);
    }

    #[test]
    fn a_size_lies_in_the_first_bucket_that_reaches_it() {
        for size in 1..5000 {
            let at = bucket(size);
            assert!(edge(at) >= size && (at == 0 || edge(at - 1) < size), "size {size}");
        }
        assert_eq!(bucket(usize::MAX), SIZES - 1);
        assert_eq!([0, 256, 257, usize::MAX].map(context_bucket), [0, 0, 1, CONTEXTS - 1]);
    }
}
