//! `kd golden`: the engine's numbers for golden inputs, in the shape that the golden set's checker reads.

mod drafter;
mod json_file;
mod model;
mod record;
mod sampling;
mod text_prompt;
mod text_tokenizer;

use kd_model::{Drafter, Target};
use kd_tensor::safetensors::SafeTensors;

use crate::args::{Golden, GoldenArgs, GoldenText};
use crate::{models, place};

pub(crate) fn run(args: &GoldenArgs) -> anyhow::Result<()> {
    match &args.what {
        Golden::Model { model, files } => {
            place::cpu_only("kd golden model", files.device)?;
            let inputs = SafeTensors::open(&files.inputs)?;
            let target = Target::load_sharded(model, files.ranks.tp)?;
            model::run(&models::pool(files.threads, files.ranks)?, &target, &inputs, &files.out)
        }
        Golden::Drafter { drafter, files } => {
            place::cpu_only("kd golden drafter", files.device)?;
            let inputs = SafeTensors::open(&files.inputs)?;
            let drafter = Drafter::load_sharded(drafter, files.ranks.tp)?;
            drafter::run(&models::pool(files.threads, files.ranks)?, &drafter, &inputs, &files.out)
        }
        Golden::Sampling(files) => sampling::run(&files.cases, &files.out),
        Golden::Text { what: GoldenText::Tokenizer { model, files } } => {
            text_tokenizer::run(model, &files.cases, &files.out)
        }
        Golden::Text { what: GoldenText::Chat(args) } => {
            text_prompt::chat(&args.files.cases, &args.files.out)
        }
        Golden::Text { what: GoldenText::Parser(args) } => {
            text_prompt::parser(&args.files.cases, &args.files.out)
        }
    }
}
