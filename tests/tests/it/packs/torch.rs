//! With torch, where it is installed: `FRESCO_TEST_PYTHON` names a Python that has it.

use super::*;

fn rig(packs: &[&str]) -> Option<Rig> {
    let python = python()?;
    if !has_module(&python, "torch") {
        return None;
    }
    Rig::start(packs, &["--cpu"])
}

#[test]
fn functions_on_tensors_give_what_our_nodes_give() {
    let Some(rig) = rig(&["golden"]) else { return };
    let latent = node(
        "EmptyLatentImage",
        json!({"width": 96, "height": 64, "batch_size": 2}),
    );
    for method in ["nearest-exact", "bilinear", "area", "bicubic", "bislerp"] {
        for crop in ["disabled", "center"] {
            let prompt = json!({
                "1": latent, "2": node("GoldenNoise", json!({"samples": ["1", 0], "seed": 5})),
                "3": node("GoldenUpscale", json!({"samples": ["2", 0], "method": method, "width": 160, "height": 160, "crop": crop})),
                "4": node("LatentUpscale", json!({"samples": ["2", 0], "upscale_method": method, "width": 160, "height": 160, "crop": crop})),
                "9": node("GoldenSame", json!({"a": ["3", 0], "b": ["4", 0]}))});
            let shown = rig.shown(&prompt);
            assert_eq!(shown["same"], json!([true]), "{method} {crop}: {shown}");
            let off = shown["off"][0].as_f64().unwrap();
            assert!(off < 1e-4, "{method} {crop}: {off}");
            // Tensors that come from us are ordinary ones, whatever surrounds the call.
            assert_eq!(shown["kinds"], json!([true, "torch.float32", true, false]));
        }
    }
}

#[test]
fn helpers_of_the_host() {
    let Some(rig) = rig(&["golden"]) else { return };
    let shown = rig.shown(&json!({"9": node("GoldenReport", json!({}))}));
    let report = &shown["report"][0];
    assert_eq!(
        report["loaded"],
        json!([["a.weight", "b"], "torch.float16", [1, 1], {"k": "v"}])
    );
    assert_eq!(report["old"], json!(["c"]));
    assert_eq!(report["cond"], json!([{"a": 1, "b": 2}, {"a": 1}, true]));
    // torch.manual_seed(7) on the processor.
    assert_eq!(report["noise"], json!([-0.1468, 0.7861, 0.9468, -1.1143]));
    assert_eq!(report["picked"], true);
    assert_eq!(report["renamed"], json!({"z.a": 1}));
    assert_eq!(report["set"], json!([2, 2.0]));
    assert_eq!(report["tiles"], json!([[1, 3, 80, 48], true]));
    assert_eq!(report["repeat"], json!([5, 3]));
}
