//! Every golden case under every cut, and what a stream must never show.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn cases(file: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/golden/text/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn options(thinking: bool) -> ParserOptions {
    ParserOptions { thinking, ..ParserOptions::default() }
}

/// Parses pieces and checks that the events, joined, say what the result says.
fn parse(pieces: &[&str], options: ParserOptions, finish: Finish) -> ParsedOutput {
    let mut parser = OutputParser::new(options);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
        assert!(parser.held.len() < 32, "held back: {:?}", parser.held);
    }
    let (last, output) = parser.finish(finish);
    events.extend(last);
    let (mut reasoning, mut content, mut calls) =
        (String::new(), String::new(), Vec::<ParsedToolCall>::new());
    for event in events {
        match event {
            Event::Reasoning(t) => reasoning += &t,
            Event::Content(t) => content += &t,
            Event::ToolCallStart { index, id, name } => {
                assert_eq!(index, calls.len());
                calls.push(ParsedToolCall { id, name, arguments: String::new() });
            }
            Event::ToolCallArguments { index, delta } => calls[index].arguments += &delta,
            Event::ToolCallEnd { index } => assert_eq!(index + 1, calls.len()),
            Event::Finish(finish) => assert_eq!(finish, output.finish),
        }
    }
    assert_eq!(reasoning, output.reasoning.clone().unwrap_or_default());
    assert_eq!(content, output.content.clone().unwrap_or_default());
    assert_eq!(calls, output.tool_calls);
    output
}

fn to_json(output: &ParsedOutput) -> Value {
    let call = |c: &ParsedToolCall| json!({"id": c.id, "name": c.name, "arguments": c.arguments});
    json!({
        "reasoning": output.reasoning, "content": output.content,
        "tool_calls": output.tool_calls.iter().map(call).collect::<Vec<_>>(),
        "finish_reason_at_eos": output.finish.as_str(),
    })
}

fn boundaries(raw: &str) -> Vec<usize> {
    (0..=raw.len()).filter(|&i| raw.is_char_boundary(i)).collect()
}

#[test]
fn goldens_hold_under_every_two_cut_chunking() {
    let (inputs, goldens) = (cases("parser.inputs.json"), cases("parser.json"));
    assert_eq!(inputs.len(), goldens.len());
    for (input, golden) in inputs.iter().zip(&goldens) {
        let (raw, name) = (input["raw"].as_str().unwrap(), &input["name"]);
        let options = options(input["thinking"].as_bool().unwrap());
        let cuts = boundaries(raw);
        for (i, &a) in cuts.iter().enumerate() {
            for &b in &cuts[i..] {
                let got = to_json(&parse(&[&raw[..a], &raw[a..b], &raw[b..]], options, Finish::Stop));
                for (key, value) in got.as_object().unwrap() {
                    assert_eq!(value, &golden[key], "{name}, cut at {a} and {b}: {key}");
                }
            }
        }
    }
}

#[test]
fn goldens_hold_under_a_thousand_random_chunkings_each() {
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for golden in cases("parser.json") {
        let raw = golden["raw"].as_str().unwrap();
        let options = options(golden["thinking"].as_bool().unwrap());
        let whole = parse(&[raw], options, Finish::Stop);
        let cuts = boundaries(raw);
        for _ in 0..1000 {
            let rate = 1 + random() % 12;
            let mut ends: Vec<usize> = cuts.iter().copied().filter(|_| random() % rate == 0).collect();
            ends.push(raw.len());
            let mut start = 0;
            let pieces: Vec<&str> =
                ends.iter().map(|&end| &raw[std::mem::replace(&mut start, end)..end]).collect();
            assert_eq!(parse(&pieces, options, Finish::Stop), whole, "{}: {pieces:?}", golden["name"]);
        }
    }
}

const PIECES: &[&str] = &[
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_end|>",
    "functions.f:0",
    "f",
    " ",
    "\n",
    "{\"a\": 1}",
    "<",
    "<|",
    "</",
    "<|tool_call",
    "|>",
    "世界",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_output_is_parsed_alike_in_any_chunks(
        picks in prop::collection::vec(0..PIECES.len(), 0..24), thinking: bool, at in 0usize..400,
    ) {
        let raw: String = picks.iter().map(|&i| PIECES[i]).collect();
        let whole = parse(&[&raw], options(thinking), Finish::Stop);
        let chars: Vec<String> = raw.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        prop_assert_eq!(&parse(&chars, options(thinking), Finish::Stop), &whole);
        let cuts = boundaries(&raw);
        let cut = cuts[at % cuts.len()];
        prop_assert_eq!(&parse(&[&raw[..cut], &raw[cut..]], options(thinking), Finish::Stop), &whole);
        let shown = [whole.reasoning, whole.content].map(Option::unwrap_or_default).concat();
        let calls: String = whole.tool_calls.iter().map(|c| c.arguments.as_str()).collect();
        for marker in &PIECES[2..8] {
            prop_assert!(!(shown.contains(marker) || calls.contains(marker)), "{marker} shown for {raw:?}");
        }
    }
}

/// vLLM 28543, 31207: markers leaked while streaming.
#[test]
fn a_marker_is_not_sent_in_parts() {
    let mut parser = OutputParser::new(options(false));
    assert_eq!(parser.push("a<|tool_calls_section"), [Event::Content("a".into())]);
    assert_eq!(parser.push("_begin"), []);
    assert_eq!(parser.push("s|>b"), [Event::Content("<|tool_calls_section_begins|>b".into())]);
}

/// vLLM 28543: text was held until a whole line was there.
#[test]
fn ordinary_text_is_not_delayed() {
    let mut parser = OutputParser::new(options(true));
    assert_eq!(parser.push("a < b, x<y"), [Event::Reasoning("a < b, x<y".into())]);
    assert_eq!(parser.push("<"), []);
    assert_eq!(parser.push("z"), [Event::Reasoning("<z".into())]);
}

#[test]
fn a_call_without_index_continues_the_count_of_the_conversation() {
    let raw = "<|tool_calls_section_begin|><|tool_call_begin|>functions.a<|tool_call_argument_begin|>{}<|tool_call_end|>\
               <|tool_call_begin|>functions.b:9<|tool_call_argument_begin|>{}<|tool_call_end|>\
               <|tool_call_begin|>c<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let options = ParserOptions { thinking: true, first_call_index: 4 };
    let ids: Vec<_> = parse(&[raw], options, Finish::Stop).tool_calls.into_iter().map(|c| c.id).collect();
    assert_eq!(ids, ["functions.a:4", "functions.b:9", "functions.c:10"]);
}

#[test]
fn a_call_without_name_is_counted_and_not_delivered() {
    let raw = "</think>x<|tool_calls_section_begin|><|tool_call_begin|> <|tool_call_argument_begin|>{}<|tool_call_end|>";
    let output = parse(&[raw], options(true), Finish::Stop);
    assert_eq!((output.tool_calls.len(), output.nameless_calls, output.finish), (0, 1, Finish::Stop));
}

#[test]
fn a_missing_end_marker_does_not_swallow_the_next_call() {
    let raw = "</think><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}\
               <|tool_call_begin|>functions.b:1<|tool_call_argument_begin|> {} <|tool_calls_section_end|>after<|im_end|>junk";
    let output = parse(&[raw], options(true), Finish::Stop);
    let calls: Vec<_> = output.tool_calls.iter().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
    assert_eq!(calls, [("functions.a:0", "{}"), ("functions.b:1", "{}")]);
    assert_eq!((output.content.as_deref(), output.finish), (Some("after"), Finish::ToolCalls));
}

#[test]
fn the_reason_of_the_engine_wins_over_tool_calls() {
    let raw = "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    for finish in [Finish::Length, Finish::Error] {
        assert_eq!(parse(&[raw], options(true), finish).finish, finish);
    }
    assert_eq!(
        parse(&["<|tool_call_begin|>functions.a"], options(true), Finish::Stop).finish,
        Finish::Length
    );
    let cut = "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{<|im_end|>";
    assert_eq!(parse(&[cut], options(true), Finish::Stop).finish, Finish::Length);
}

#[test]
fn nul_and_a_million_brackets_pass() {
    let raw = "<".repeat(1_000_000) + "\0";
    assert_eq!(parse(&[&raw], options(false), Finish::Stop).content.unwrap(), raw);
}
