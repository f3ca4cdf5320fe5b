//! Language models whose layers are not all alike (Gemma 4), alone, with a picture and with a sound.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use fresco_models::WeightStore;
use fresco_models::text::Memory;
use fresco_models::text::decoder::{
    Decoder, DecoderConfig, Ears, EarsConfig, Flavour, Tiles, TilesConfig, heard_bands,
};
use fresco_models::text::sequence::{NO_WORD, PicturePlace, RowNetwork, Rows, State};
use fresco_tensor::{Device, Stored, Tensor};

use super::Kind;
use super::text::ids;
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::text(
        &["Gemma 4"],
        "language model whose layers are not all alike, with a picture",
        with_picture,
    )
    .with(|golden| golden.has("squares")),
    Kind::text(
        &["Gemma 4"],
        "language model whose layers are not all alike, with a sound",
        with_sound,
    )
    .with(|golden| golden.has("heard")),
    Kind::text(
        &["Gemma 4"],
        "language model whose layers are not all alike",
        alone,
    )
    .with(|golden| golden.has("logits")),
];

/// Weights by the names used inside. What holds down numbers is not made up: it is in the config.
fn store(golden: &Golden, device: &Device) -> Result<Arc<WeightStore>> {
    let mut weights: BTreeMap<String, Stored> = BTreeMap::new();
    for (key, stored) in golden.weights()? {
        let last = key.rsplit('.').next().unwrap_or_default();
        let limit = golden.config()["limits"][last].as_f64();
        let stored = match limit {
            Some(limit) => Stored::from(&Tensor::from_vec([], vec![limit as f32])?),
            None => stored,
        };
        let key = match key.strip_prefix("model.language_model.") {
            Some(rest) => format!("model.{rest}"),
            None if key.contains("vision") || key.contains("audio") => {
                key.replacen("model.", "", 1)
            }
            None => key,
        };
        weights.insert(key, stored);
    }
    Ok(golden::store(&golden.name, weights, device))
}

fn decoder(golden: &Golden, store: &WeightStore) -> Result<(Decoder, Vec<State>)> {
    let mut config = DecoderConfig::detect(store, Flavour::Gemma4)?;
    let window = golden.need("sliding_window")?;
    config.sliding.as_mut().context("nothing slides")?.window = window;
    let states = (0..config.layers).map(State::After);
    let states = states.chain([State::Normed(config.layers)]).collect();
    Ok((Decoder::with_eyes(store, &config, None)?, states))
}

fn check_states(states: &[Tensor], report: &mut Report<'_>) -> Result<()> {
    for (at, state) in states.iter().enumerate() {
        report.check(&format!("state/{at}"), state)?;
    }
    Ok(())
}

/// Every state by itself, and the scores of the word after the last.
fn alone(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let (network, wanted) = decoder(golden, &store)?;
    let words = ids(golden, "ids")?;
    let rows = Rows {
        embedded: network.embed(&words)?.unsqueeze(0)?,
        ids: vec![&words],
        masks: None,
        pictures: &[],
        pads_at: None,
    };
    check_states(&network.forward(&rows, &wanted)?, report)?;
    let last = network.read(&rows, &mut Memory::default())?;
    report.check("logits", &Decoder::head(&store)?.forward(&last)?)
}

/// What is seen in squares, and every state of words around them.
fn with_picture(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let eyes = Tiles::new(&store, &TilesConfig::detect(&store)?)?;
    let grid = golden.numbers("grid").context("no grid")?;
    let squares = golden.tensor("squares")?.map(|v| 2.0 * (v - 0.5));
    let seen = eyes.see_squares(&squares, grid[0], grid[1])?;
    report.check("seen", &seen)?;

    let mark = golden.need("picture")? as u32;
    let grid = Some((grid[0] / 3, grid[1] / 3));
    among_words(golden, &store, (mark, &seen), grid, report)
}

/// What is heard in bands, the bands of a wave, and every state of words around a sound.
fn with_sound(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let ears = Ears::new(&store, &EarsConfig::detect(&store)?)?;
    let heard = ears.hear_bands(&golden.tensor("bands")?)?;
    report.check("heard", &heard)?;
    let wave = golden.tensor("wave")?;
    let wave = wave.reshape([1, 1, wave.len()])?;
    report.check("mel", &heard_bands(&wave, 128)?)?;
    let mark = golden.need("sound")? as u32;
    among_words(golden, &store, (mark, &heard), None, report)
}

/// The states of words, among which rows of something else stand in the place of a mark.
fn among_words(
    golden: &Golden,
    store: &WeightStore,
    (mark, other): (u32, &Tensor),
    grid: Option<(usize, usize)>,
    report: &mut Report<'_>,
) -> Result<()> {
    let (network, wanted) = decoder(golden, store)?;
    let mut words = ids(golden, "ids")?;
    let is_mark = |id: &u32| *id == mark;
    let start = words.iter().position(is_mark).context("no mark")?;
    let len = words.iter().filter(|id| is_mark(id)).count();
    words[start..start + len].fill(NO_WORD);
    let unscaled = (other.dim(1)? as f32).sqrt().recip();
    let parts = [
        network.embed(&words[..start])?,
        other.mul_scalar(unscaled),
        network.embed(&words[start + len..])?,
    ];
    let place = grid.map(|grid| PicturePlace {
        start,
        len,
        grid,
        deeper: Vec::new(),
    });
    let rows = Rows {
        embedded: Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?.unsqueeze(0)?,
        ids: vec![&words],
        masks: None,
        pictures: place.as_slice(),
        pads_at: None,
    };
    check_states(&network.forward(&rows, &wanted)?, report)
}
