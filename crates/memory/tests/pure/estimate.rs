//! The tables of estimates, row by row.

use fresco_memory::amount::MIB;
use fresco_memory::estimate::*;

fn near(bytes: u64, mib: f64) {
    let found = bytes as f64 / MIB as f64;
    assert!((found - mib).abs() < 1e-3, "{found} MiB, not {mib}");
}

/// A factor alone, or all of it.
struct Needs(ModelNeeds);

impl From<Factor> for Needs {
    fn from(factor: Factor) -> Self {
        Self(ModelNeeds::of(factor))
    }
}

impl From<ModelNeeds> for Needs {
    fn from(needs: ModelNeeds) -> Self {
        Self(needs)
    }
}

/// One for one, as Stable Diffusion 1.
const ONE: Factor = Factor::new(1, 1);

fn request(needs: impl Into<Needs>, noise: &[u64], dtype: u64) -> Sampling<'_> {
    let Needs(needs) = needs.into();
    Sampling {
        needs,
        noise,
        conditionings: &[],
        dtype,
        attention: Attention::Efficient,
        control: 0,
    }
}

#[test]
fn worked_examples() {
    let found = sampling(&request(ONE, &[1, 4, 64, 64], 2));
    near(found.required, 163.84);
    near(found.minimum, 81.92);
    let found = sampling(&request(Factor::new(31, 10), &[1, 16, 128, 128], 2));
    near(found.required, 2031.616);
    near(found.minimum, 1015.808);
}

#[test]
fn attention_with_the_whole_matrix_ignores_the_number_format() {
    for dtype in [1, 2, 4] {
        let found = sampling(&Sampling {
            attention: Attention::Plain,
            ..request(ONE, &[1, 4, 64, 64], dtype)
        });
        near(found.minimum, 4096.0 * 0.15);
    }
    near(sampling(&request(ONE, &[1, 4, 64, 64], 4)).minimum, 163.84);
}

#[test]
fn factors() {
    for (over, under, factor) in [
        (2, 1, 2.0),
        (8, 10, 0.8),
        (29_264, 1000, 29.264),
        (55 * 4096, 10 * 2048, 11.0),
        (12 * 2222, 10 * 2222, 1.2),
        (44, 1000, 0.044),
    ] {
        let found = Factor::new(over, under);
        assert!((found.value() - factor).abs() < 1e-12, "{found:?}");
        // Through the formula: an area of 100 with one byte a number is a MiB for each of the factor.
        near(area_bytes(100, found, 1, Attention::Efficient), factor);
    }
}

#[test]
fn conditionings_that_count() {
    let noise = [1, 16, 10, 10];
    let of = |needs: ModelNeeds, conditionings: &[Conditioning]| {
        let plain = sampling(&request(needs, &noise, 1));
        let with = sampling(&Sampling {
            conditionings,
            ..request(needs, &noise, 1)
        });
        // In elements of area: what was added, of both values.
        let factor = needs.factor.value();
        let area = |with: u64, plain: u64| {
            ((with - plain) as f64 / MIB as f64 * 100.0 / factor * 100.0).round() / 100.0
        };
        (
            area(with.required, plain.required),
            area(with.minimum, plain.minimum),
        )
    };
    let small = Conditioning::ReferenceLatents(vec![vec![1, 16, 4, 5]]);
    let two = Conditioning::ReferenceLatents(vec![vec![1, 16, 4, 5], vec![1, 16, 1, 3, 7]]);
    for factor in [Factor::new(31, 10), Factor::new(29_264, 1000)] {
        let needs = ModelNeeds {
            references: References::Places,
            ..ModelNeeds::of(factor)
        };
        assert_eq!(of(needs, std::slice::from_ref(&small)), (20.0, 20.0));
        assert_eq!(of(needs, &[small.clone(), two.clone()]), (61.0, 41.0));
        assert_eq!(
            of(
                needs,
                &[Conditioning::ReferenceMotion(vec![1, 16, 73, 3, 5])]
            ),
            (0.0, 0.0)
        );
    }
    // All elements, by 16, rounded down: (320 + 21 * 16) / 16 and (3 * 5) / 16.
    let sixteenth = |factor: Factor, motion: bool| ModelNeeds {
        references: References::Sixteenth,
        motion,
        ..ModelNeeds::of(factor)
    };
    let s2v = sixteenth(ONE, true);
    for other in [
        sixteenth(Factor::new(195, 100), false),
        sixteenth(Factor::new(18, 10), false),
        s2v,
    ] {
        assert_eq!(of(other, &[two.clone(), small.clone()]), (61.0, 41.0));
        assert_eq!(
            of(
                other,
                &[Conditioning::ReferenceLatents(vec![vec![1, 3, 5]])]
            ),
            (0.0, 0.0)
        );
    }
    let motion = Conditioning::ReferenceMotion(vec![1, 16, 73, 3, 5]);
    assert_eq!(of(s2v, &[motion.clone(), small.clone()]), (42.5, 42.5));
    assert_eq!(of(s2v, &[motion.clone(), motion.clone()]), (45.0, 22.5));
    // The first of those that are as large, with all dimensions.
    let wide = Conditioning::ReferenceMotion(vec![1, 16, 9, 1, 2]);
    let tall = Conditioning::ReferenceMotion(vec![1, 8, 9, 2, 2]);
    assert_eq!(of(s2v, &[wide.clone(), tall.clone()]), (9.0, 3.0));
    assert_eq!(of(s2v, &[tall, wide]), (9.0, 6.0));
    // Others do not look at them.
    let plain = ModelNeeds::of(ONE);
    assert_eq!(of(plain, &[motion, small]), (0.0, 0.0));
}

#[test]
fn control_adds_to_both() {
    let plain = sampling(&request(ONE, &[2, 4, 8, 8], 2));
    let with = sampling(&Sampling {
        control: control_lora(1000, 2),
        ..request(ONE, &[2, 4, 8, 8], 2)
    });
    assert_eq!(
        (with.required, with.minimum),
        (plain.required + 2000, plain.minimum + 2000)
    );
}

#[test]
fn videos_count_frames() {
    assert_eq!(area(&[2, 16, 5, 3, 4]), 120);
    assert_eq!(area(&[2, 16]), 2);
    assert_eq!(area(&[]), 0);
}

#[test]
fn conditionings_go_together_while_there_is_room() {
    let each = |size: usize| 100 * size as u64;
    // 1.5 times the estimate must be less than what is free.
    assert_eq!(batch(4, 601, each), 4);
    assert_eq!(batch(4, 600, each), 2);
    assert_eq!(batch(7, 450, each), 2);
    assert_eq!(batch(7, 451, each), 3);
    assert_eq!(batch(4, 0, each), 1);
    assert_eq!(batch(0, 1000, each), 0);
    assert_eq!(batch(3, u64::MAX, |_| u64::MAX), 1);
    let mut asked = Vec::new();
    batch(10, 0, |size| {
        asked.push(size);
        u64::MAX
    });
    assert_eq!(asked, [10, 5, 3, 2, 1]);
}

#[test]
fn vae_table() {
    // (b, c, t, h, w) = (2, 3, 5, 7, 11): the plane has 77.
    let video = [2, 3, 5, 7, 11];
    let picture = [2, 3, 7, 11];
    let sound = [2, 3, 13];
    let table: [(Vae, &[u64], u64, u64); 15] = [
        (Vae::Kl { amd: false }, &picture, 2178 * 77 * 64, 1767 * 77),
        (
            Vae::KlBatchNorm { amd: false },
            &picture,
            4 * 2178 * 77 * 64,
            1767 * 77,
        ),
        (Vae::HunyuanImage, &picture, 700 * 77 * 1024, 700 * 77),
        (Vae::Refiner, &video, 2800 * 5 * 77 * 256, 2800 * 77),
        (Vae::StableAudio, &sound, 1000 * 13 * 2048, 1000 * 13),
        (
            Vae::Mochi,
            &video,
            1000 * 5 * 77 * 384,
            7 * 77 * 384 * 3 / 2,
        ),
        (Vae::Ltxv, &video, 900 * 5 * 77 * 512, 70 * 7 * 77),
        (
            Vae::HunyuanVideo15,
            &video,
            3600 * 4 * 77 * 256,
            1400 * 9 * 77,
        ),
        (Vae::HunyuanVideo, &video, 2800 * 8 * 77 * 64, 1400 * 5 * 77),
        // (5 + 7) / 8 = 1.5, to the even 2.
        (Vae::Cosmos, &video, 50 * 5 * 77 * 512, 50 * 16 * 77),
        (Vae::Wan22, &video, 8000 * 77 * 256, 3300 * 77),
        (Vae::Wan21, &video, 7000 * 77 * 64, 6000 * 77),
        (Vae::Hunyuan3d, &sound, 2 * 3 * 13 * 33, 2 * 3 * 13),
        (Vae::AceStep, &[1, 8, 16, 9], 16 * 9 * 87000, 16 * 330),
        (Vae::Pixels, &picture, 77, 77),
    ];
    for (vae, shape, decode, encode) in table {
        for dtype in [2, 4] {
            assert_eq!(vae.decode(shape, dtype), decode * dtype, "{vae:?}");
            assert_eq!(vae.encode(shape, dtype), encode * dtype, "{vae:?}");
        }
    }
    assert_eq!(Vae::MmAudio.decode(&sound, 2), 2 * 13 * 127_008);
    assert_eq!(Vae::MmAudio.encode(&sound, 2), 30 * 13 * 2);
}

#[test]
fn vae_rows_that_depend_on_length() {
    let of = |t| [1, 16, t, 4, 4];
    assert_eq!(Vae::Wan21.decode(&of(4), 1), 2200 * 16 * 64);
    assert_eq!(Vae::Wan21.encode(&of(4), 1), 1500 * 16);
    assert_eq!(Vae::HunyuanVideo.decode(&of(1), 1), 2800 * 16 * 64);
    assert_eq!(Vae::HunyuanVideo.decode(&of(2), 1), 2800 * 5 * 16 * 64);
    assert_eq!(Vae::HunyuanVideo.encode(&of(100), 1), 1400 * 9 * 16);
    assert_eq!(Vae::Mochi.encode(&of(20), 1), 576 * 20 * 16);
    assert_eq!(Vae::Ltxv.encode(&of(20), 1), 70 * 20 * 16);
    // (1 + 7) / 8 = 1, (13 + 7) / 8 = 2.5 to 2, (21 + 7) / 8 = 3.5 to 4, 4.875 to 5.
    for (t, rounded) in [(1, 1), (13, 2), (21, 4), (32, 5)] {
        assert_eq!(Vae::Cosmos.encode(&of(t), 1), 50 * 8 * rounded * 16);
    }
    // Amd, 2.73 times.
    assert_eq!(
        Vae::Kl { amd: true }.decode(&[1, 4, 10, 10], 2),
        2178 * 64 * 2 * 273
    );
    assert_eq!(
        Vae::Kl { amd: true }.encode(&[1, 3, 10, 10], 2),
        1767 * 2 * 273
    );
}

#[test]
fn small_video_encoders_grow_with_length() {
    let of = |t| [1, 16, t, 4, 4];
    assert_eq!(Vae::TinyWan22.decode(&of(1), 2), 1800 * 16 * 256 * 2);
    assert_eq!(
        Vae::TinyHunyuanVideo15.decode(&of(1), 2),
        1200 * 16 * 1024 * 2
    );
    assert_eq!(Vae::TinyVideo.decode(&of(1), 2), 50 * 16 * 1024 * 2);
    assert_eq!(Vae::TinyVideo.encode(&of(1), 2), 700 * 16 * 2);
    let grown = |bytes: u64, base: u64, factor: f64| {
        let expected = base as f64 * factor;
        assert!((bytes as f64 - expected).abs() <= 1.0, "{bytes} {expected}");
    };
    grown(
        Vae::TinyWan22.decode(&of(100), 2),
        1800 * 16 * 256 * 2,
        0.1 * 100f64.powf(0.7),
    );
    grown(
        Vae::TinyHunyuanVideo15.decode(&of(100), 2),
        1200 * 16 * 1024 * 2,
        0.05 * 100f64.powf(0.7),
    );
    grown(
        Vae::TinyVideo.decode(&of(100), 2),
        50 * 16 * 1024 * 2,
        0.26 * 100f64.powf(0.65),
    );
    grown(
        Vae::TinyVideo.encode(&of(100), 2),
        700 * 16 * 2,
        0.11 * 100f64.powf(0.66),
    );
}

#[test]
fn sound_is_loaded_whole() {
    assert!(Vae::StableAudio.needs_full_load() && Vae::AceStep.needs_full_load());
    assert!(!Vae::Kl { amd: false }.needs_full_load());
}

#[test]
fn passes_and_tiles() {
    assert_eq!(items_per_pass(100, 30), 3);
    assert_eq!(items_per_pass(10, 30), 1);
    assert_eq!(items_per_pass(10, 0), 10);
    let tile = 512 * 512 * 3 * 384 * 4;
    assert_eq!(upscale(10, 4, 4.0, 5), 4 * tile + 15);
    assert_eq!(upscale(10, 4, 0.5, 5), tile + 15);
    assert_eq!(upscale(10, 4, f64::NAN, 5), tile + 15);
    assert_eq!(
        upscale(u64::MAX, u64::MAX, f64::INFINITY, u64::MAX),
        u64::MAX
    );
}

#[test]
fn absurd_shapes_have_an_answer() {
    let shapes: [&[u64]; 6] = [
        &[],
        &[0],
        &[1, 2],
        &[u64::MAX; 3],
        &[u64::MAX; 5],
        &[0, 0, 0, 0, 0, 0, 0],
    ];
    let vaes = [
        Vae::Kl { amd: true },
        Vae::KlBatchNorm { amd: true },
        Vae::HunyuanVideo,
        Vae::Cosmos,
        Vae::Mochi,
        Vae::TinyVideo,
        Vae::TinyWan22,
        Vae::AceStep,
        Vae::MmAudio,
    ];
    for shape in shapes {
        for dtype in [0, 1, u64::MAX] {
            for vae in vaes {
                let _ = (vae.decode(shape, dtype), vae.encode(shape, dtype));
            }
            for needs in [
                ModelNeeds {
                    references: References::Places,
                    ..ModelNeeds::of(Factor::new(u64::MAX, 10))
                },
                ModelNeeds {
                    references: References::Sixteenth,
                    motion: true,
                    ..ModelNeeds::of(Factor::new(u64::from(u32::MAX), 2222))
                },
            ] {
                let conditionings = [
                    Conditioning::ReferenceLatents(vec![shape.to_vec(), shape.to_vec()]),
                    Conditioning::ReferenceMotion(shape.to_vec()),
                ];
                let found = sampling(&Sampling {
                    conditionings: &conditionings,
                    control: u64::MAX,
                    ..request(needs, shape, dtype)
                });
                assert_eq!(found.required, u64::MAX);
            }
        }
    }
    assert_eq!(
        area_bytes(
            u128::MAX,
            Factor::new(u64::MAX, 0),
            u64::MAX,
            Attention::Plain
        ),
        u64::MAX
    );
}
