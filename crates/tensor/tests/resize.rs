//! Resizing nodes of the reference, through the functions those nodes call.

use std::path::Path;

use fresco_tensor::synthetic::{Mapping, input};
use fresco_tensor::{Crop, ResizeMethod, SafeTensors, Tensor, common_upscale};
use serde_json::Value;

fn area(name: &str) -> (Vec<Value>, SafeTensors) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold/nodes");
    let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = json["cases"].take() else {
        panic!("no cases")
    };
    (
        cases,
        SafeTensors::open(dir.join(format!("{name}.safetensors"))).unwrap(),
    )
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn shape(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(size).collect()
}

fn stream(value: &Value) -> Tensor {
    let t = &value["$tensor"];
    let scale = t["scale"].as_f64().map(|s| s as f32);
    let map = Mapping::parse(t["map"].as_str().unwrap(), scale).unwrap();
    input(t["stream"].as_str().unwrap_or(""), &shape(&t["shape"]), map).unwrap()
}

/// Exact for methods that copy or work in 8 bits, otherwise 2e-6 absolute or relative.
fn check(id: &str, exact: bool, out: &Tensor, expect: &Value, gold: &SafeTensors) {
    assert_eq!(out.shape(), shape(&expect["shape"]), "{id}");
    let expected = match expect["$ref"].as_str() {
        Some(key) => gold.tensor(key).unwrap(),
        None => Tensor::full(out.shape(), expect["$const"].as_f64().unwrap() as f32).unwrap(),
    };
    for (i, (a, b)) in out.data().iter().zip(expected.data()).enumerate() {
        let bound = if exact { 0.0 } else { 2e-6 * b.abs().max(1.0) };
        assert!(
            (a - b).abs() <= bound,
            "{id} element {i}: {a}, expected {b}"
        );
    }
}

fn rounded(size: usize, factor: f64) -> usize {
    (size as f64 * factor).round_ties_even() as usize
}

#[test]
fn pictures() {
    let (cases, gold) = area("image_scale");
    let mut checked = 0;
    for case in &cases {
        let (class, id, inputs) = (
            case["class"].as_str().unwrap(),
            case["id"].as_str().unwrap(),
            &case["inputs"],
        );
        if class != "ImageScale" && class != "ImageScaleBy" {
            continue;
        }
        let x = stream(&inputs["image"]).nhwc_to_nchw().unwrap();
        let [_, _, h, w] = x.dims4().unwrap();
        let method = ResizeMethod::parse(inputs["upscale_method"].as_str().unwrap()).unwrap();
        let (width, height, crop) = if class == "ImageScale" {
            let (width, height) = (size(&inputs["width"]), size(&inputs["height"]));
            let keep = |other: usize, own: usize, target: usize| {
                ((own as f64 * target as f64 / other as f64).round_ties_even() as usize).max(1)
            };
            let crop = Crop::parse(inputs["crop"].as_str().unwrap());
            match (width, height) {
                (0, 0) => (w, h, Crop::Disabled),
                (0, height) => (keep(h, w, height), height, crop),
                (width, 0) => (width, keep(w, h, width), crop),
                (width, height) => (width, height, crop),
            }
        } else {
            let factor = inputs["scale_by"].as_f64().unwrap();
            (rounded(w, factor), rounded(h, factor), Crop::Disabled)
        };
        let out = common_upscale(&x, width, height, method, crop);
        checked += 1;
        if case.get("error").is_some() {
            assert!(out.is_err(), "{id}");
            continue;
        }
        let out = out.unwrap().nchw_to_nhwc().unwrap();
        let exact = matches!(method, ResizeMethod::NearestExact | ResizeMethod::Lanczos);
        check(id, exact, &out, &case["outputs"][0][0], &gold);
    }
    assert_eq!(checked, 36);
}

#[test]
fn latents() {
    let (cases, gold) = area("latent");
    let mut checked = 0;
    for case in &cases {
        let (class, id, inputs) = (
            case["class"].as_str().unwrap(),
            case["id"].as_str().unwrap(),
            &case["inputs"],
        );
        if class != "LatentUpscale" && class != "LatentUpscaleBy" {
            continue;
        }
        let x = stream(&inputs["samples"]["samples"]);
        let (h, w) = (x.shape()[x.rank() - 2], x.shape()[x.rank() - 1]);
        let method = ResizeMethod::parse(inputs["upscale_method"].as_str().unwrap()).unwrap();
        let expect = &case["outputs"][0][0]["samples"];
        let (width, height, crop) = if class == "LatentUpscale" {
            let (width, height) = (size(&inputs["width"]), size(&inputs["height"]));
            let keep = |other: usize, own: usize, target: usize| {
                ((own as f64 * target as f64 / other as f64).round_ties_even() as usize).max(64)
            };
            let (width, height) = match (width, height) {
                (0, 0) => (w * 8, h * 8),
                (0, height) => (keep(h, w, height.max(64)), height.max(64)),
                (width, 0) => (width.max(64), keep(w, h, width.max(64))),
                (width, height) => (width.max(64), height.max(64)),
            };
            let crop = Crop::parse(inputs["crop"].as_str().unwrap());
            (width / 8, height / 8, crop)
        } else {
            let factor = inputs["scale_by"].as_f64().unwrap();
            (rounded(w, factor), rounded(h, factor), Crop::Disabled)
        };
        let out = common_upscale(&x, width, height, method, crop).unwrap();
        checked += 1;
        check(
            id,
            method == ResizeMethod::NearestExact,
            &out,
            expect,
            &gold,
        );
    }
    assert_eq!(checked, 26);
}
