//! What of a condition goes into the network.

use fresco_tensor::Tensor;

use super::config::Qwen21Config;
use crate::denoise::{CondValue, EncodeArgs, ModelConds, names};
use crate::error::{ModelError, Result};
use crate::latent_format;

/// The tensor (1, n) of a conditioning that says which rows of the prompt are those of pictures: their numbers from 1 on, 0
/// for words.
pub const SLOTS: &str = "picture_slots";

/// The prompt, latents of reference pictures, and their places.
pub(super) fn conds(
    config: &Qwen21Config,
    file: &str,
    args: &EncodeArgs<'_>,
) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    let tokens = args.prompt_of_width(config.context, file)?.clone();
    let list = args.cond.lists.get("reference_latents");
    let references = list.map_or(&[][..], Vec::as_slice).iter();
    let references = references.map(|latent| reference(config, file, latent));
    let references = references.collect::<Result<Vec<_>>>()?;
    let (tokens, places) = match args.cond.tensors.get(SLOTS) {
        Some(slots) if !references.is_empty() => {
            without_pictures(&tokens, slots, references.len())?
        }
        _ => (tokens, Vec::new()),
    };
    // Positions count, so prompts of other lengths are not repeated to fit.
    conds.insert(names::PROMPT, CondValue::Regular(tokens));
    if !references.is_empty() {
        conds.insert(names::REFERENCES, CondValue::List(references));
        let places: Vec<String> = places.iter().map(usize::to_string).collect();
        conds.insert("ref_slots", CondValue::Word(places.join(",").into()));
    }
    Ok(conds)
}

/// The rows of words, and how many of them stand before each picture. The network sees pictures as their latents.
fn without_pictures(
    tokens: &Tensor,
    slots: &Tensor,
    pictures: usize,
) -> Result<(Tensor, Vec<usize>)> {
    let rows = tokens.dim(1)?;
    if slots.len() != rows {
        let reason = format!("{} marks for {rows} rows of the prompt", slots.len());
        return Err(ModelError::invalid("conditioning", reason));
    }
    let mut words = Vec::new();
    let mut places: Vec<Option<usize>> = vec![None; pictures];
    for (row, slot) in slots.data().iter().enumerate() {
        if *slot < 1.0 {
            words.push(row);
        } else if let Some(place) = places.get_mut(*slot as usize - 1) {
            place.get_or_insert(words.len());
        }
    }
    // Pictures that the prompt does not name stand behind it.
    let places = places.into_iter().map(|place| place.unwrap_or(words.len()));
    Ok((tokens.index_select(1, &words)?, places.collect()))
}

/// Places as [`conds`] writes them.
pub(super) fn slots(word: Option<&str>) -> Result<Vec<usize>> {
    let Some(word) = word.filter(|word| !word.is_empty()) else {
        return Ok(Vec::new());
    };
    let numbers = word.split(',').map(|number| number.trim().parse());
    numbers.collect::<std::result::Result<_, _>>().map_err(|_| {
        let reason = format!("{word:?} are no places of reference pictures");
        ModelError::invalid("conditioning", reason)
    })
}

/// A latent of a picture as the network sees it.
fn reference(config: &Qwen21Config, file: &str, latent: &Tensor) -> Result<Tensor> {
    match *latent.shape() {
        [_, channels, _, _] if channels == config.input && !latent.is_empty() => {
            Ok(latent_format::QWEN_IMAGE_21.process_in(latent)?)
        }
        ref shape => Err(ModelError::unsupported(
            file,
            format!(
                "a reference picture has a latent of shape {shape:?}, but this model works on {} channels: it was \
                 encoded with the VAE of another family of models. Load the one that belongs to this model",
                config.input
            ),
        )),
    }
}
