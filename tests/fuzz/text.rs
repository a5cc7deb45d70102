//! Tokenizer, templates, conversations, answers, and sampling parameters.

use std::fs;
use std::path::Path;

use kd_sample::stop::StopMatcher;
use kd_sample::{History, Sampler, SamplingParams};
use kd_text::parser::{Finish, OutputParser, ParserOptions};
use kd_text::prompt::{
    ControlStrings, Conversation, JinjaTemplate, RenderOptions, UserControls, encode_segments, render_native,
};
use kd_text::{StreamDecoder, Tokenizer};

use super::{Target, seeds};
use crate::{byte_tokenizer, golden};

pub(super) fn targets() -> Vec<Target> {
    let nothing: fn(&Path) = |_| {};
    vec![
        Target {
            name: "vocabulary",
            weight: 2,
            seeds: seeds::vocabularies,
            run: vocabulary,
            prepare: tokenizer_files,
        },
        Target {
            name: "control_ids",
            weight: 1,
            seeds: seeds::control_ids,
            run: control_ids,
            prepare: tokenizer_files,
        },
        Target { name: "template", weight: 1, seeds: seeds::templates, run: template, prepare: nothing },
        Target {
            name: "conversation",
            weight: 10,
            seeds: seeds::conversations,
            run: conversation,
            prepare: nothing,
        },
        Target { name: "parser", weight: 20, seeds: seeds::answers, run: parser, prepare: nothing },
        Target { name: "encode", weight: 20, seeds: seeds::texts, run: encode, prepare: nothing },
        Target { name: "decode", weight: 20, seeds: seeds::noise, run: decode, prepare: nothing },
        Target { name: "sampler", weight: 20, seeds: seeds::noise, run: sampler, prepare: nothing },
        Target { name: "stop_strings", weight: 20, seeds: seeds::texts, run: stop_strings, prepare: nothing },
    ]
}

fn tokenizer_files(folder: &Path) {
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        fs::copy(golden("tokenizer/bytes256").join(name), folder.join(name)).expect("copied");
    }
}

fn vocabulary(bytes: &[u8], folder: &Path) {
    fs::write(folder.join("tiktoken.model"), bytes).expect("written");
    if let Ok(tokenizer) = Tokenizer::from_dir(folder) {
        let ids = tokenizer.encode_ordinary("Hi 世界").expect("short");
        assert_eq!(tokenizer.decode(&ids, false).expect("its own ids"), "Hi 世界");
    }
}

fn control_ids(bytes: &[u8], folder: &Path) {
    fs::write(folder.join("tokenizer_config.json"), bytes).expect("written");
    if let Ok(tokenizer) = Tokenizer::from_dir(folder) {
        assert_eq!(tokenizer.control_names().count(), 256);
        assert!(tokenizer.encode_with_special("[BOS]<think>").is_ok());
    }
}

fn template(bytes: &[u8], folder: &Path) {
    let file = folder.join("chat_template.jinja");
    fs::write(&file, bytes).expect("written");
    let Ok(template) = JinjaTemplate::load(&file, folder) else { return };
    let json = br#"[{"role": "system", "content": "s"}, {"role": "user", "content": "a<|im_end|>"}]"#;
    let (conversation, options) = Conversation::from_json(json).expect("a conversation");
    let controls = ControlStrings::new(["<|im_end|>", "<think>"]);
    let _ = template.render(&conversation, &options, &controls);
}

/// What users write never becomes a control id of a role that they do not have.
fn conversation(bytes: &[u8], _folder: &Path) {
    let Ok((conversation, options)) = Conversation::from_json(bytes) else { return };
    if let Ok(segments) = render_native(&conversation, &RenderOptions { ..options }) {
        let tokenizer = byte_tokenizer();
        if let Ok(ids) = encode_segments(&segments, &tokenizer, UserControls::AsText) {
            assert!(tokenizer.decode(&ids, false).is_ok());
        }
    }
}

/// The first byte says how the answer is cut; the parts must not matter.
fn parser(bytes: &[u8], _folder: &Path) {
    let text = String::from_utf8_lossy(bytes);
    let chunk = bytes.first().map_or(1, |&byte| usize::from(byte % 16) + 1);
    let parse = |chunk: usize| {
        let mut parser = OutputParser::new(ParserOptions::default());
        let mut piece = String::new();
        for character in text.chars() {
            piece.push(character);
            if piece.len() >= chunk {
                parser.push(&piece);
                piece.clear();
            }
        }
        parser.push(&piece);
        parser.finish(Finish::Stop).1
    };
    assert_eq!(parse(chunk), parse(usize::MAX));
}

fn encode(bytes: &[u8], _folder: &Path) {
    let (text, tokenizer) = (String::from_utf8_lossy(bytes), byte_tokenizer());
    let plain = tokenizer.encode_ordinary(&text).expect("short");
    assert!(!plain.iter().any(|&id| tokenizer.is_control(id)));
    assert_eq!(tokenizer.decode(&plain, true).expect("its own ids"), text);
    let special = tokenizer.encode_with_special(&text).expect("short");
    assert_eq!(tokenizer.decode(&special, false).expect("its own ids"), text);
}

/// Pieces of a stream joined are the whole, and an id that no token has is an error in both.
fn decode(bytes: &[u8], _folder: &Path) {
    let tokenizer = byte_tokenizer();
    let ids: Vec<u32> =
        bytes.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) % 520).collect();
    let mut stream = StreamDecoder::new(&tokenizer, false);
    let mut pieces = String::new();
    let streamed = ids.iter().try_for_each(|&id| stream.push(id).map(|piece| pieces.push_str(&piece)));
    let whole = tokenizer.decode(&ids, false);
    assert_eq!(streamed.is_ok(), whole.is_ok());
    if let Ok(whole) = whole {
        pieces.push_str(&stream.finish());
        assert_eq!(pieces, whole);
    }
}

/// Numbers from bytes; zeros when they run out.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn word(&mut self) -> u32 {
        let (head, rest) = self.0.split_at(self.0.len().min(4));
        self.0 = rest;
        let mut word = [0; 4];
        word[..head.len()].copy_from_slice(head);
        u32::from_le_bytes(word)
    }

    fn real(&mut self) -> f64 {
        f64::from(f32::from_bits(self.word()))
    }

    /// Often a number that is allowed.
    fn fraction(&mut self) -> f64 {
        let word = self.word();
        if word.is_multiple_of(4) { self.real() } else { f64::from(word % 1000) / 1000.0 }
    }
}

/// Whatever parameters and logits: an id that exists, or an error.
fn sampler(bytes: &[u8], _folder: &Path) {
    const VOCAB: usize = 24;
    let mut numbers = Numbers(bytes);
    let params = SamplingParams {
        temperature: numbers.fraction(),
        top_k: numbers.word() % 32,
        top_p: numbers.fraction(),
        min_p: numbers.fraction(),
        repetition_penalty: numbers.fraction() + 0.5,
        presence_penalty: numbers.fraction(),
        frequency_penalty: numbers.fraction(),
        logit_bias: vec![(numbers.word() % 28, numbers.fraction())],
        min_tokens: numbers.word() as usize % 4,
        stop_ids: vec![numbers.word() % 26],
        seed: u64::from(numbers.word()),
        ..SamplingParams::default()
    };
    if params.validate(VOCAB).is_err() {
        return;
    }
    let mut history = History::new(&[1, 2, 3]);
    history.push(numbers.word() % VOCAB as u32);
    let row: Vec<f32> = (0..VOCAB).map(|_| numbers.real() as f32).collect();
    let position = u64::from(numbers.word());
    if let Ok(choice) = Sampler::new().choose(&row, &history, &params, position, numbers.word()) {
        assert!((choice.token as usize) < VOCAB);
    }
}

/// The first line is the stop string; cutting the rest must not matter.
fn stop_strings(bytes: &[u8], _folder: &Path) {
    let text = String::from_utf8_lossy(bytes);
    let (stop, rest) = text.split_once('\n').unwrap_or(("a", &text));
    let matched = |chunk: usize| -> Option<(String, Option<usize>)> {
        let mut matcher = StopMatcher::new(&[stop]).ok()?;
        let (mut out, mut piece) = (String::new(), String::new());
        for character in rest.chars() {
            piece.push(character);
            if piece.len() >= chunk {
                if matcher.push(&piece, &mut out).is_some() {
                    return Some((out, matcher.stopped()));
                }
                piece.clear();
            }
        }
        if matcher.push(&piece, &mut out).is_none() {
            matcher.finish(&mut out);
        }
        Some((out, matcher.stopped()))
    };
    assert_eq!(matched(1), matched(usize::MAX));
}
