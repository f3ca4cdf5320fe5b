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
        scaled: false,
        gated: false,
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

/// Numbers of the same formulas in f64, written apart from this program.
#[test]
fn blocks_that_scale_what_they_add() {
    let plain = [
        0.974504, 0.202736, -0.465153, -0.989638, 1.308213, -0.961301,
    ];
    let gated = [
        -0.691568, 0.212861, 0.048725, -0.838636, 1.197028, -1.001358,
    ];
    for (is_gated, expected) in [(false, plain), (true, gated)] {
        let config = VisionConfig {
            hidden: 128,
            layers: 2,
            heads: 2,
            inner: 96,
            act: Act::Gelu,
            patch: 14,
            size: 28,
            projection: None,
            siglip: false,
            scaled: true,
            gated: is_gated,
        };
        let store = store(waves(config.weights().unwrap()));
        assert_eq!(VisionConfig::detect(&store).unwrap(), config);
        let net = VisionEncoder::new(&store, &config).unwrap();
        let image = wave(&[1, 28, 28, 3], 0.017).map(|v| f32::midpoint(v, 1.0));
        let made = net.encode(&image, true).unwrap();
        assert_eq!(made.last.shape(), [1, 5, 128]);
        let all = made.last.data();
        let ends = all[..3].iter().chain(&all[all.len() - 3..]);
        for (found, wanted) in ends.zip(expected) {
            assert!((found - wanted).abs() < 2e-4, "{found} {wanted}");
        }
    }
}
