//! Resizing nodes of the reference, through the functions those nodes call.

use fresco_tensor::{Crop, ResizeMethod, common_upscale};

use crate::golden::{area, check, size, stream};

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
        let bound = if exact { 0.0 } else { 2e-6 };
        check(id, bound, &out, &case["outputs"][0][0], &gold);
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
        let exact = method == ResizeMethod::NearestExact;
        let bound = if exact { 0.0 } else { 2e-6 };
        check(id, bound, &out, expect, &gold);
    }
    assert_eq!(checked, 26);
}

#[test]
fn eight_bit_pictures() {
    let (cases, gold) = area("dataset");
    let mut checked = 0;
    for case in &cases {
        let class = case["class"].as_str().unwrap();
        if !class.starts_with("ResizeImagesBy")
            || case.get("error").is_some()
            || case["inputs"]["images"].get("$tensor").is_none()
        {
            continue;
        }
        let x = stream(&case["inputs"]["images"]).nhwc_to_nchw().unwrap();
        let expect = &case["outputs"][0][0];
        let (height, width) = (size(&expect["shape"][1]), size(&expect["shape"][2]));
        let out = common_upscale(&x, width, height, ResizeMethod::Lanczos, Crop::Disabled);
        let out = out.unwrap().nchw_to_nhwc().unwrap();
        check(case["id"].as_str().unwrap(), 0.0, &out, expect, &gold);
        checked += 1;
    }
    assert_eq!(checked, 5);
}
