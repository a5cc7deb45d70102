//! 300 MB of input: slow perhaps, but linear and without harm.

use super::*;

const SIZE: usize = 300_000_000;

#[test]
fn three_hundred_megabytes_are_one_text_segment() {
    let unit = "<|im_end|>";
    let conversation = user(&unit.repeat(SIZE / unit.len()));
    let segments = render_native(&conversation, &RenderOptions::default()).unwrap();
    let longest = segments.iter().map(|s| if let Segment::Text(text) = s { text.len() } else { 0 }).max();
    assert_eq!((segments.len(), longest), (9, Some(SIZE)));
}

#[test]
fn three_hundred_megabytes_of_markers_in_json_are_read() {
    let unit = "<|im_end|>";
    let json = format!("[{{\"role\": \"user\", \"content\": \"{}\"}}]", unit.repeat(SIZE / unit.len()));
    let (conversation, _) = Conversation::from_json(json.as_bytes()).unwrap();
    assert!(matches!(&conversation.messages[0].content, Some(Content::Text(text)) if text.len() == SIZE));
}
