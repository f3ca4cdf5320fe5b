//! Prompts as packs take them apart: tokens with weights, by the names of the networks.

use std::sync::Arc;

use fresco_graph::{Args, Cx, Map, NodeError, Value, map};
use fresco_models::text::{
    PromptTokens, PromptWeights, StackPart, TextNetwork, Token, Tokens, Weighted,
};
use fresco_tensor::Tensor;

use super::{clip, patches};
use crate::clip::Clip;
use crate::sampling::run::failure;
use crate::types::{as_tensor, tensor};

/// A text encoder with what a pack changed about it.
pub(super) fn derive(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let clip = clip(&mut args)?;
    let mut clip = patches::add(clip, args.take_or("patches", Vec::new())?, cx)?;
    if let Some(layer) = args.take::<Option<i64>>("layer")? {
        clip.layer = Some(layer);
    }
    if let Some(options) = args.take::<Option<Arc<Map>>>("options")? {
        for (name, value) in options.iter() {
            if let Some(number) = value.as_int().and_then(|n| i64::try_from(n).ok()) {
                clip.tokenizer_options.insert(name.to_string(), number);
            }
        }
    }
    Ok(clip.into())
}

/// Chunks of `[token, weight, word]` by network. A row of an embedding is a tensor, a picture a tensor of four dimensions.
pub(super) fn tokenize(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let clip = clip(&mut args)?;
    let text: String = args.take("text")?;
    let tokens = clip.tokenize(&text, cx)?;
    let mut out = Map::new();
    for (network, tokens) in tokens.0 {
        let chunks: Result<Vec<Value>, NodeError> = tokens
            .chunks
            .iter()
            .map(|chunk| {
                let rows: Result<Vec<Value>, NodeError> = chunk.iter().map(written).collect();
                rows.map(Value::from)
            })
            .collect();
        out.insert(network.into(), chunks?.into());
    }
    Ok(out.into())
}

fn written(one: &Weighted) -> Result<Value, NodeError> {
    let token = match &one.token {
        Token::Id(id) => Value::from(u64::from(*id)),
        Token::Vector(row) => tensor(Tensor::from_slice(row)),
        Token::Picture(given) | Token::Sound(given) => tensor((**given).clone()),
    };
    let parts: Vec<Value> = vec![token, Value::Float(one.weight), one.word.into()];
    Ok(parts.into())
}

/// Tokens back from what [`tokenize`] gave and a pack may have changed. The networks are those of the encoder.
fn read(clip: &Clip, given: &Map, cx: &Cx) -> Result<PromptTokens, NodeError> {
    // An empty prompt knows the names of the networks.
    let mut tokens = clip.tokenize("", cx)?;
    for (network, own) in &mut tokens.0 {
        if let Some(chunks) = given.get(*network).and_then(Value::as_list) {
            *own = read_chunks(network, chunks)?;
        }
    }
    Ok(tokens)
}

fn read_chunks(network: &str, chunks: &[Value]) -> Result<Tokens, NodeError> {
    let chunks: Option<Vec<Vec<Weighted>>> = chunks
        .iter()
        .map(|chunk| chunk.as_list()?.iter().map(weighted).collect())
        .collect();
    let chunks = chunks.ok_or_else(|| {
        NodeError::type_error(format!(
            "the tokens for {network} are not lists of (token, weight)"
        ))
    })?;
    Ok(Tokens {
        chunks,
        missing: Vec::new(),
    })
}

fn weighted(value: &Value) -> Option<Weighted> {
    let parts = value.as_list()?;
    let token = match parts.first()? {
        Value::Int(id) => Token::Id(u32::try_from(*id).ok()?),
        other => {
            let tensor = as_tensor(other)?;
            match tensor.rank() {
                1 => Token::Vector(tensor.data().into()),
                3 => Token::Sound(Arc::new(tensor.clone())),
                _ => Token::Picture(Arc::new(tensor.clone())),
            }
        }
    };
    let word = parts.get(2).and_then(Value::as_int).unwrap_or(0);
    Some(Weighted {
        token,
        weight: parts.get(1)?.as_f64()?,
        word: usize::try_from(word).unwrap_or(0),
    })
}

/// The layer that a pack chose for this call; a list of one entry, which may be nothing.
fn choose_layer(clip: &mut Clip, args: &mut Args) -> Result<(), NodeError> {
    if let Some(chosen) = args.take::<Option<Vec<Value>>>("layer")? {
        let layer = chosen.first().and_then(Value::as_int);
        clip.layer = layer.and_then(|layer| i64::try_from(layer).ok());
    }
    Ok(())
}

/// The network of an encoder that a pack names.
fn network<'a>(
    clip: &'a Clip,
    name: &str,
) -> Result<(&'static StackPart, &'a Arc<dyn TextNetwork>), NodeError> {
    let mut networks = clip.encoder().networks();
    networks
        .find(|(place, _)| place.name == name)
        .ok_or_else(|| {
            let stack = clip.encoder().stack();
            NodeError::value_error(format!("the text encoder {stack:?} has no network {name}"))
        })
}

/// Facts about an encoder: its kind, and how each of its networks reads prompts.
pub(super) fn info(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let clip = clip(&mut args)?;
    let encoder = clip.encoder();
    let number = |value: Option<u32>| value.map_or(Value::Null, |id| Value::from(u64::from(id)));
    let parts = encoder.stack().parts.iter().map(|place| {
        let part = encoder.network(place.name);
        let chunks = place.prompt.chunks;
        let positions = part.and_then(|part| part.positions());
        Value::from(map! {
            "name" => place.name,
            "optional" => place.optional,
            "present" => part.is_some(),
            "width" => part.map_or(Value::Null, |part| Value::from(part.width())),
            "start" => number(chunks.start),
            "end" => number(chunks.end),
            "pad" => u64::from(chunks.pad),
            "most" => chunks.most.map_or(Value::Null, |most| Value::from(positions.unwrap_or(most))),
            "fill" => chunks.fill,
            "least" => chunks.least,
            "weighted" => place.prompt.weights == PromptWeights::Count,
            "projected" => place.rule.projected,
        })
    });
    let parts: Vec<Value> = parts.collect();
    Ok(map! {"stack" => encoder.stack().name, "parts" => parts}.into())
}

/// The words of a network by their numbers.
pub(super) fn words(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let clip = clip(&mut args)?;
    let name: String = args.take("network")?;
    let (_, part) = network(&clip, &name)?;
    let words = part.vocabulary().map_err(failure)?.spellings();
    if words.is_empty() {
        return Err(NodeError::runtime(format!(
            "the words of {name} cannot be listed: Fresco knows them for CLIP and T5 only"
        )));
    }
    Ok(words
        .into_iter()
        .map(Value::from)
        .collect::<Vec<_>>()
        .into())
}

/// The numbers of a text's words, without marks and padding.
pub(super) fn numbers(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let clip = clip(&mut args)?;
    let (name, text): (String, String) = (args.take("network")?, args.take("text")?);
    let (_, part) = network(&clip, &name)?;
    let ids = part.vocabulary().map_err(failure)?.encode(&text);
    let ids = ids.into_iter().map(|id| Value::from(u64::from(id)));
    Ok(ids.collect::<Vec<_>>().into())
}

/// What one network makes of tokens: `cond` and `pooled_output`.
pub(super) fn encode_alone(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let mut clip = clip(&mut args)?;
    choose_layer(&mut clip, &mut args)?;
    let name: String = args.take("network")?;
    let chunks: Vec<Value> = args.take("tokens")?;
    let tokens = read_chunks(&name, &chunks)?;
    network(&clip, &name)?;
    let projected = args.take::<Option<bool>>("projected")?;
    let Some(made) = clip.encode_alone(&name, &tokens, projected, cx)? else {
        return Ok(Value::Null);
    };
    Ok(map! {
        "cond" => tensor(made.hidden),
        "pooled_output" => made.pooled.map_or(Value::Null, tensor),
        "attention_mask" => made.mask.map_or(Value::Null, tensor),
    }
    .into())
}

/// A conditioning, or with `plain` the tensors alone.
pub(super) fn encode(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let mut clip = clip(&mut args)?;
    choose_layer(&mut clip, &mut args)?;
    let given: Arc<Map> = args.take("tokens")?;
    let tokens = read(&clip, &given, cx)?;
    if !args.take_or("plain", false)? {
        let extra = args.take::<Option<Arc<Map>>>("extra")?.unwrap_or_default();
        let encoded = clip.encode(&tokens, (*extra).clone(), cx)?;
        return Ok(encoded.into());
    }
    let encoded = clip.encode_tensors(&tokens, cx)?;
    let mut out = map! {
        "cond" => tensor(encoded.cond),
        "pooled_output" => encoded.pooled.map_or(Value::Null, tensor),
    };
    for (name, value) in encoded.extras {
        out.insert(name.into(), tensor(value));
    }
    Ok(out.into())
}
