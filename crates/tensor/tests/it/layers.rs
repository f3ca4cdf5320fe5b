//! Norms, attention and the small operations as networks call them: shapes, refusals, and values worked out by hand.

use fresco_tensor::nn::{
    self, Act, Embedding, GroupNorm, LayerNorm, Mask, RmsNorm, attention, attention_probabilities,
};
use fresco_tensor::{Dtype, Generator, Result, Stored, Tensor};

fn ramp(shape: &[usize]) -> Tensor {
    Tensor::from_fn(shape, |i| i as f32).unwrap()
}

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape).unwrap()
}

fn stored(values: &[f32]) -> Stored {
    Stored::from(&Tensor::from_slice(values))
}

#[track_caller]
fn close(got: &Tensor, want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.data().iter().zip(want) {
        assert!((g - w).abs() < 1e-5, "{got:?} instead of {want:?}");
    }
}

#[test]
fn group_norm_checks_its_channels() {
    let four = stored(&[1.0, 1.0, 2.0, 2.0]);
    let zero = stored(&[0.0, 0.0, 0.0, 5.0]);
    assert!(GroupNorm::new(&four, &zero, 3, 1e-5).is_err());
    assert!(GroupNorm::new(&four, &zero, 0, 1e-5).is_err());
    assert!(GroupNorm::new(&four, &stored(&[0.0]), 1, 1e-5).is_err());
    let norm = GroupNorm::new(&four, &zero, 2, 0.0).unwrap();
    assert!(norm.forward(&ramp(&[1, 1, 1, 3]), Act::None).is_err());
    assert!(norm.forward(&ramp(&[1, 1, 4]), Act::None).is_err());
    // Groups of (0, 1) and (2, 3): mean in the middle, deviation a half.
    let y = norm.forward(&ramp(&[1, 1, 1, 4]), Act::None).unwrap();
    close(&y, &[-1.0, 1.0, -2.0, 7.0]);
    let y = norm.forward(&ramp(&[1, 1, 1, 4]), Act::Relu).unwrap();
    close(&y, &[0.0, 1.0, 0.0, 7.0]);
    let none = Tensor::zeros([0, 3, 3, 4]).unwrap();
    assert_eq!(
        norm.forward(&none, Act::Silu).unwrap().shape(),
        [0, 3, 3, 4]
    );
}

#[test]
fn layer_norm_with_all_its_parts() {
    let x = Tensor::from_vec([2, 1, 2], vec![0.0, 2.0, 5.0, 1.0]).unwrap();
    let plain = LayerNorm::new(None, None, 0.0).unwrap();
    close(&plain.forward(&x).unwrap(), &[-1.0, 1.0, 1.0, -1.0]);
    let (weight, bias) = (stored(&[2.0, 3.0]), stored(&[0.5, 0.0]));
    let full = LayerNorm::new(Some(&weight), Some(&bias), 0.0).unwrap();
    close(&full.forward(&x).unwrap(), &[-1.5, 3.0, 2.5, -3.0]);
    let weight_only = LayerNorm::new(Some(&weight), None, 0.0).unwrap();
    close(&weight_only.forward(&x).unwrap(), &[-2.0, 3.0, 2.0, -3.0]);
    // Each item has its own shift and scale.
    let shift = Tensor::from_vec([2, 2], vec![10.0, 20.0, 30.0, 40.0]).unwrap();
    let scale = Tensor::from_vec([2, 1, 2], vec![0.0, 1.0, 1.0, 0.0]).unwrap();
    let y = full.modulated(&x, &shift, &scale).unwrap();
    close(&y, &[8.5, 26.0, 35.0, 37.0]);
    let y = plain.modulated(&x, &shift, &scale).unwrap();
    close(&y, &[9.0, 22.0, 32.0, 39.0]);
    assert!(full.forward(&ramp(&[2, 3])).is_err());
    assert!(full.modulated(&x, &ramp(&[1, 2]), &scale).is_err());
    assert!(full.modulated(&ramp(&[2]), &shift, &scale).is_err());
    assert!(plain.forward(&Tensor::scalar(1.0)).is_err());
    assert!(
        plain
            .forward(&Tensor::zeros([0, 4]).unwrap())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn rms_norm_keeps_the_mean() {
    let x = Tensor::from_vec([1, 4], vec![2.0, -2.0, 2.0, 2.0]).unwrap();
    let plain = RmsNorm::new(None, 0.0).unwrap();
    close(&plain.forward(&x).unwrap(), &[1.0, -1.0, 1.0, 1.0]);
    let norm = RmsNorm::new(Some(&stored(&[1.0, 2.0, 3.0, 4.0])), 0.0).unwrap();
    close(&norm.forward(&x).unwrap(), &[1.0, -2.0, 3.0, 4.0]);
    assert!(norm.forward(&ramp(&[1, 3])).is_err());
    assert!(RmsNorm::new(Some(&Stored::from(&ramp(&[2, 2]))), 0.0).is_err());
}

#[test]
fn embeddings_keep_their_format() {
    let table = ramp(&[3, 2]);
    for dtype in [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F8E4M3,
        Dtype::F8E5M2,
    ] {
        let embedding = Embedding::new(&Stored::from_f32(&table, dtype).unwrap()).unwrap();
        assert_eq!((embedding.entries(), embedding.width()), (3, 2));
        let y = embedding.lookup(&[2, 0, 2]).unwrap();
        assert_eq!(y.shape(), [3, 2]);
        assert_eq!(y.data(), [4.0, 5.0, 0.0, 1.0, 4.0, 5.0], "{dtype:?}");
        assert_eq!(embedding.lookup(&[]).unwrap().shape(), [0, 2]);
        let error = embedding.lookup(&[3]).unwrap_err().to_string();
        assert!(error.contains("index 3"), "{error}");
    }
    assert!(Embedding::new(&stored(&[1.0])).is_err());
}

#[test]
fn attention_checks_its_shapes() {
    fn run(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, mask: Mask<'_>) -> Result<Tensor> {
        attention(q, k, v, heads, mask, None)
    }

    let x = random(&[2, 5, 12], 1);
    assert!(run(&x, &x, &x, 5, Mask::None).is_err());
    assert!(run(&x, &x, &x, 0, Mask::None).is_err());
    assert!(run(&x, &random(&[1, 5, 12], 1), &x, 2, Mask::None).is_err());
    assert!(run(&x, &x, &random(&[2, 4, 12], 1), 2, Mask::None).is_err());
    assert!(run(&x, &random(&[2, 5, 6], 1), &x, 2, Mask::None).is_err());
    for shape in [&[5, 4][..], &[3, 1, 5, 5], &[2, 5, 5], &[2, 4, 5, 5]] {
        assert!(
            run(&x, &x, &x, 2, Mask::Add(&ramp(shape))).is_err(),
            "{shape:?}"
        );
    }
    let none = Tensor::zeros([2, 0, 12]).unwrap();
    assert_eq!(
        run(&none, &x, &x, 2, Mask::None).unwrap().shape(),
        [2, 0, 12]
    );
    let y = run(&x, &none, &none, 2, Mask::None).unwrap();
    assert!(y.shape() == [2, 5, 12] && y.data().iter().all(|v| *v == 0.0));
}

#[test]
fn masks_of_every_broadcast_shape_agree() {
    let x = random(&[2, 5, 12], 1);
    let row = random(&[5, 5], 2);
    let want = attention(&x, &x, &x, 3, Mask::Add(&row), None).unwrap();
    for shape in [&[1, 1][..], &[2, 1], &[1, 3], &[2, 3]] {
        let full = row.expand(&[shape[0], shape[1], 5, 5]).unwrap();
        let got = attention(&x, &x, &x, 3, Mask::Add(&full), None).unwrap();
        assert_eq!(got, want, "{shape:?}");
    }
    // One row for all queries.
    let one = row.narrow(0, 0, 1).unwrap();
    let got = attention(&x, &x, &x, 3, Mask::Add(&one), None).unwrap();
    let same = one.expand(&[5, 5]).unwrap();
    assert_eq!(
        got,
        attention(&x, &x, &x, 3, Mask::Add(&same), None).unwrap()
    );
    // The causal mask as one that is added.
    let triangle = Tensor::from_fn([5, 5], |i| {
        if i % 5 > i / 5 {
            f32::NEG_INFINITY
        } else {
            0.0
        }
    })
    .unwrap();
    let got = attention(&x, &x, &x, 3, Mask::Add(&triangle), None).unwrap();
    close(
        &got,
        attention(&x, &x, &x, 3, Mask::Causal, None).unwrap().data(),
    );
    // No scores at all: the mean.
    let flat = attention(&x, &x, &x, 3, Mask::None, Some(0.0)).unwrap();
    let mean: f32 = (0..5).map(|i| x.at(&[0, i, 0]).unwrap()).sum::<f32>() / 5.0;
    assert!((flat.at(&[0, 3, 0]).unwrap() - mean).abs() < 1e-6);
}

#[test]
fn probabilities_are_those_of_attention() {
    let (q, k) = (random(&[2, 4, 6], 1), random(&[2, 7, 6], 2));
    let p = attention_probabilities(&q, &k, 2).unwrap();
    assert_eq!(p.shape(), [4, 4, 7]);
    let v = random(&[2, 7, 6], 3);
    let y = attention(&q, &k, &v, 2, Mask::None, None).unwrap();
    for (item, head, query, c) in [(0, 0, 0, 0), (1, 0, 3, 2), (1, 1, 2, 1)] {
        let want: f32 = (0..7)
            .map(|j| {
                p.at(&[item * 2 + head, query, j]).unwrap()
                    * v.at(&[item, j, head * 3 + c]).unwrap()
            })
            .sum();
        assert!((y.at(&[item, query, head * 3 + c]).unwrap() - want).abs() < 1e-6);
    }
    assert!(attention_probabilities(&q, &k, 4).is_err());
    assert!(
        attention_probabilities(&q, &Tensor::zeros([2, 0, 6]).unwrap(), 2)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn channels_are_joined() {
    let (a, b) = (ramp(&[1, 1, 2, 2]), ramp(&[1, 1, 2, 1]));
    let y = nn::concat_channels(&[&a, &b, &a]).unwrap();
    assert_eq!(y.shape(), [1, 1, 2, 5]);
    assert_eq!(y.data(), [0., 1., 0., 0., 1., 2., 3., 1., 2., 3.]);
    assert!(nn::concat_channels(&[]).is_err());
    assert!(nn::concat_channels(&[&a, &ramp(&[1, 2, 1, 2])]).is_err());
    let large = [random(&[2, 50, 50, 6], 1), random(&[2, 50, 50, 3], 2)];
    let y = nn::concat_channels(&[&large[0], &large[1]]).unwrap();
    assert_eq!(y, Tensor::cat(&[&large[0], &large[1]], 3).unwrap());
}

#[test]
fn nearest_pixels() {
    let x = ramp(&[1, 2, 2, 1]);
    let y = nn::upsample_nearest(&x, 3, 4).unwrap();
    assert_eq!(y.shape(), [1, 3, 4, 1]);
    // Rows 0, 0 (floor of 2/3), 1; columns 0, 0, 1, 1.
    assert_eq!(y.data(), [0., 0., 1., 1., 0., 0., 1., 1., 2., 2., 3., 3.]);
    let y = nn::upsample_nearest(&ramp(&[2, 3, 3, 2]), 1, 2).unwrap();
    assert_eq!(y.data(), [0., 1., 2., 3., 18., 19., 20., 21.]);
    assert!(nn::upsample_nearest(&Tensor::zeros([1, 0, 2, 1]).unwrap(), 2, 2).is_err());
    assert!(nn::upsample_nearest(&x, 0, 2).unwrap().is_empty());
}

#[test]
fn pooled_squares() {
    let y = nn::avg_pool2d(&ramp(&[1, 3, 4, 1]), 2).unwrap();
    assert_eq!(y.shape(), [1, 1, 2, 1]);
    assert_eq!(y.data(), [2.5, 4.5]);
    assert!(nn::avg_pool2d(&y, 0).is_err());
    assert!(nn::avg_pool2d(&y, 2).unwrap().is_empty());
}

#[test]
fn activations_and_gates() {
    let x = Tensor::from_slice(&[-1.0, 0.0, 2.0]);
    close(&nn::silu(&x), &[-0.268_941, 0.0, 1.761_594]);
    close(&nn::gelu(&x), &[-0.158_655, 0.0, 1.954_5]);
    close(&nn::gelu_tanh(&x), &[-0.158_808, 0.0, 1.954_598]);
    close(&nn::quick_gelu(&x), &[-0.154_204, 0.0, 1.935_659]);
    close(&nn::relu(&x), &[0.0, 0.0, 2.0]);
    close(&nn::tanh(&x), &[-0.761_594, 0.0, 0.964_028]);
    close(&nn::sigmoid(&x), &[0.268_941, 0.5, 0.880_797]);
    assert_eq!(nn::activate(x.clone(), Act::None), x);
    let y = nn::geglu(&Tensor::from_vec([2, 2], vec![3.0, 2.0, 5.0, -1.0]).unwrap()).unwrap();
    close(&y, &[5.863_499, -0.793_276]);
    assert!(nn::geglu(&ramp(&[2, 3])).is_err());
    let y = nn::softmax_last(&Tensor::from_vec([2, 2], vec![0.0, 0.0, 1.0, 0.0]).unwrap()).unwrap();
    close(&y, &[0.5, 0.5, 0.731_058, 0.268_941]);
    assert!(nn::softmax_last(&Tensor::scalar(0.0)).is_err());
    assert!(
        nn::softmax_last(&Tensor::zeros([3, 0]).unwrap())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn rotated_pairs() {
    // A quarter turn at the second position, none at the first; two heads of four channels.
    let x = ramp(&[1, 2, 8]);
    let cos = Tensor::from_vec([2, 2], vec![1.0, 1.0, 0.0, 1.0]).unwrap();
    let sin = Tensor::from_vec([2, 2], vec![0.0, 0.0, 1.0, 0.0]).unwrap();
    let y = nn::rope_interleaved(&x, 2, &cos, &sin).unwrap();
    assert_eq!(y.data()[..8], x.data()[..8]);
    assert_eq!(y.data()[8..], [-9., 8., 10., 11., -13., 12., 14., 15.]);
    let y = nn::rope_half(&x, 2, &cos, &sin).unwrap();
    assert_eq!(y.data()[8..], [-10., 9., 8., 11., -14., 13., 12., 15.]);
    let per_item = cos.reshape([1, 2, 2]).unwrap();
    let sines = sin.reshape([1, 2, 2]).unwrap();
    assert_eq!(nn::rope_half(&x, 2, &per_item, &sines).unwrap(), y);
    assert!(nn::rope_half(&x, 3, &cos, &sin).is_err());
    assert!(nn::rope_half(&x, 0, &cos, &sin).is_err());
    assert!(nn::rope_half(&x, 2, &ramp(&[2, 4]), &ramp(&[2, 4])).is_err());
    assert!(nn::rope_half(&x, 2, &cos, &per_item).is_err());
}
