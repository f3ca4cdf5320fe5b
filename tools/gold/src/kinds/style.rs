//! Networks that turn pictures into tokens of a prompt.

use anyhow::Result;
use fresco_models::denoise::hooks::BlockKind;
use fresco_models::flux::redux::Redux;
use fresco_models::flux::style_tokens::{StyleConfig, StyleTokens};
use fresco_models::sd::gligen::{Fuser, FuserConfig, GligenConfig, PositionNet};
use fresco_models::sd::photomaker::Fuse;
use fresco_models::sd::style::StyleAdapter;
use fresco_models::style::StyleNetwork;
use fresco_tensor::{Device, Dtype, Stored};

use fresco_models::detect::Claim;

use super::Kind;
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(Claim::StyleNet, "Redux", |golden, device, report| {
        let store = golden.store(device)?;
        run(golden, &Redux::new(&store)?, report)
    })
    .with(|golden| golden.has_key("redux_down.weight")),
    Kind::of(Claim::StyleNet, "style adapter", adapter)
        .with(|golden| golden.has_key("style_embedding")),
    Kind::own(
        "style reference of Flux.1",
        |golden| golden.has_key("mid_embedding_linear.0.weight"),
        style_tokens,
    ),
    Kind::own(
        "person of PhotoMaker",
        |golden| golden.has_key("mlp1.layernorm.weight") && golden.has("id"),
        person,
    ),
    Kind::own(
        "boxes of GLIGEN",
        |golden| golden.has_key("position_net.null_positive_feature"),
        boxes,
    ),
    Kind::own(
        "the one prompt of Lotus",
        |golden| golden.tensors() == ["cond"] && !golden.any_part(""),
        one_prompt,
    ),
];

/// The program has it as it was published.
static LOTUS: &[u8; 4096] =
    include_bytes!("../../../../crates/nodes/src/conditioning/lotus_prompt.f16");

fn one_prompt(golden: &Golden, _: &Device, report: &mut Report<'_>) -> Result<()> {
    let shape = golden.tensor("cond")?.shape().to_vec();
    let ours = Stored::new(Dtype::F16, shape, LOTUS.to_vec())?;
    report.check("cond", &ours.to_f32()?)
}

fn person(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let width = golden.need("embed_dim")?;
    let fuse = store.build("the layers", |weights| Fuse::new(weights, width))?;
    let person = golden.tensor("id")?;
    let found = fuse.forward(&golden.tensor("prompt")?, &person, golden.need("row")?)?;
    report.check("out", &found)
}

fn boxes(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = GligenConfig::detect(&store)?;
    let heads = golden.need("n_heads")?;
    let place = (BlockKind::MIDDLE, 0);
    let fuser = FuserConfig::detect(&store, "fuser".to_owned(), place, Some(heads))?;
    let net = store.build("the layers for boxes", |weights| {
        PositionNet::new(&weights.at("position_net"), &config)
    })?;
    let layer = store.build("the layer of a transformer", |weights| {
        Fuser::new(&weights.at("fuser"), &fuser, config.token)
    })?;
    let tensor = |name: &str| golden.tensor(name);
    let tokens = net.forward(
        &tensor("boxes")?,
        &tensor("masks")?,
        &tensor("emb")?,
        device,
    )?;
    report.check("objs", &tokens.to(&Device::cpu())?)?;
    let found = layer.forward(tensor("x")?.to(device)?, &tokens)?;
    report.check("out", &found.to(&Device::cpu())?)
}

fn style_tokens(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = StyleConfig::detect(&store)?;
    let net = store.build("the style network", |weights| {
        StyleTokens::new(weights, config)
    })?;
    // An early layer, a middle one, and the one before the last.
    let x = golden.tensor("x")?;
    let [low, mid, high] = [x.select(0, 0)?, x.select(0, 1)?, x.select(0, 2)?];
    let found = net.forward([&high, &mid, &low])?;
    report.check("out", &found.to(&Device::cpu())?)
}

fn adapter(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let adapter = StyleAdapter::new(&store, golden.need("num_head")?)?;
    run(golden, &adapter, report)
}

fn run(golden: &Golden, net: &dyn StyleNetwork, report: &mut Report<'_>) -> Result<()> {
    report.check("out", &net.tokens(&golden.tensor("x")?)?)
}
