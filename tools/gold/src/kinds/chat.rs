//! Language models as text encoders: their networks alone, and whole sets with templates.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fresco_models::WeightStore;
use fresco_models::detect::stacks;
use fresco_models::text::decoder::{
    Decoder, DecoderConfig, Eyes, Flavour, QWEN3, RopeRule, Sections,
};
use fresco_models::text::post_norm::{Layout, PostNorm, PostNormConfig};
use fresco_models::text::qwen_vision::{Vision3, Vision3Config, Vision25, Vision25Config};
use fresco_models::text::sequence::{self, PicturePlace, RowNetwork, Rows, State};
use fresco_models::text::t5::{T5, T5Config};
use fresco_models::text::vocabulary::{BytePairs, Bytes, Tekken, Unigram, Vocabulary};
use fresco_models::text::{
    EncodeRule, LayerRule, PartOutput, Prompt, PromptTokens, Specials, States, TextStack, Token,
    Tokens, WritingGuidance, WritingRule, tokenize,
};
use fresco_tensor::{Device, Stored, Tensor, synthetic};
use serde_json::Value;

use super::Kind;
use super::text::{ids, tokens};
use crate::golden::{self, Golden, sizes};
use crate::report::Report;

/// Networks that write one token after the other.
const LANGUAGE: &[&str] = &[
    "Gemma 2",
    "Gemma 3",
    "Gemma 4",
    "Llama",
    "Mistral",
    "Qwen 2.5",
    "Qwen 3",
    "Qwen 3 VL",
    "Qwen 3.5",
];

pub(super) static KINDS: &[Kind] = &[
    Kind::own(
        "network that sees pictures (Qwen 2.5)",
        |golden| golden.has_key("visual.merger.ln_q.weight") && golden.about["grids"].is_object(),
        vision25,
    ),
    Kind::text(&["Qwen 3 VL"], "Qwen 3 VL", qwen3_vl),
    Kind::text(LANGUAGE, "text encoders of a model", whole_sets)
        .with(|golden| golden.about["cases"].is_array()),
    Kind::text(
        LANGUAGE,
        "text encoder with a fixed number of rows",
        fixed_rows,
    )
    .with(|golden| golden.has("out_first16")),
    Kind::text(LANGUAGE, "language model that writes", written)
        .with(|golden| golden.has("written")),
    Kind::text(LANGUAGE, "language model, several states", several_states)
        .with(|golden| golden.config()["full"].is_object()),
    Kind::text(LANGUAGE, "language model, all states", all_states).with(|golden| golden.has("all")),
    Kind::text(LANGUAGE, "language model", one_state)
        .with(|golden| golden.has("ids") && golden.has("out")),
    Kind::text(
        &["BERT", "Jina CLIP 2"],
        "encoder that looks both ways",
        both_ways,
    )
    .with(|golden| golden.has("ids")),
    Kind::own(
        "tokens of many text encoders",
        |golden| golden.about["cases"].is_object() && golden.about["cases"]["z_image"].is_array(),
        tokens_of_sets,
    ),
    Kind::own(
        "vocabulary of Mistral",
        |golden| golden.about["vocab"].is_array() && golden.about["special_tokens"].is_array(),
        tekken,
    ),
];

const PATCHES: &str = "visual.patch_embed.proj.weight";

/// Weights by the names used inside, with squares of pictures as matrices.
fn store(golden: &Golden, device: &Device) -> Result<Arc<WeightStore>> {
    let mut weights: BTreeMap<String, Stored> = BTreeMap::new();
    for (key, stored) in golden.weights()? {
        let key = match key.strip_prefix("language_model.") {
            Some(rest) => format!("model.{rest}"),
            None => key,
        };
        let stored = if key == PATCHES {
            let rows = stored.shape()[0];
            stored.reshape([rows, stored.len() / rows])?
        } else {
            stored
        };
        weights.insert(key, stored);
    }
    Ok(golden::store(&golden.name, weights, device))
}

/// The config of a decoder: what the weights say, and what the golden does.
fn config(store: &WeightStore, said: &Value) -> Result<DecoderConfig> {
    let has = |name: &str| store.has(&format!("model.layers.0.{name}.weight"));
    let flavour = if has("post_feedforward_layernorm") {
        if has("self_attn.q_norm") {
            Flavour::Gemma3
        } else {
            Flavour::Gemma2
        }
    } else if store.has("visual.pos_embed.weight") {
        Flavour::Qwen3Vl
    } else if has("self_attn.q_norm") {
        Flavour::Qwen3
    } else if store.has("model.layers.0.self_attn.k_proj.bias") {
        Flavour::Qwen25
    } else {
        Flavour::Llama
    };
    // Heads are narrower than published ones; their width is in the config.
    let head = said["head_dim"].as_u64().context("no head_dim")? as usize;
    let mut config = DecoderConfig::detect_with(store, flavour, Some(head))?;
    if let Some(eps) = said["rms_norm_eps"].as_f64() {
        config.eps = eps as f32;
    }
    let rope = |theta: &Value, slower: &Value| RopeRule {
        theta: theta.as_f64().unwrap_or(1e4),
        slower: slower.as_f64().unwrap_or(1.0),
        share: 1.0,
    };
    match &said["rope_theta"] {
        Value::Array(thetas) => {
            let slower = |at: usize| &said["rope_scale"][at];
            config.rope = rope(&thetas[0], slower(0));
            if let Some(sliding) = &mut config.sliding {
                sliding.rope = rope(&thetas[1], slower(1));
            }
        }
        Value::Null => {}
        theta => config.rope = rope(theta, &Value::Null),
    }
    if let Some(window) = said["sliding_window"].as_u64()
        && let Some(sliding) = &mut config.sliding
    {
        sliding.window = window as usize;
    }
    if let Some([t, h, w]) = sizes(&said["rope_dims"]).as_deref() {
        config.sections = Some(Sections::Chunks([*t, *h, *w]));
    }
    let parameters = &said["rope_parameters"];
    if let Some([t, h, w]) = sizes(&parameters["mrope_section"]).as_deref() {
        config.sections = Some(Sections::Interleaved([*t, *h, *w]));
        config.rope = rope(&parameters["rope_theta"], &Value::Null);
    }
    if let Some(layers) = said["num_hidden_layers"].as_u64() {
        config.layers = layers as usize;
    }
    if said["final_norm"] == false {
        config.final_norm = false;
    }
    Ok(config)
}

/// The network for pictures, with what only the golden says.
fn eyes25(store: &WeightStore, said: &Value) -> Result<Vision25> {
    let mut config = Vision25Config::detect(store)?;
    let heads = said["heads"].as_u64().or(said["num_heads"].as_u64());
    config.heads = heads.context("no heads")? as usize;
    config.full = sizes(&said["full"]).context("no list of full layers")?;
    Ok(Vision25::new(store, &config)?)
}

/// A made-up picture in 0..1.
fn picture(name: &str, shape: &[usize]) -> Result<Tensor> {
    let values = synthetic::value(name, shape, 1.0)?;
    Ok(values.map(|v| f32::midpoint(v, 1.0)))
}

fn vision25(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let mut config = Vision25Config::detect(&store)?;
    config.heads = golden.need("heads")?;
    config.full = golden.numbers("full").context("no list of full layers")?;
    let eyes = Vision25::new(&store, &config)?;
    let images = golden.about["images"].as_object().context("no pictures")?;
    for (name, size) in images {
        let size = sizes(size).context("a picture without a size")?;
        let image = picture(name, &[1, size[0], size[1], 3])?;
        if golden.has(name) {
            report.check(name, &image)?;
        }
        let (squares, (rows, columns)) = config.squares.cut(&image)?;
        let count = squares.dim(0)?;
        let first = golden.tensor(&format!("patches/{name}/first"))?.dim(0)?;
        report.check(
            &format!("patches/{name}/first"),
            &squares.narrow(0, 0, first)?,
        )?;
        let last = golden.tensor(&format!("patches/{name}/last"))?.dim(0)?;
        report.check(
            &format!("patches/{name}/last"),
            &squares.narrow(0, count - last, last)?,
        )?;
        let (order, _) = config.windows(rows / 2, columns / 2);
        let order: Vec<f32> = order.into_iter().map(|n| n as f32).collect();
        report.check(&format!("window_index/{name}"), &Tensor::from_slice(&order))?;
        report.check(&format!("out/{name}"), &eyes.see(&image)?.rows)?;
    }
    Ok(())
}

/// Text alone and with pictures that are cut already.
fn qwen3_vl(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let said = &golden.about["vision_config"];
    let config = config(&store, &golden.about["text_config"])?;
    let mut seen = Vision3Config::detect(&store)?;
    seen.heads = said["num_heads"].as_u64().context("no heads")? as usize;
    seen.deeper = sizes(&said["deepstack_visual_indexes"]).context("no deeper layers")?;
    let eyes = Vision3::new(&store, &seen)?;
    let network = Decoder::with_eyes(&store, &config, None)?;
    let layers = config.layers;
    let wanted: Vec<State> = (1..=layers)
        .map(State::After)
        .chain([State::Normed(layers)])
        .collect();
    let run = |case: &str,
               embedded: Tensor,
               ids: &[u32],
               pictures: &[PicturePlace],
               report: &mut Report<'_>|
     -> Result<()> {
        let rows = Rows {
            embedded: embedded.unsqueeze(0)?,
            ids: vec![ids],
            masks: None,
            pictures,
            pads_at: None,
        };
        let states = network.forward(&rows, &wanted)?;
        for (state, wanted) in states.iter().zip(&wanted) {
            let name = match wanted {
                State::After(at) => format!("out.{case}.layer{at}"),
                State::Normed(_) => format!("out.{case}.normed"),
            };
            report.check(&name, state)?;
        }
        Ok(())
    };
    // Only to say that they are known.
    for case in ["text", "image"] {
        golden.maybe(&format!("{case}.position_ids"))?;
    }
    let words = ids(golden, "text.ids")?;
    run("text", network.embed(&words)?, &words, &[], report)?;

    let squares = golden.tensor("image.pixel_values")?;
    let grids = golden.values("image.grid_thw")?;
    let all = ids(golden, "image.ids")?;
    let mut pictures = Vec::new();
    let (mut merged, mut deeper): (Vec<Tensor>, Vec<Vec<Tensor>>) = (Vec::new(), Vec::new());
    let mut at = 0;
    for grid in grids.chunks_exact(3) {
        let (rows, columns) = (grid[1] as usize, grid[2] as usize);
        let own = squares.narrow(0, at, rows * columns)?;
        at += rows * columns;
        let found = eyes.see_squares(&own, rows, columns)?;
        deeper.push(found.deeper.clone());
        merged.push(found.rows.clone());
        pictures.push(found);
    }
    let all_of = |list: Vec<&Tensor>| Tensor::cat(&list, 0);
    report.check("out.vision.merged", &all_of(merged.iter().collect())?)?;
    for k in 0..seen.deeper.len() {
        let list = deeper.iter().map(|d| &d[k]).collect();
        report.check(&format!("out.vision.deepstack{k}"), &all_of(list)?)?;
    }
    // A picture's token stands once for each of its rows.
    let pad = most_common(&all).context("no tokens")?;
    let mut parts = Vec::new();
    let mut places = Vec::new();
    let (mut row, mut next) = (0, pictures.into_iter());
    while row < all.len() {
        if all[row] != pad {
            parts.push(network.embed(&all[row..=row])?);
            row += 1;
            continue;
        }
        let found = next.next().context("more places than pictures")?;
        let len = found.rows.dim(0)?;
        places.push(PicturePlace {
            start: row,
            len,
            grid: found.grid,
            deeper: found.deeper,
        });
        parts.push(found.rows);
        row += len;
    }
    let embedded = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
    run("image", embedded, &all, &places, report)
}

fn most_common(ids: &[u32]) -> Option<u32> {
    let count = |id: &u32| ids.iter().filter(|other| *other == id).count();
    ids.iter().copied().max_by_key(count)
}

/// Padding with this number, no end.
fn padded(pad: u32, start: Option<u32>) -> Specials {
    Specials {
        start,
        end: None,
        pad,
    }
}

fn rule(states: States, specials: Specials) -> EncodeRule {
    EncodeRule {
        states,
        masked: true,
        ..EncodeRule::layer(LayerRule::LAST, specials)
    }
}

fn one_state(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let network = Decoder::new(&store, &config(&store, golden.config())?)?;
    let layer = golden.config()["layer"].as_i64().unwrap_or(-2);
    let rule = rule(States::One(LayerRule::bare(layer)), padded(0, None));
    let output = sequence::encode(&network, &tokens(&ids(golden, "ids")?), &rule, None)?;
    if golden.has("mask") {
        report.check("mask", &output.mask.context("no mask")?)?;
    }
    report.check("out", &output.hidden)
}

/// Mistral as Flux 2 reads it, whole and without its last layers.
fn several_states(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let cases = [
        ("full", "ids", "out/full", "mask/full"),
        ("pruned", "ids", "out/pruned", ""),
        ("full", "ids/pad", "out/pad", "mask/pad"),
    ];
    for (which, ids_name, out, mask) in cases {
        let said = &golden.config()[which];
        if !golden.has(out) {
            continue;
        }
        let network = Decoder::new(&store, &config(&store, said)?)?;
        let layers = sizes(&said["layers"]).context("no list of layers")?;
        let states = States::Entering(layers.leak());
        let tokens = tokens(&ids(golden, ids_name)?);
        let output = sequence::encode(&network, &tokens, &rule(states, padded(0, Some(1))), None)?;
        report.check(out, &output.hidden)?;
        if golden.has(mask) {
            report.check(mask, &output.mask.context("no mask")?)?;
        }
    }
    Ok(())
}

fn all_states(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = store(golden, device)?;
    let network = Decoder::new(&store, &config(&store, golden.config())?)?;
    // Said in words only.
    let rule = rule(States::All, padded(9, Some(1)));
    let mut tokens = tokens(&ids(golden, "ids")?);
    let output = sequence::encode(&network, &tokens, &rule, None)?;
    report.check("all", &output.hidden)?;
    report.check("mask", &output.mask.context("no mask")?)?;
    let states = output.hidden.dim(1)?;
    report.check(
        "conditioning_llama3",
        &output.hidden.narrow(1, 1, states - 1)?,
    )?;
    tokens.chunks[0][2].weight = 1.5;
    let output = sequence::encode(&network, &tokens, &rule, None)?;
    report.check("weighted/all", &output.hidden)
}

fn layout(golden: &Golden) -> Option<Layout> {
    if golden.has_key("bert.embeddings.word_embeddings.weight") {
        return Some(Layout::Bert);
    }
    let jina = golden.has_key("model.encoder.layers.0.mixer.Wqkv.weight");
    jina.then_some(Layout::Jina)
}

fn both_ways(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let layout = layout(golden).context("neither of both")?;
    let store = golden.store(device)?;
    let mut config = PostNormConfig::detect(&store, layout)?;
    config.heads = golden.need("num_attention_heads")?;
    if let Some(eps) = golden.config()["layer_norm_eps"].as_f64() {
        config.eps = eps as f32;
    }
    if let Some(theta) = golden.config()["rotary_emb_base"].as_f64() {
        config.theta = theta;
    }
    let network = PostNorm::new(&store, &config)?;
    let specials = match layout {
        Layout::Bert => Specials {
            start: Some(101),
            end: Some(102),
            pad: 0,
        },
        Layout::Jina => Specials {
            start: Some(0),
            end: Some(2),
            pad: 1,
        },
    };
    let rule = rule(States::One(LayerRule::LAST), specials);
    let output = sequence::encode(&network, &tokens(&ids(golden, "ids")?), &rule, None)?;
    report.check("mask", &output.mask.context("no mask")?)?;
    report.check("out", &output.hidden)?;
    if golden.has("pooled") {
        report.check("pooled", &output.pooled.context("no vector")?)?;
    }
    Ok(())
}

/// Which set a golden of whole sets is for, told by what it says of its tokens and layers.
fn set_of(golden: &Golden) -> Result<&'static TextStack> {
    let case = &golden.about["cases"][0];
    let has = |name: &str| case["ids"][name].is_array();
    let layer = golden.config()["layer"].as_i64();
    Ok(match layer {
        _ if has("qwen3_4b") => &stacks::Z_IMAGE,
        _ if has("qwen25_3b") => &stacks::OMNIGEN2,
        Some(-3) => &stacks::HUNYUAN_IMAGE,
        Some(-1) => &stacks::KANDINSKY5_IMAGE,
        None if golden.any_key("visual.") => &stacks::QWEN_IMAGE,
        _ => bail!("no set is known that has these cases"),
    })
}

/// The numbers of one chunk; pictures as -1.
fn shown(tokens: &Tokens) -> Vec<Vec<i64>> {
    let id = |token: &Token| match token {
        Token::Id(id) => i64::from(*id),
        _ => -1,
    };
    let chunks = tokens.chunks.iter();
    chunks
        .map(|c| c.iter().map(|t| id(&t.token)).collect())
        .collect()
}

/// Lists of numbers; where one has a weight only the number.
fn listed(value: &Value) -> Vec<Vec<i64>> {
    let id = |v: &Value| v.as_i64().or(v[0].as_i64()).unwrap_or(i64::MIN);
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    if list.first().is_some_and(|first| !first.is_array()) {
        return vec![list.iter().map(id).collect()];
    }
    let chunk = |c: &Value| {
        c.as_array()
            .map_or(Vec::new(), |c| c.iter().map(id).collect())
    };
    list.iter().map(chunk).collect()
}

/// A text through the tokenizer, the networks and the end of a set.
fn whole_sets(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let stack = set_of(golden)?;
    let store = store(golden, device)?;
    let config = config(&store, golden.config())?;
    let eyes: Option<Box<dyn Eyes>> = match &golden.config()["vision"] {
        Value::Null => None,
        said => Some(Box::new(eyes25(&store, said)?)),
    };
    let network = Decoder::with_eyes(&store, &config, eyes)?;
    let glyphs = glyphs(device)?;
    let words = BytePairs::qwen2();
    let cases = golden.about["cases"].as_array().context("no cases")?;
    for (at, case) in cases.iter().enumerate() {
        let text = case["text"].as_str().context("a case without text")?;
        let pictures = case["images"].as_array().map_or(&[][..], Vec::as_slice);
        let pictures = pictures.iter().map(|said| {
            let shape = sizes(&said["shape"]).context("a picture without a shape")?;
            picture(
                said["name"].as_str().context("a picture without a name")?,
                &shape,
            )
        });
        let pictures = pictures.collect::<Result<Vec<Tensor>>>()?;
        let prompt = Prompt {
            pictures: &pictures,
            template: (case["template"] == "edit_plus").then_some(stacks::EDIT_TEMPLATE),
            ..Prompt::new(text)
        };
        let (main, others) = stack.parts.split_first().context("an empty set")?;
        let own = tokenize(&*words, &prompt, &main.prompt)?;
        let expected = match &case["ids"] {
            Value::Object(all) => listed(&all[main.name]),
            list => listed(list),
        };
        report.equal(&format!("tokens of {text:?}"), &shown(&own), &expected);
        let mut all = PromptTokens(vec![(main.name, own)]);
        let bytes = others.iter().find(|part| part.name == "byt5");
        if let Some(part) = bytes {
            let own = tokenize(&Bytes { first: 3 }, &prompt, &part.prompt)?;
            if let Some(ids) = case["ids"].get("byt5") {
                report.equal(&format!("bytes of {text:?}"), &shown(&own), &listed(ids));
            }
            all.0.push((part.name, own));
        }
        let mut outputs: Vec<Option<PartOutput<'_>>> = Vec::new();
        for part in stack.parts {
            let tokens = all.get(part.name).filter(|t| !t.chunks.is_empty());
            let output = match tokens {
                Some(tokens) if part.name == main.name => Some((
                    tokens,
                    sequence::encode(&network, tokens, &part.rule, None)?,
                )),
                Some(tokens) => {
                    let glyphs = glyphs.as_ref().context("no weights for bytes")?;
                    Some((tokens, sequence::encode(glyphs, tokens, &part.rule, None)?))
                }
                None => None,
            };
            outputs.push(output.map(|(tokens, output)| PartOutput { tokens, output }));
        }
        let encoded = (stack.join)(outputs, &all)?;
        report.check(&format!("out/{at}"), &encoded.cond)?;
        for (name, value) in &encoded.extras {
            let key = format!("{name}/{at}");
            if golden.has(&key) {
                report.check(&key, value)?;
            }
        }
        let extras: Vec<&str> = encoded.extras.iter().map(|(name, _)| *name).collect();
        if let Some(names) = case["extras"].as_array() {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            report.equal(&format!("extras of {text:?}"), &extras, &names);
        }
    }
    Ok(())
}

/// The small network of bytes whose weights follow from its names.
fn glyphs(device: &Device) -> Result<Option<T5>> {
    let (hidden, inner, layers, heads, width) = (64, 96, 2, 4, 16);
    let mut keys = vec![
        ("shared.weight".to_owned(), vec![1510, hidden]),
        ("encoder.final_layer_norm.weight".to_owned(), vec![hidden]),
    ];
    for i in 0..layers {
        let first = format!("encoder.block.{i}.layer.0");
        let second = format!("encoder.block.{i}.layer.1");
        keys.push((format!("{first}.layer_norm.weight"), vec![hidden]));
        keys.push((format!("{second}.layer_norm.weight"), vec![hidden]));
        for name in ["q", "k", "v"] {
            let key = format!("{first}.SelfAttention.{name}.weight");
            keys.push((key, vec![heads * width, hidden]));
        }
        keys.push((
            format!("{first}.SelfAttention.o.weight"),
            vec![hidden, heads * width],
        ));
        for name in ["wi_0", "wi_1"] {
            let key = format!("{second}.DenseReluDense.{name}.weight");
            keys.push((key, vec![inner, hidden]));
        }
        keys.push((
            format!("{second}.DenseReluDense.wo.weight"),
            vec![hidden, inner],
        ));
    }
    let bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    keys.push((bias.to_owned(), vec![32, heads]));
    let store = golden::store("bytes", golden::weights(&keys)?, device);
    Ok(Some(T5::new(&store, &T5Config::detect(&store)?)?))
}

fn fixed_rows(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let stack = &stacks::OVIS;
    let store = store(golden, device)?;
    let network = Decoder::new(&store, &config(&store, golden.config())?)?;
    let part = &stack.parts[0];
    let text = golden.about["text"].as_str().context("no text")?;
    let own = tokenize(&*BytePairs::qwen2(), &Prompt::new(text), &part.prompt)?;
    let numbers: Vec<f32> = shown(&own)[0].iter().map(|id| *id as f32).collect();
    report.check("ids", &Tensor::from_slice(&numbers))?;
    let output = sequence::encode(&network, &own, &part.rule, None)?;
    let all = PromptTokens(vec![(part.name, own)]);
    let tokens = all.get(part.name).context("no tokens")?;
    let encoded = (stack.join)(vec![Some(PartOutput { tokens, output })], &all)?;
    let shape = sizes(&golden.about["out_shape"]).context("no shape")?;
    report.equal("shape", &encoded.cond.shape().to_vec(), &shape);
    report.check("out_first16", &encoded.cond.narrow(1, 0, 16)?)?;
    report.check("out_last", &encoded.cond.narrow(1, shape[1] - 1, 1)?)
}

/// Tokens of a range after a prompt, led away from another.
fn written(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let network = (QWEN3.open)(store(golden, device)?)?;
    let read = |name: &str| Ok::<Tokens, anyhow::Error>(tokens(&ids(golden, name)?));
    let expected = ids(golden, "written")?;
    let scale = golden.float("scale").context("no scale")?;
    let (first, end) = (golden.need("first")?, golden.need("end")?);
    let rule = WritingRule {
        most: expected.len(),
        draw: None,
        stops: Vec::new(),
        only: Some(first as u32..end as u32),
        guidance: Some(WritingGuidance {
            scale: scale as f32,
            away_from: read("away")?,
        }),
    };
    let found = network.write(&read("ids")?, &rule, &mut |_| Ok(()))?;
    report.equal("written", &found, &expected);
    Ok(())
}

/// Tokens of prompts in the templates of many sets.
fn tokens_of_sets(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let cases = golden.about["cases"].as_object().context("no cases")?;
    if !device.is_cpu() {
        // No numbers are moved anywhere.
        report.equal("nothing to compute", &(), &());
        return Ok(());
    }
    let mistral = mini(golden)?;
    for (set, cases) in cases {
        let stack = match &**set {
            "qwen_image" => &stacks::QWEN_IMAGE,
            "z_image" => &stacks::Z_IMAGE,
            "ovis" => &stacks::OVIS,
            "omnigen2" => &stacks::OMNIGEN2,
            "hunyuan_image" => &stacks::HUNYUAN_IMAGE,
            "kandinsky5_image" => &stacks::KANDINSKY5_IMAGE,
            "pixart_chroma" => &stacks::CHROMA,
            "flux2_mini_tekken" => &stacks::FLUX2,
            // Their vocabularies may not be shipped.
            "auraflow" | "hydit_bert" => continue,
            other => bail!("the set {other} is not known"),
        };
        for case in cases.as_array().context("no cases")? {
            let text = case["text"].as_str().context("a case without text")?;
            for part in stack.parts {
                // CLIP has a golden of its own.
                let words: Arc<dyn Vocabulary> = match part.name {
                    "clip_l" => continue,
                    "byt5" => Arc::new(Bytes { first: 3 }),
                    "t5xxl" => Unigram::t5(),
                    "mistral3_24b" => match &mistral {
                        Some(mistral) => Arc::clone(mistral) as Arc<dyn Vocabulary>,
                        None => continue,
                    },
                    _ => BytePairs::qwen2(),
                };
                let found = tokenize(&*words, &Prompt::new(text), &part.prompt)?;
                let expected = case["ids"].get(part.name).map_or(Vec::new(), listed);
                report.equal(
                    &format!("{set}, {}: {text:?}", part.name),
                    &shown(&found),
                    &expected,
                );
            }
        }
    }
    Ok(())
}

/// The small vocabulary that lies beside a golden.
fn mini(golden: &Golden) -> Result<Option<Arc<Tekken>>> {
    let path = golden.folder.join("mini_tekken.json");
    if !path.is_file() {
        return Ok(None);
    }
    let json = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Some(Arc::new(Tekken::parse(&json, "mini_tekken")?)))
}

/// A vocabulary alone: every word of it is a token by itself.
fn tekken(golden: &Golden, _: &Device, report: &mut Report<'_>) -> Result<()> {
    let json = serde_json::to_vec(&golden.about)?;
    let words = Tekken::parse(&json, &golden.name)?;
    let marks = golden.about["special_tokens"]
        .as_array()
        .context("no marks")?;
    for (id, mark) in marks.iter().enumerate() {
        if let Some(text) = mark["token_str"].as_str() {
            report.equal(text, &words.encode(text), &vec![id as u32]);
        }
    }
    if report.compared() == 0 {
        return Err(anyhow!("there are no marks with a text"));
    }
    Ok(())
}
