//! Parts of the host that are plain torch or plain Python: the pack `parts` compares them with numbers that it has from
//! elsewhere.

use super::*;

/// Runs the checks of one module of the pack `parts`; `least` is how many there must be.
fn checks(group: &str, least: usize, with_torch: bool) {
    let Some(python) = python() else { return };
    if with_torch && !has_module(&python, "torch") {
        return;
    }
    let rig = Rig::start(&["parts"], &["--cpu"]).unwrap();
    let shown = rig.shown(&json!({"9": node("PartsReport", json!({"group": group}))}));
    let failed = shown["failed"].as_array().cloned().unwrap_or_default();
    let told: Vec<&str> = failed.iter().filter_map(Value::as_str).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    let passed = shown["passed"].as_array().map_or(0, Vec::len);
    assert!(passed >= least, "{passed} checks of {group}: {shown}");
}

#[test]
fn layers_of_comfy_ops() {
    checks("layers", 7, true);
}

#[test]
fn attention_and_positions() {
    checks("attending", 7, true);
}

#[test]
fn parts_of_torch_without_torch() {
    let Some(python) = python() else { return };
    if has_module(&python, "torch") {
        return;
    }
    let rig = Rig::start(&["parts"], &["--cpu"]).unwrap();
    let shown = rig.shown(&json!({"9": node("PartsReport", json!({"group": "torchless"}))}));
    assert_eq!(shown["failed"], json!([]), "{shown}");
    assert_eq!(
        shown["passed"],
        json!(["check_parts_of_torch_say_what_is_missing"])
    );
}

#[test]
fn formats_hooks_and_other_plain_parts() {
    checks("plain", 7, false);
}

#[test]
fn samplers_as_functions() {
    checks("sampling", 6, true);
}

#[test]
fn schedules_and_conditionings() {
    checks("scheduling", 10, true);
}

#[test]
fn families_of_models_as_data() {
    checks("detection", 7, false);
}

#[test]
fn functions_beside_nodes_and_small_decoders() {
    checks("extras", 6, true);
}
