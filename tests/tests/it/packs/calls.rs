//! Built-in classes in the hands of packs: called in the order of their methods, and asked for all that they have.

use fresco_tests::tiny::Tiny;

use super::*;

fn rig() -> Option<Rig> {
    let python = python()?;
    if !has_module(&python, "torch") {
        return None;
    }
    let base = base_with(&["calls", "plain"]);
    Tiny::default()
        .write(base.path(), "tiny.safetensors")
        .unwrap();
    let rig = Rig::starting(base, &["--cpu"])?;
    rig.server.get("/extensions").expect_status(200);
    Some(rig)
}

fn loader() -> Value {
    node(
        "CheckpointLoaderSimple",
        json!({"ckpt_name": "tiny.safetensors"}),
    )
}

impl Rig {
    /// A text of a node as JSON.
    #[track_caller]
    fn report(&self, mut prompt: Value, text: Value) -> Value {
        prompt["9"] = show(text);
        let shown = self.shown(&prompt);
        serde_json::from_str(text_of(&shown)).unwrap()
    }
}

#[test]
fn methods_take_their_arguments_in_their_own_order() {
    let Some(rig) = rig() else { return };
    let text = |text: &str| node("CLIPTextEncode", json!({"clip": ["1", 1], "text": text}));
    let sample = json!({"model": ["1", 0], "seed": 5, "steps": 2, "cfg": 3.0, "sampler_name": "euler",
        "scheduler": "normal", "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0], "denoise": 1.0});
    let mut prompt = json!({
        "1": loader(), "2": text("a (red:1.5) house"), "3": text(""),
        "4": node("EmptyLatentImage", json!({"width": 64, "height": 64, "batch_size": 1})),
        "5": node("KSampler", sample),
        "6": node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]})),
        "7": node("CallsPicture", json!({"model": ["1", 0], "clip": ["1", 1], "vae": ["1", 2]}))});
    for (place, source) in [("native", "6"), ("python", "7")] {
        prompt[place] = node(
            "SaveImage",
            json!({"images": [source, 0], "filename_prefix": place}),
        );
    }
    let told = rig.report(prompt, json!(["7", 1]));
    let pixels = |name: &str| {
        let path = rig.base.path().join(format!("output/{name}_00001_.png"));
        contract::picture_of(&std::fs::read(path).unwrap())
    };
    assert_eq!(pixels("native"), pixels("python"));
    assert_eq!(told["tiled"], json!([1, 64, 64, 3]));
    for what in ["encode", "encode_tiled", "for_inpaint"] {
        assert_eq!(told[what], json!([1, 4, 8, 8]), "{what}");
    }
    assert_eq!(
        told["inpaint"],
        json!([
            ["concat_latent_image", "concat_mask", "pooled_output"],
            [1, 4, 8, 8],
            true
        ])
    );
    assert_eq!(told["masked"], json!([true, 0.5]));
}

#[test]
fn classes_have_what_those_of_the_host_have() {
    let Some(rig) = rig() else { return };
    let prompt = json!({"1": loader(), "2": node("CallsReport", json!({"clip": ["1", 1]}))});
    let told = rig.report(prompt, json!(["2", 0]));
    let methods = json!(["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]);
    assert_eq!(
        told["methods"],
        json!([methods, methods, ["disabled", "center"]])
    );
    assert_eq!(
        told["functions"],
        json!(["decode", "addWeighted", "sample", "EXECUTE_NORMALIZED"])
    );
    assert_eq!(told["has"], json!([false, false, true]));
    assert_eq!(told["crop"], json!([true, false]));
    assert_eq!(told["average"], true);
    assert_eq!(
        told["newer"],
        json!([
            "NodeOutput",
            [3.0, 2.0],
            [2.0, 1.0, 0.0],
            2,
            [1.0, 0.0],
            true,
            [3.0, 2.0, 1.0, 0.0]
        ])
    );
    assert_eq!(told["mask"], 4.0);
    assert_eq!(told["renamed"], true);
    assert_eq!(told["blend"], json!([0.5]));
    assert_eq!(
        told["types"],
        json!([["IMAGE"], ["SIGMAS", "SIGMAS"], "latent"])
    );
    assert_eq!(told["inputs"], json!(["samples", "vae"]));
    assert_eq!(told["merge"], "merge");
    let errors = told["errors"].as_array().unwrap();
    for (error, words) in errors.iter().zip([
        "TypeError: VAEDecode.decode() takes 2 arguments, but 3 were given",
        "TypeError: VAEDecode.decode() is called without its argument 'vae'",
        "TypeError: VAEDecode.decode() got multiple values for argument 'vae'",
        "TypeError: VAEDecode.decode() got an unexpected keyword argument 'tiles'",
        "Unsupported: LatentComposite.composite(): composite_method='fancy' is not possible",
    ]) {
        assert!(error.as_str().unwrap().starts_with(words), "{error}");
    }
    assert_eq!(
        told["named"],
        json!([
            "decode",
            "(self, vae, samples, tile_size, overlap=None, temporal_size=None, temporal_overlap=None)"
        ])
    );
    assert_eq!(told["gradients"], 2);
}

#[test]
fn classes_of_the_host_are_extended_by_their_real_methods() {
    let Some(rig) = rig() else { return };
    // The class of the host is asked for its inputs, and its method for the work.
    let encoded = |class: &str, text: &str| {
        let prompt = json!({
            "1": loader(), "2": node(class, json!({"clip": ["1", 1], "text": text})),
            "3": node("ConditioningZeroOut", json!({"conditioning": ["2", 0]})),
            "4": node("EmptyLatentImage", json!({"width": 64, "height": 64, "batch_size": 1})),
            "5": node("KSampler", json!({"model": ["1", 0], "seed": 5, "steps": 1, "cfg": 3.0, "sampler_name": "euler",
                "scheduler": "normal", "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0], "denoise": 1.0})),
            "6": node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]})),
            "9": node("PreviewImage", json!({"images": ["6", 0]}))});
        let shown = rig.shown(&prompt);
        let name = shown["images"][0]["filename"].as_str().unwrap().to_owned();
        let answer = rig.server.get(&format!("/view?type=temp&filename={name}"));
        contract::picture_of(&answer.body)
    };
    let loud = encoded("CallsShouting", "house 1");
    assert_eq!(loud, encoded("CLIPTextEncode", "HOUSE 1"));

    let prompt = json!({
        "1": node("EmptyLTXVLatentVideo", json!({"width": 64, "height": 64, "length": 17, "batch_size": 1})),
        "2": node("CallsOwnGuide", json!({"latent": ["1", 0]})),
        "9": node("SaveLatent", json!({"samples": ["2", 0], "filename_prefix": "guided"}))});
    rig.shown(&prompt);
    let log = rig.server.log();
    assert!(
        log.contains(
            "guides 9 2 [[9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 32.0, 32.0], [0.0, 32.0, 0.0, 32.0]] \
             [1.0, 1.0, 1.0, 0.25] [1, 128, 4, 2, 2]"
        ),
        "{log}"
    );
}

#[test]
fn weights_of_a_packs_own_go_through_the_real_encoder() {
    let Some(rig) = rig() else { return };
    let text = "a (red:1.5) house, (quiet:0.7)";
    let prompt = |how: &str| {
        json!({
            "1": loader(), "2": node("CLIPSetLastLayer", json!({"clip": ["1", 1], "stop_at_clip_layer": -2})),
            "3": node("CLIPTextEncode", json!({"clip": ["2", 0], "text": text})),
            "4": node("CallsWeights", json!({"clip": ["1", 1], "text": text, "how": how})),
            "5": node("CallsSame", json!({"a": ["3", 0], "b": ["4", 0]}))})
    };
    assert_eq!(
        rig.report(prompt("comfy"), json!(["5", 0])),
        json!([0.0, 0.0])
    );
    let own = rig.report(prompt("own"), json!(["5", 0]));
    assert!(own[0].as_f64().is_some_and(|off| off > 1e-3), "{own}");

    let prompt = json!({"1": loader(), "2": node("CallsEncoder", json!({"clip": ["1", 1]}))});
    let told = rig.report(prompt, json!(["2", 0]));
    assert_eq!(told["kinds"], json!(["sd1"]));
    assert_eq!(told["sdxl tokenizer"], false);
    assert_eq!(told["has"], json!([true, true, true, false, false]));
    assert_eq!(
        told["parts"],
        json!([true, {"start": 49406, "end": 49407, "pad": 49407}, true])
    );
    assert_eq!(
        told["tokenizers"],
        json!([["clip_l", 49406, 49407, 49407, true]])
    );
    assert_eq!(told["lengths"][0], 77);
    assert_eq!(told["lengths"][1], Value::Null);
    assert_eq!(
        told["words"],
        json!([[49406, 320, 1125, 49407], 1125, "photo</w>", "a photo"])
    );
    assert_eq!(told["untokenize"], "photo</w>");
    assert_eq!(told["own"], true);
    let replaced = told["replaced"].as_str().unwrap();
    assert!(
        replaced.contains("clip.cond_stage_model") && replaced.contains("L3b"),
        "{replaced}"
    );
    assert_eq!(told["negative"], json!([1, 3]));
    assert_eq!(told["hooks"], json!({"pooled": 1}));
}

impl Rig {
    /// The picture of a model that the nodes of `more` make of the loader's.
    fn picture(&self, more: &Value, model: Value) -> Vec<u8> {
        let text = |text: &str| node("CLIPTextEncode", json!({"clip": ["1", 1], "text": text}));
        let mut prompt = json!({
            "1": loader(), "2": text("a (red:1.5) house"), "3": text(""),
            "4": node("EmptyLatentImage", json!({"width": 64, "height": 64, "batch_size": 1})),
            "5": node("KSampler", json!({"model": model, "seed": 5, "steps": 2, "cfg": 3.0, "sampler_name": "euler",
                "scheduler": "normal", "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0], "denoise": 1.0})),
            "6": node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]})),
            "9": node("PreviewImage", json!({"images": ["6", 0]}))});
        for (name, node) in more.as_object().into_iter().flatten() {
            prompt[name] = node.clone();
        }
        let shown = self.shown(&prompt);
        let name = shown["images"][0]["filename"].as_str().unwrap().to_owned();
        let answer = self.server.get(&format!("/view?type=temp&filename={name}"));
        contract::picture_of(&answer.body)
    }
}

#[track_caller]
fn alike(a: &[u8], b: &[u8]) {
    assert_eq!(a.len(), b.len());
    let most = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(most <= Some(1), "they differ by {most:?}");
}

#[test]
fn functions_around_sampling_see_the_run() {
    let Some(rig) = rig() else { return };
    let patched =
        |how: &str| json!({"7": node("CallsPatched", json!({"model": ["1", 0], "how": how}))});
    let native = rig.picture(&json!({}), json!(["1", 0]));
    for how in ["guidance", "around", "removed"] {
        alike(&rig.picture(&patched(how), json!(["7", 0])), &native);
    }
    let log = rig.server.log();
    for line in [
        "guided 2 True 0.0",
        "guided 5 True 0.0",
        "after 6 True",
        "around 5 [0, 1] 3 [(1, 4, 8, 8)] True",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let mut prompt = patched("inside");
    prompt["1"] = loader();
    prompt["9"] = node("PreviewAny", json!({"source": ["7", 0]}));
    let error = rig.error(&prompt);
    let message = error["exception_message"].as_str().unwrap();
    assert!(
        message.contains("add_wrapper(\"apply_model\")"),
        "{message}"
    );
}

#[test]
fn weights_of_another_model_are_changes_and_parts_can_be_asked_for() {
    let Some(rig) = rig() else { return };
    let both = json!({
        "7": node("CallsPatched", json!({"model": ["1", 0], "how": "weights"})),
        "8": node("CallsMerge", json!({"model1": ["1", 0], "model2": ["7", 0]})),
        "10": node("ModelMergeSimple", json!({"model1": ["1", 0], "model2": ["7", 0], "ratio": 0.25}))});
    let merged = rig.picture(&both, json!(["8", 0]));
    alike(&merged, &rig.picture(&both, json!(["10", 0])));
    assert_ne!(merged, rig.picture(&json!({}), json!(["1", 0])));

    let prompt = json!({"1": loader(), "2": node("CallsParts", json!({"vae": ["1", 2]}))});
    let told = rig.report(prompt, json!(["2", 0]));
    assert_eq!(told["decoded"], json!([[1, 3, 64, 64], true]));
    assert_eq!(told["encoded"], json!([1, 4, 8, 8]));
    assert_eq!(told["layers"], false);
    assert_eq!(told["dtype"], "torch.float32");
    assert_eq!(told["model"], "BaseModel");
    assert!(
        told["changed"]
            .as_str()
            .unwrap()
            .contains("unchanged content of a file")
    );
    assert_eq!(told["film"], "ftyp");
}
