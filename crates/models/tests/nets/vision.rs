//! Vision encoders.

use fresco_models::ModelError;
use fresco_models::vision::{VisionConfig, VisionEncoder};
use fresco_tensor::Tensor;
use fresco_tensor::nn::Act;

use crate::gold::{assert_summary, json, store, wave, waves};

fn small() -> VisionConfig {
    VisionConfig {
        hidden: 32,
        layers: 3,
        heads: 4,
        inner: 64,
        act: Act::Gelu,
        patch: 14,
        size: 56,
        projection: Some(16),
        siglip: false,
    }
}

#[test]
fn clip_vision() {
    let out = &json("nets")["clip_vision"]["out"];
    let store = store(waves(small().weights().unwrap()));
    let net = VisionEncoder::new(&store, &small()).unwrap();
    let image = wave(&[1, 40, 60, 3], 0.017).map(|v| f32::midpoint(v, 1.0));
    let pixels = net.prepare(&image, true).unwrap().nhwc_to_nchw().unwrap();
    assert_summary(&pixels, &out["pixels"], "pixels");
    let made = net.encode(&image, true).unwrap();
    assert_summary(&made.last, &out["last"], "last");
    assert_summary(&made.penultimate, &out["penultimate"], "penultimate");
    assert_summary(&made.embeds, &out["embeds"], "embeds");
}

#[test]
fn the_shape_is_read_from_the_weights() {
    let weights = waves(small().weights().unwrap());
    let found = VisionConfig::detect(&store(weights.clone())).unwrap();
    assert_eq!(VisionConfig { heads: 4, ..found }, small());
    let mut cut = weights;
    cut.remove("vision_model.post_layernorm.bias");
    let error = VisionEncoder::new(&store(cut), &small()).err().unwrap();
    assert!(matches!(error, ModelError::Missing { .. }), "{error}");
    let nothing = VisionConfig {
        hidden: 0,
        ..small()
    };
    assert!(VisionConfig::detect(&store(waves(nothing.weights().unwrap()))).is_err());
    let empty = Tensor::zeros([1, 0, 4, 3]).unwrap();
    let net = VisionEncoder::new(&store(waves(small().weights().unwrap())), &small()).unwrap();
    assert!(net.encode(&empty, true).is_err());
}
