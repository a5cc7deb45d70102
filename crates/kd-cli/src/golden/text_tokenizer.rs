//! `kd golden text tokenizer`: fills in the ids and texts of a tokenizer case file.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kd_text::{StreamDecoder, Tokenizer, tokenizer};
use serde_json::{Map, Value};

use super::json_file;

/// Reads `cases`, the golden set's shape with any subset of its sections and without the expected fields, and writes it
/// to `out` with those fields computed by the tokenizer in the checkpoint directory `model`:
/// `encode` gains `ids_special` and `ids_plain`, `decode` gains `text` and `skip_special`, `stream` gains `pieces` and
/// `text`. Everything else is kept. The file appears whole or not at all.
pub(super) fn run(model: &Path, cases: &Path, out: &Path) -> Result<()> {
    let tokenizer = Tokenizer::from_dir(model)?;
    let mut file: Value = json_file::read(cases)?;
    fill(&tokenizer, &mut file).with_context(|| format!("in {}", cases.display()))?;
    json_file::write(out, &file)
}

fn fill(tokenizer: &Tokenizer, cases: &mut Value) -> Result<()> {
    let sections = cases.as_object_mut().context("expected an object of sections at the top")?;
    check_facts(tokenizer, sections)?;
    let fillers: [(&str, Filler); 3] = [("encode", encode), ("decode", decode), ("stream", stream)];
    let mut filled = 0;
    for (section, filler) in fillers {
        let Some(cases) = sections.get_mut(section) else { continue };
        let cases = cases.as_array_mut().with_context(|| format!("{section}: expected an array"))?;
        for (index, case) in cases.iter_mut().enumerate() {
            let object = case.as_object_mut().context("expected an object");
            object.and_then(|case| filler(tokenizer, case)).with_context(|| format!("{section}[{index}]"))?;
            filled += 1;
        }
    }
    ensure!(filled > 0, "no tokenizer cases");
    Ok(())
}

/// The file says what tokenizer it is for; another one would fill in numbers that mean nothing.
fn check_facts(tokenizer: &Tokenizer, sections: &Map<String, Value>) -> Result<()> {
    for (field, ours) in [
        ("n_base", Value::from(tokenizer.base_vocab_size())),
        ("vocab_size", Value::from(tokenizer.vocab_size())),
        ("pattern", Value::from(tokenizer::pattern())),
    ] {
        match sections.get(field) {
            Some(theirs) if *theirs != ours => {
                bail!("{field} is {theirs}, but the tokenizer given by --model has {ours}")
            }
            _ => {}
        }
    }
    Ok(())
}

/// Computes the expected fields of one case.
type Filler = fn(&Tokenizer, &mut Map<String, Value>) -> Result<()>;

fn encode(tokenizer: &Tokenizer, case: &mut Map<String, Value>) -> Result<()> {
    let text = case.get("text").and_then(Value::as_str).context("text: expected a string")?.to_owned();
    case.insert("ids_special".into(), tokenizer.encode_with_special(&text)?.into());
    case.insert("ids_plain".into(), tokenizer.encode_ordinary(&text)?.into());
    Ok(())
}

fn decode(tokenizer: &Tokenizer, case: &mut Map<String, Value>) -> Result<()> {
    let ids = ids(case)?;
    case.insert("text".into(), tokenizer.decode(&ids, false)?.into());
    case.insert("skip_special".into(), tokenizer.decode(&ids, true)?.into());
    Ok(())
}

fn stream(tokenizer: &Tokenizer, case: &mut Map<String, Value>) -> Result<()> {
    let mut decoder = StreamDecoder::new(tokenizer, false);
    let mut pieces = ids(case)?.into_iter().map(|id| decoder.push(id)).collect::<Result<Vec<_>, _>>()?;
    pieces.push(decoder.finish());
    case.insert("text".into(), pieces.concat().into());
    case.insert("pieces".into(), pieces.into());
    Ok(())
}

fn ids(case: &Map<String, Value>) -> Result<Vec<u32>> {
    let ids = case.get("ids").context("ids: missing")?;
    serde_json::from_value(ids.clone()).context("ids: expected an array of token ids")
}
