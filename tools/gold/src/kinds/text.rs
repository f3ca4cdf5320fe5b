//! Text networks and tokenizers.

use anyhow::{Context, Result, anyhow, bail};
use fresco_models::text::clip::{ClipConfig, ClipEncoder, ClipKind, ClipLayer, ClipTokenizer};
use fresco_models::text::sequence;
use fresco_models::text::t5::{T5, T5Config};
use fresco_models::text::vocabulary::Unigram;
use fresco_models::text::{
    ChunkRule, EncodeRule, LayerRule, NoEmbeddings, Prompt, PromptRule, Specials, Token, Tokens,
    Weighted, prompt, tokenize,
};
use fresco_tensor::Device;
use serde_json::Value;

use super::Kind;
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::text(&["clip_l", "clip_h", "clip_g"], "CLIP text encoder", clip)
        .with(|golden| golden.about["prompts"].is_array()),
    Kind::text(&["T5", "UMT5", "ByT5"], "T5 text encoder", t5),
    Kind::own(
        "prompts as tokens",
        |golden| golden.about["prompts"][0]["clip_l"].is_array(),
        prompts,
    ),
];

/// A list of texts.
fn texts<'a>(golden: &'a Golden, name: &str) -> Result<Vec<&'a str>> {
    let list = golden.about[name].as_array();
    let list = list.with_context(|| format!("there is no list {name}"))?;
    let texts = list.iter().map(|text| text.as_str().context("no text"));
    texts.collect()
}

/// One chunk of numbers without weights.
pub(super) fn tokens(ids: &[u32]) -> Tokens {
    let plain = |id: &u32| Weighted {
        token: Token::Id(*id),
        weight: 1.0,
        word: 0,
    };
    Tokens {
        chunks: vec![ids.iter().map(plain).collect()],
        missing: Vec::new(),
    }
}

/// The numbers of a tensor of tokens.
pub(super) fn ids(golden: &Golden, name: &str) -> Result<Vec<u32>> {
    let values = golden.values(name)?;
    Ok(values.into_iter().map(|v| v as u32).collect())
}

fn clip(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    // The larger ones have another activation.
    let act = golden.config()["hidden_act"].as_str().unwrap_or_default();
    let kind = match act {
        "quick_gelu" => ClipKind::L,
        _ => ClipKind::G,
    };
    let mut config = ClipConfig::detect(&store, kind)?;
    if let Some(heads) = golden.number("num_attention_heads") {
        config.heads = heads;
    }
    let encoder = ClipEncoder::new(kind, store, config)?;
    let tokenizer = ClipTokenizer::new(kind);
    let hidden = |norm| ClipLayer::Hidden { index: -2, norm };
    let prompts = texts(golden, "prompts")?;
    for name in golden.tensors() {
        let mut parts = name.split('/');
        let (Some(way), Some(at), Some(part)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("{name} says neither a layer nor a prompt");
        };
        let layer = match way {
            "last_projected" | "last_unprojected" => ClipLayer::Last,
            "hidden-2_noln" => hidden(false),
            "hidden-2_ln" => hidden(true),
            other => bail!("the layer {other} is not known"),
        };
        let text = prompts
            .get(at.parse::<usize>()?)
            .context("no such prompt")?;
        let tokens = tokenizer.tokenize(text, &NoEmbeddings)?;
        let output = encoder.encode(&tokens.chunks, layer)?;
        let found = match (part, way) {
            ("cond", _) => output.hidden,
            (_, "last_unprojected" | "hidden-2_ln") => output.pooled,
            _ => output.projected,
        };
        report.check(&name, &found)?;
    }
    Ok(())
}

const T5_SPECIALS: Specials = Specials {
    start: None,
    end: Some(1),
    pad: 0,
};

/// Prompts with and without a mask, or tokens.
fn t5(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let network = T5::new(&store, &T5Config::detect(&store)?)?;
    let plain = EncodeRule::layer(LayerRule::LAST, T5_SPECIALS);
    if golden.has("ids") {
        let tokens = tokens(&ids(golden, "ids")?);
        let output = sequence::encode(&network, &tokens, &plain, None)?;
        return report.check("out", &output.hidden);
    }
    let rule = PromptRule::plain(ChunkRule {
        end: Some(1),
        least: 77,
        ..ChunkRule::OPEN
    });
    for (at, text) in texts(golden, "prompts")?.into_iter().enumerate() {
        let vocabulary = Unigram::t5();
        let tokens = tokenize(&*vocabulary, &Prompt::new(text), &rule)?;
        for masked in [false, true] {
            let rule = EncodeRule { masked, ..plain };
            let output = sequence::encode(&network, &tokens, &rule, None)?;
            let name = format!("mask{}/{at}", u8::from(masked));
            report.check(&format!("{name}/cond"), &output.hidden)?;
            let mask = format!("{name}/attention_mask");
            if golden.has(&mask) {
                report.check(&mask, &output.mask.context("there is no mask")?)?;
            }
        }
    }
    Ok(())
}

/// Chunks of `[id, weight, word]`; repetitions of the last entry are left out.
fn expected(chunks: &Value) -> Result<Vec<Vec<(u64, f64, u64)>>> {
    let entry = |t: &Value| Some((t[0].as_u64()?, t[1].as_f64()?, t[2].as_u64()?));
    let chunk = |chunk: &Value| -> Result<Vec<(u64, f64, u64)>> {
        let entries = chunk["t"].as_array().context("a chunk without tokens")?;
        let list: Option<Vec<_>> = entries.iter().map(entry).collect();
        let mut list = list.context("a token without a number")?;
        let last = *list.last().context("an empty chunk")?;
        list.resize(chunk["n"].as_u64().context("no length")? as usize, last);
        Ok(list)
    };
    let chunks = chunks.as_array().context("no chunks")?;
    chunks.iter().map(chunk).collect()
}

fn shown(tokens: Tokens) -> Result<Vec<Vec<(u64, f64, u64)>>> {
    let entry = |t: Weighted| match t.token {
        Token::Id(id) => Ok((u64::from(id), t.weight, t.word as u64)),
        _ => Err(anyhow!("something else than a number")),
    };
    let chunks = tokens.chunks.into_iter();
    chunks.map(|c| c.into_iter().map(entry).collect()).collect()
}

type Chunks = Vec<Vec<(u64, f64, u64)>>;

/// Compares tokens. Weights are read from JSON, which rounds the last digit.
fn compare(report: &mut Report<'_>, text: &str, found: Chunks, expected: Chunks) {
    let rounded = |chunks: Chunks| -> Vec<Vec<(u64, f32, u64)>> {
        let chunk = |c: Vec<(u64, f64, u64)>| {
            let tokens = c
                .into_iter()
                .map(|(id, weight, word)| (id, weight as f32, word));
            tokens.collect()
        };
        chunks.into_iter().map(chunk).collect()
    };
    report.equal(text, &rounded(found), &rounded(expected));
}

/// Whole prompts through the tokenizers of CLIP and T5.
fn prompts(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    if !device.is_cpu() {
        // No numbers are moved anywhere.
        report.equal("nothing to compute", &(), &());
        return Ok(());
    }
    let t5 = Unigram::t5();
    let rule = PromptRule::plain(ChunkRule {
        end: Some(1),
        least: 77,
        ..ChunkRule::OPEN
    });
    let cases = golden.about["prompts"].as_array().context("no prompts")?;
    for case in cases {
        let text = case["prompt"].as_str().context("a prompt without text")?;
        let parsed = case["parsed"].as_array().context("nothing parsed")?;
        let parsed: Option<Vec<(String, f64)>> = parsed
            .iter()
            .map(|p| {
                let text = p[0].as_str()?;
                let text = text.replace("\0\u{1}", ")").replace("\0\u{2}", "(");
                Some((text, p[1].as_f64()?))
            })
            .collect();
        let segments = prompt::parse(text)?.into_iter();
        let segments: Vec<_> = segments.map(|s| (s.text, s.weight)).collect();
        let parsed = parsed.context("a part without weight")?;
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12 || (a.is_nan() && b.is_nan()) || a == b;
        let same = segments.len() == parsed.len()
            && segments
                .iter()
                .zip(&parsed)
                .all(|(a, b)| a.0 == b.0 && near(a.1, b.1));
        report.equal(
            &format!("the parts of {text:?}: {segments:?}"),
            &same,
            &true,
        );
        let clip = ClipTokenizer::new(ClipKind::L).tokenize(text, &NoEmbeddings)?;
        compare(report, text, shown(clip)?, expected(&case["clip_l"])?);
        let found = tokenize(&*t5, &Prompt::new(text), &rule)?;
        compare(report, text, shown(found)?, expected(&case["t5xxl_min77"])?);
    }
    Ok(())
}
