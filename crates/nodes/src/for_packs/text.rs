//! Prompts as packs take them apart: tokens with weights, by the names of the networks.

use std::sync::Arc;

use fresco_graph::{Args, Cx, Map, NodeError, Value, map};
use fresco_models::text::{PromptTokens, Token, Tokens, Weighted};
use fresco_tensor::Tensor;

use super::{clip, patches};
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
fn read(clip: &crate::clip::Clip, given: &Map, cx: &Cx) -> Result<PromptTokens, NodeError> {
    // An empty prompt knows the names of the networks.
    let mut tokens = clip.tokenize("", cx)?;
    for (network, own) in &mut tokens.0 {
        let Some(chunks) = given.get(*network).and_then(Value::as_list) else {
            continue;
        };
        let chunks: Option<Vec<Vec<Weighted>>> = chunks
            .iter()
            .map(|chunk| chunk.as_list()?.iter().map(weighted).collect())
            .collect();
        let chunks = chunks.ok_or_else(|| {
            NodeError::type_error(format!(
                "the tokens for {network} are not lists of (token, weight)"
            ))
        })?;
        *own = Tokens {
            chunks,
            missing: Vec::new(),
        };
    }
    Ok(tokens)
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

/// A conditioning, or with `plain` the tensors alone.
pub(super) fn encode(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let clip = clip(&mut args)?;
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
