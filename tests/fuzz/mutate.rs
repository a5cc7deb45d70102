//! Mutations of byte strings that keep enough of their form to get past the first check.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Longest input.
const LONGEST: usize = 64 << 10;
/// Most changes of one input.
const CHANGES: usize = 6;

/// Numbers at which arithmetic breaks.
const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "1",
    "7",
    "31",
    "32",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e-320",
    "0.5",
];
/// What formats are made of.
const WORDS: [&str; 34] = [
    "null",
    "true",
    "false",
    "{}",
    "[]",
    "\"\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\n",
    " ",
    "\0",
    "\u{feff}",
    "世界",
    "👩\u{200d}👩",
    "<think>",
    "</think>",
    "<|im_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "{{",
    "}}",
    "{% for m in messages %}",
    "{% endfor %}",
    "../",
    "BF16",
];
const WIDE: [u64; 10] = [0, 1, 7, 8, 255, 1 << 31, u32::MAX as u64, 1 << 32, 1 << 63, u64::MAX];

/// Makes `input` a mutation of one of `seeds`, or now and then of what it was.
pub(super) fn mutate(random: &mut StdRng, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
    if input.is_empty() || !random.random_ratio(1, 8) {
        *input = seeds.choose(random).cloned().unwrap_or_default();
    }
    for _ in 0..random.random_range(1..=CHANGES) {
        change(random, seeds, input);
    }
    input.truncate(LONGEST);
}

fn change(random: &mut StdRng, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
    let at = random.random_range(0..=input.len());
    let end = (at + random.random_range(0..=16)).min(input.len());
    match random.random_range(0..11) {
        0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        1 if at < input.len() => input[at] = random.random(),
        2 => insert(input, at, WORDS.choose(random).unwrap_or(&"").as_bytes()),
        3 => insert(input, at, NUMBERS.choose(random).unwrap_or(&"").as_bytes()),
        4 => drop(input.drain(at..end)),
        5 => {
            let again = input[at..end].to_vec();
            insert(input, at, &again);
        }
        6 => input.truncate(at),
        7 => {
            let other = seeds.choose(random).map_or(&[][..], Vec::as_slice);
            let from = random.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        8 => number(random, input, at),
        9 => {
            let wide = WIDE.choose(random).copied().unwrap_or_default().to_le_bytes();
            let to = (at + wide.len()).min(input.len());
            input[at..to].copy_from_slice(&wide[..to - at]);
        }
        _ => {
            let open = *b"[{(\"".choose(random).unwrap_or(&b'[');
            insert(input, at, &vec![open; random.random_range(1..=300)]);
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// Replaces the first run of digits from `at` on.
fn number(random: &mut StdRng, input: &mut Vec<u8>, at: usize) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) else { return };
    let len = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let with = NUMBERS.choose(random).unwrap_or(&"0").bytes();
    input.splice(start..start + len, with);
}
