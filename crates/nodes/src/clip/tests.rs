use std::fs;
use std::path::Path;

use fresco_files::{Dirs, Folders};
use fresco_graph::{Args, Flow, NodeClass, Resources, Slots};
use fresco_models::text::EmbeddingSource as _;
use fresco_tensor::safetensors::write;
use fresco_tensor::{Tensor, synthetic};

use super::*;
use crate::types::as_tensor;

const HIDDEN: usize = 64;

/// Model folders with two text encoders that differ in their number of layers only.
struct ClipRig {
    base: tempfile::TempDir,
    cx: Cx,
}

fn place() -> ClipRig {
    let base = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(base.path());
    let folder = base.path().join("models/text_encoders");
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(base.path().join("models/embeddings/below")).unwrap();
    for (name, layers) in [("l.safetensors", 1), ("g.safetensors", 31)] {
        save(&folder.join(name), layers);
    }
    save_t5(&folder.join("t5.safetensors"));
    fs::write(folder.join("broken.safetensors"), b"not much").unwrap();
    let mut resources = Resources::default();
    resources.insert(Folders::new(&dirs));
    let cx = Cx::detached(Arc::new(resources));
    ClipRig { base, cx }
}

/// The smallest text encoder of so many layers.
fn save(path: &Path, layers: usize) {
    let mut shapes: Vec<(String, Vec<usize>)> = [
        ("embeddings.token_embedding.weight", vec![49408, HIDDEN]),
        ("embeddings.position_embedding.weight", vec![77, HIDDEN]),
        ("final_layer_norm.weight", vec![HIDDEN]),
        ("final_layer_norm.bias", vec![HIDDEN]),
    ]
    .map(|(key, shape)| (format!("text_model.{key}"), shape))
    .into();
    for i in 0..layers {
        let names = [
            "layer_norm1",
            "layer_norm2",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.out_proj",
            "mlp.fc1",
            "mlp.fc2",
        ];
        for name in names {
            let key = format!("text_model.encoder.layers.{i}.{name}");
            let weight = if name.starts_with("layer") {
                vec![HIDDEN]
            } else {
                vec![HIDDEN, HIDDEN]
            };
            shapes.push((format!("{key}.weight"), weight));
            shapes.push((format!("{key}.bias"), vec![HIDDEN]));
        }
    }
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(key, shape)| {
            let weight = synthetic::weight(&key, &shape).unwrap();
            (key, weight)
        })
        .collect();
    let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
    write(path, &tensors, &[]).unwrap();
}

/// A T5 that is wide enough to come after two encoders of the other kind.
fn save_t5(path: &Path) {
    let (width, inner) = (2 * HIDDEN + 8, 16);
    let first = "encoder.block.0.layer.0";
    let second = "encoder.block.0.layer.1";
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("shared.weight".to_owned(), vec![32128, width]),
        (format!("{first}.layer_norm.weight"), vec![width]),
        (
            format!("{first}.SelfAttention.relative_attention_bias.weight"),
            vec![32, 2],
        ),
        (format!("{second}.layer_norm.weight"), vec![width]),
        ("encoder.final_layer_norm.weight".to_owned(), vec![width]),
    ];
    for (name, shape) in [
        ("q", [16, width]),
        ("k", [16, width]),
        ("v", [16, width]),
        ("o", [width, 16]),
    ] {
        shapes.push((format!("{first}.SelfAttention.{name}.weight"), shape.into()));
    }
    for (name, shape) in [
        ("wi_0", [inner, width]),
        ("wi_1", [inner, width]),
        ("wo", [width, inner]),
    ] {
        shapes.push((
            format!("{second}.DenseReluDense.{name}.weight"),
            shape.into(),
        ));
    }
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(key, shape)| (key.clone(), synthetic::weight(&key, &shape).unwrap()))
        .collect();
    let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
    write(path, &tensors, &[]).unwrap();
}

fn class(id: &str) -> Arc<dyn NodeClass> {
    NODES
        .iter()
        .map(|e| e.class())
        .find(|c| &*c.schema().id == id)
        .unwrap()
}

fn call(id: &str, args: Map, cx: &Cx) -> Result<Value, NodeError> {
    let Flow::Done(output) = class(id).call(Args(args), cx)? else {
        panic!("{id} is not asynchronous");
    };
    match output.slots {
        Slots::Values(mut values) => Ok(values.remove(0)),
        other => panic!("{other:?}"),
    }
}

fn load(place: &ClipRig, name: &str) -> Value {
    let args = map! {"clip_name" => name, "type" => "stable_diffusion"};
    call("CLIPLoader", args, &place.cx).unwrap()
}

fn encode(place: &ClipRig, clip: &Value, text: &str) -> Cond {
    let args = map! {"clip" => clip.clone(), "text" => text};
    let value = call("CLIPTextEncode", args, &place.cx).unwrap();
    Conditioning::from_value(value).unwrap().0.remove(0)
}

fn tokens(cond: &Cond) -> Tensor {
    cond.tensor().unwrap().clone()
}

#[track_caller]
fn fails(place: &ClipRig, id: &str, args: Map, kind: &str, parts: &[&str]) {
    let error = call(id, args, &place.cx).unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
    for part in parts {
        assert!(error.message().contains(part), "{:?}", error.message());
    }
}

#[test]
fn a_prompt_becomes_conditioning() {
    let place = place();
    let clip = load(&place, "l.safetensors");
    let cond = encode(&place, &clip, "a cat");
    assert_eq!(tokens(&cond).shape(), [1, 77, HIDDEN]);
    let pooled = as_tensor(&cond.options["pooled_output"]).unwrap();
    assert_eq!(pooled.shape(), [1, HIDDEN]);
    assert_eq!(cond.options.len(), 1);

    let with = |id: &str, extra: Map| {
        let mut args = map! {"clip" => clip.clone()};
        args.extend(extra);
        let clip = call(id, args, &place.cx).unwrap();
        tokens(&encode(&place, &clip, "a cat"))
    };
    let plain = tokens(&cond);
    assert_eq!(
        with("CLIPSetLastLayer", map! {"stop_at_clip_layer" => -1}),
        plain
    );
    assert_eq!(
        with(
            "T5TokenizerOptions",
            map! {"min_padding" => 3, "min_length" => 4}
        ),
        plain
    );
    let multiply = |q: f64| map! {"q" => q, "k" => 1.0, "v" => 1.0, "out" => 1.0};
    assert_eq!(with("CLIPAttentionMultiply", multiply(1.0)), plain);
    assert_ne!(with("CLIPAttentionMultiply", multiply(3.0)), plain);
    assert_eq!(tokens(&encode(&place, &clip, "a cat")), plain);
}

#[test]
fn the_two_of_sdxl_load_together() {
    let place = place();
    let names =
        map! {"clip_name1" => "g.safetensors", "clip_name2" => "l.safetensors", "type" => "sdxl"};
    let clip = call("DualCLIPLoader", names.clone(), &place.cx).unwrap();
    let size = |text_g: &str, text_l: &str, clip: &Value| {
        map! {
            "clip" => clip.clone(), "width" => 1024, "height" => 512, "crop_w" => 1, "crop_h" => 2,
            "target_width" => 3, "target_height" => 4, "text_g" => text_g, "text_l" => text_l,
        }
    };
    let long = "cat ".repeat(90);
    let value = call("CLIPTextEncodeSDXL", size(&long, "dog", &clip), &place.cx).unwrap();
    let cond = Conditioning::from_value(value).unwrap().0.remove(0);
    assert_eq!(tokens(&cond).shape(), [1, 154, 2 * HIDDEN]);
    assert_eq!(cond.options["height"].as_int(), Some(512));
    let half = |t: &Tensor, at: usize| t.narrow(2, at * HIDDEN, HIDDEN).unwrap();
    let both = tokens(&encode(&place, &clip, &long));
    assert_eq!(half(&tokens(&cond), 1), half(&both, 1));
    // The short prompt is followed by an empty chunk.
    let dog = half(&tokens(&encode(&place, &clip, "dog")), 0);
    let empty = half(&tokens(&encode(&place, &clip, "")), 0);
    let l = Tensor::cat(&[&dog, &empty], 1).unwrap();
    assert_eq!(half(&tokens(&cond), 0), l);

    let refiner = load(&place, "g.safetensors");
    let args = map! {"clip" => refiner.clone(), "ascore" => 2.5, "width" => 8, "height" => 16, "text" => "cat"};
    let value = call("CLIPTextEncodeSDXLRefiner", args, &place.cx).unwrap();
    let cond = Conditioning::from_value(value).unwrap().0.remove(0);
    assert_eq!(cond.options["aesthetic_score"].as_f64(), Some(2.5));

    fails(
        &place,
        "CLIPTextEncodeSDXL",
        size("a", "b", &refiner),
        "ValueError",
        &["SDXL"],
    );
    let mut flux = names.clone();
    flux.insert("type".into(), "flux".into());
    let parts = [
        "clip_g and clip_l",
        "\"flux\"",
        "t5xxl (T5)",
        "g.safetensors",
    ];
    fails(&place, "DualCLIPLoader", flux, "RuntimeError", &parts);
    let mut twice = names;
    twice.insert("clip_name2".into(), "g.safetensors".into());
    fails(
        &place,
        "DualCLIPLoader",
        twice,
        "RuntimeError",
        &["g.safetensors", "clip_g"],
    );
}

#[test]
fn t5_loads_with_others_in_any_order() {
    let place = place();
    let width = 2 * HIDDEN + 8;
    let two = |one: &str, two: &str, kind: &str| {
        let names = map! {"clip_name1" => one, "clip_name2" => two, "type" => kind};
        call("DualCLIPLoader", names, &place.cx).unwrap()
    };
    let flux = two("t5.safetensors", "l.safetensors", "flux");
    let args =
        map! {"clip" => flux.clone(), "clip_l" => "a cat", "t5xxl" => "a dog", "guidance" => 2.0};
    let value = call("CLIPTextEncodeFlux", args, &place.cx).unwrap();
    let cond = Conditioning::from_value(value).unwrap().0.remove(0);
    assert_eq!(tokens(&cond).shape(), [1, 256, width]);
    assert_eq!(cond.options["guidance"].as_f64(), Some(2.0));
    let pooled = |cond: &Cond| as_tensor(&cond.options["pooled_output"]).unwrap().clone();
    let (cat, dog) = (
        encode(&place, &flux, "a cat"),
        encode(&place, &flux, "a dog"),
    );
    assert_eq!((pooled(&cond), tokens(&cond)), (pooled(&cat), tokens(&dog)));

    // The settings of tokenizers count for T5 and not for the other.
    let args = map! {"clip" => flux, "min_padding" => 0, "min_length" => 4};
    let short = call("T5TokenizerOptions", args, &place.cx).unwrap();
    assert_eq!(tokens(&encode(&place, &short, "a")).shape(), [1, 4, width]);

    let names = map! {
        "clip_name1" => "t5.safetensors", "clip_name2" => "g.safetensors", "clip_name3" => "l.safetensors",
    };
    let sd3 = call("TripleCLIPLoader", names, &place.cx).unwrap();
    let cond = encode(&place, &sd3, "a cat");
    assert_eq!(tokens(&cond).shape(), [1, 154, width]);
    assert_eq!(pooled(&cond).shape(), [1, 2 * HIDDEN]);
    let tail = tokens(&cond).narrow(2, 2 * HIDDEN, 8).unwrap();
    assert!(
        tail.narrow(1, 0, 77)
            .unwrap()
            .data()
            .iter()
            .all(|v| *v == 0.0)
    );
    let args = |padding: &str| {
        map! {
            "clip" => sd3.clone(), "clip_l" => "a cat", "clip_g" => "", "t5xxl" => "",
            "empty_padding" => padding,
        }
    };
    let shape = |padding: &str| {
        let value = call("CLIPTextEncodeSD3", args(padding), &place.cx).unwrap();
        tokens(&Conditioning::from_value(value).unwrap().0[0])
            .shape()
            .to_vec()
    };
    assert_eq!(shape("empty_prompt"), [1, 154, width]);
    assert_eq!(shape("none")[1], 77);

    // Alone it is what most models of its time read.
    let alone = load(&place, "t5.safetensors");
    let cond = encode(&place, &alone, "a cat");
    assert_eq!(tokens(&cond).shape(), [1, 256, width]);
    let mask = as_tensor(&cond.options["attention_mask"]).unwrap();
    assert_eq!(mask.data().iter().sum::<f32>(), 4.0);
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let place = place();
    let args = |name: &str, family: &str| map! {"clip_name" => name, "type" => family};
    for (name, family, kind, parts) in [
        (
            "no.safetensors",
            "wan",
            "FileNotFoundError",
            &["no.safetensors"][..],
        ),
        (
            "broken.safetensors",
            "wan",
            "RuntimeError",
            &["broken.safetensors"],
        ),
        (
            "g.safetensors",
            "moss_image",
            "RuntimeError",
            &["g.safetensors", "moss_image", "not supported yet"],
        ),
    ] {
        fails(&place, "CLIPLoader", args(name, family), kind, parts);
    }
    for id in ["CLIPTextEncode", "CLIPSetLastLayer"] {
        let args = map! {"clip" => Value::Null, "text" => "a", "stop_at_clip_layer" => -2};
        fails(
            &place,
            id,
            args,
            "RuntimeError",
            &["clip input is invalid: None"],
        );
    }
    let deep = "(".repeat(2000) + "a" + &")".repeat(2000);
    let args = map! {"clip" => load(&place, "l.safetensors"), "text" => deep};
    fails(&place, "CLIPTextEncode", args, "RuntimeError", &["nested"]);
}

#[test]
fn control_nets_can_have_their_own_prompt() {
    let place = place();
    let clip = load(&place, "l.safetensors");
    let conditioning = Conditioning(vec![encode(&place, &clip, "a cat")]);
    let args = map! {"clip" => clip.clone(), "conditioning" => conditioning, "text" => "a dog"};
    let value = call("CLIPTextEncodeControlnet", args, &place.cx).unwrap();
    let cond = Conditioning::from_value(value).unwrap().0.remove(0);
    let dog = tokens(&encode(&place, &clip, "a dog"));
    assert_eq!(
        as_tensor(&cond.options["cross_attn_controlnet"]),
        Some(&dog)
    );
    assert_ne!(tokens(&cond), dog);
    assert!(cond.options.contains_key("pooled_output_controlnet"));
}

/// Each file holds one row with this first number.
fn save_embedding(path: &Path, first: f32) {
    let row = Tensor::from_fn([1, 4], |i| first + i as f32).unwrap();
    write(path, &[("emb_params", &row)], &[]).unwrap();
}

#[test]
fn embeddings_are_found_inside_their_folders_only() {
    let place = place();
    let models = place.base.path().join("models");
    let root = models.join("embeddings");
    save_embedding(&root.join("top.safetensors"), 1.0);
    save_embedding(&root.join("below/deep.safetensors"), 2.0);
    save_embedding(&root.join("below/top.safetensors"), 3.0);
    save_embedding(&root.join("plain"), 4.0);
    save_embedding(&models.join("secret.safetensors"), 5.0);
    fs::write(root.join("broken.pt"), b"nothing of the sort").unwrap();
    let torch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tensor/tests/files");
    fs::copy(torch.join("inversion.pt"), root.join("below/torch.pt")).unwrap();
    let source = FolderEmbeddings::of(&place.cx).unwrap();
    assert_eq!(source.load("torch", "clip_l", 4).unwrap().len(), 2);
    let first = |name: &str| source.load(name, "clip_l", 4).map(|rows| rows[0][0]);
    assert_eq!(first("top"), Some(1.0));
    assert_eq!(first("top.safetensors"), Some(1.0));
    assert_eq!(first("deep"), Some(2.0));
    assert_eq!(first("below/top"), Some(3.0));
    assert_eq!(first("plain"), Some(4.0));
    let outside = models.join("secret.safetensors");
    for name in [
        "absent",
        "broken",
        "below",
        "../secret",
        "below/../../secret.safetensors",
        "..\\secret",
        outside.to_str().unwrap(),
        "",
        ".",
    ] {
        assert_eq!(first(name), None, "{name}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&outside, root.join("link.safetensors")).unwrap();
        std::os::unix::fs::symlink(&models, root.join("out")).unwrap();
        assert_eq!(first("link"), None);
        assert_eq!(first("out/secret"), None);
        assert_eq!(first("secret"), None);
    }
}

#[test]
fn a_prompt_names_an_embedding() {
    let place = place();
    let clip = load(&place, "l.safetensors");
    let name = "text_model.embeddings.token_embedding.weight";
    let table =
        fresco_tensor::open_weights(place.base.path().join("models/text_encoders/l.safetensors"));
    let table = table.unwrap().read(name).unwrap().to_f32().unwrap();
    let half = |t: &Tensor| {
        let stored = fresco_tensor::Stored::from_f32(t, fresco_tensor::Dtype::F16).unwrap();
        stored.to_f32().unwrap()
    };
    let row = half(&table.narrow(0, 2368, 1).unwrap());
    let path = place
        .base
        .path()
        .join("models/embeddings/kitten.safetensors");
    write(&path, &[("clip_l", &row)], &[]).unwrap();
    assert_eq!(
        tokens(&encode(&place, &clip, "a embedding:kitten, asleep")),
        tokens(&encode(&place, &clip, "a cat, asleep"))
    );
    // One that does not exist is nothing.
    assert_eq!(
        tokens(&encode(&place, &clip, "a embedding:puppy cat")),
        tokens(&encode(&place, &clip, "a cat"))
    );
}
