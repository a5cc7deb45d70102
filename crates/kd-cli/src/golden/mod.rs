//! `kd golden`: the engine's numbers for golden inputs, in the shape that the golden set's checker reads.

mod drafter;
mod drafter_cuda;
mod json_file;
mod model;
mod record;
mod runner;
mod sampling;
mod text_prompt;
mod text_tokenizer;

use kd_model::{Drafter, Target};
use kd_tensor::safetensors::SafeTensors;

use crate::args::{Device, Golden, GoldenArgs, GoldenText};
use crate::{models, place};
use runner::Runner;

pub(crate) fn run(args: &GoldenArgs) -> anyhow::Result<()> {
    match &args.what {
        Golden::Model { model, cache, files } => {
            if let Device::Cuda(_) = files.device {
                place::one_rank(files.ranks)?;
            }
            let inputs = SafeTensors::open(&files.inputs)?;
            let target = Target::load_sharded(model, files.ranks.tp)?.with_kv_cache_dtype(cache.dtype());
            let pool = models::pool(files.threads, files.ranks)?;
            let runner = match files.device {
                Device::Cuda(ordinal) => Runner::cuda(&target, ordinal)?,
                Device::Auto | Device::Cpu => Runner::cpu(&target, &pool),
            };
            model::run(runner, &inputs, &files.out)
        }
        Golden::Drafter { drafter, files } => {
            if let Device::Cuda(_) = files.device {
                place::one_rank(files.ranks)?;
            }
            let inputs = SafeTensors::open(&files.inputs)?;
            let drafter = Drafter::load_sharded(drafter, files.ranks.tp)?;
            match files.device {
                Device::Cuda(ordinal) => drafter_cuda::run(ordinal, &drafter, &inputs, &files.out),
                Device::Auto | Device::Cpu => {
                    drafter::run(&models::pool(files.threads, files.ranks)?, &drafter, &inputs, &files.out)
                }
            }
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
