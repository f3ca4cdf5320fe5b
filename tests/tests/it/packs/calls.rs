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
