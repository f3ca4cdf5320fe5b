//! Blurring, sharpening, morphology and mask growing of the reference's nodes.

use fresco_tensor::filter::gaussian_blur;
use fresco_tensor::morphology::{Extreme, grow_mask, window};
use fresco_tensor::{Result, Tensor};
use serde_json::Value;

use crate::golden::{area, check, size, stream};

fn blur(inputs: &Value, radius: &str) -> Result<Tensor> {
    let image = stream(&inputs["image"]).nhwc_to_nchw()?;
    let sigma = inputs["sigma"].as_f64().unwrap() as f32;
    gaussian_blur(&image, size(&inputs[radius]), sigma)?.nchw_to_nhwc()
}

fn sharpen(inputs: &Value) -> Result<Tensor> {
    let image = stream(&inputs["image"]);
    let strength = inputs["alpha"].as_f64().unwrap() as f32 * 10.0;
    let soft = blur(inputs, "sharpen_radius")?.mul_scalar(strength);
    Ok(image.mul_scalar(1.0 + strength).sub(&soft)?.clamp(0.0, 1.0))
}

fn morphology(inputs: &Value) -> Result<Tensor> {
    let image = stream(&inputs["image"]).nhwc_to_nchw()?;
    let kernel = size(&inputs["kernel_size"]);
    let dilate = |x: &Tensor| window(x, kernel, Extreme::Max);
    let erode = |x: &Tensor| window(x, kernel, Extreme::Min);
    match inputs["operation"].as_str().unwrap() {
        "erode" => erode(&image)?,
        "dilate" => dilate(&image)?,
        "open" => dilate(&erode(&image)?)?,
        "close" => erode(&dilate(&image)?)?,
        "gradient" => dilate(&image)?.sub(&erode(&image)?)?,
        "top_hat" => image.sub(&dilate(&erode(&image)?)?)?,
        "bottom_hat" => erode(&dilate(&image)?)?.sub(&image)?,
        other => panic!("{other}"),
    }
    .nchw_to_nhwc()
}

fn grow(inputs: &Value) -> Result<Tensor> {
    let mask = stream(&inputs["mask"]);
    let mask = if mask.rank() == 2 {
        mask.unsqueeze(0)?
    } else {
        mask
    };
    let steps = inputs["expand"].as_i64().unwrap();
    grow_mask(&mask, steps, inputs["tapered_corners"].as_bool().unwrap())
}

#[track_caller]
fn check_class(
    name: &str,
    class: &str,
    bound: f32,
    count: usize,
    run: fn(&Value) -> Result<Tensor>,
) {
    let (cases, gold) = area(name);
    let cases: Vec<_> = cases.iter().filter(|c| c["class"] == class).collect();
    assert_eq!(cases.len(), count);
    for case in cases {
        let out = run(&case["inputs"]);
        if case.get("error").is_some() {
            assert!(out.is_err(), "{}", case["id"]);
            continue;
        }
        let id = case["id"].as_str().unwrap();
        check(id, bound, &out.unwrap(), &case["outputs"][0][0], &gold);
    }
}

#[test]
fn blurred_pictures() {
    check_class("image_post", "ImageBlur", 2e-6, 7, |inputs| {
        blur(inputs, "blur_radius")
    });
}

#[test]
fn sharpened_pictures() {
    check_class("image_post", "ImageSharpen", 1e-5, 6, sharpen);
}

#[test]
fn morphology_of_pictures() {
    check_class("image_post", "Morphology", 0.0, 16, morphology);
}

#[test]
fn grown_masks() {
    check_class("mask", "GrowMask", 0.0, 12, grow);
}
