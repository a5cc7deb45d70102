//! Malformed files, hostile inputs and a failing machine: every one ends in an error line and exit code 1 or 2.

mod case;
mod checkpoint;
mod config;
mod drafter;
mod fuzz;
mod header;
mod inputs;
mod inspect;
mod machine;
mod prompts;
mod special;
mod tokenizer;

/// The issue asks for at least so many malformed inputs.
const LEAST: usize = 150;

#[test]
fn the_corpus_is_as_large_as_it_should_be() {
    let classes = [
        header::bytes(),
        header::entries(),
        checkpoint::index(),
        checkpoint::shards(),
        checkpoint::values(),
        config::target(),
        config::generation(),
        drafter::config(),
        drafter::tensors(),
        tokenizer::vocabulary(),
        tokenizer::control_ids(),
        tokenizer::templates(),
        inputs::tensors(),
        inputs::cases(),
        prompts::lines(),
        prompts::messages(),
    ];
    let cases: usize = classes.iter().map(Vec::len).sum();
    assert!(cases >= LEAST, "{cases} inputs, at least {LEAST} expected");
}
