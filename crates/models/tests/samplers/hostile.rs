//! Levels, models and options that make no sense: an error or some result, never a panic and never a run without end.

use std::cell::Cell;

use fresco_models::samplers::{Denoiser, SampleError, SamplerName, SamplerOptions};
use fresco_tensor::Tensor;

use crate::support::{SHAPE, Toy, all, bent, eps, flow, levels, normal, run_with};

const FEW: usize = 50_000;

/// Answers with one value, and fails the test when asked far too often.
fn constant(value: f32) -> impl Denoiser {
    let mut calls = 0;
    Toy::new(
        move |_, _| {
            calls += 1;
            assert!(calls < FEW * 256, "the sampler does not end");
            value
        },
        move |_, _| value,
    )
}

fn attempt(
    name: SamplerName,
    model: &mut dyn Denoiser,
    sigmas: &[f32],
    options: &SamplerOptions,
) -> Result<Tensor, SampleError> {
    for sampling in [flow(), eps()] {
        let _ = run_with(name, model, &sampling, sigmas, options, &SHAPE, &mut |_| {
            Ok(())
        });
    }
    run_with(
        name,
        model,
        &eps(),
        sigmas,
        options,
        &SHAPE,
        &mut |_| Ok(()),
    )
}

#[test]
fn nothing_to_do() {
    let options = SamplerOptions::default();
    for name in all() {
        for sigmas in [&[][..], &[3.0][..], &[0.0][..]] {
            let mut model = Toy::new(|_, _| panic!("not to be asked"), |_, _| 0.0);
            let out = attempt(name, &mut model, sigmas, &options).unwrap();
            assert_eq!(out.shape(), SHAPE);
        }
    }
}

#[test]
fn strange_levels() {
    let options = SamplerOptions::default();
    let lists: [&[f32]; 12] = [
        &[0.0, 0.0],
        &[1.0, 1.0, 1.0, 1.0],
        &[0.0, 5.0, 0.0, 5.0, 0.0],
        &[0.5, 1.0, 3.0, 9.0, 14.0],
        &[5.0, 2.0, 2.0, 1.0, 0.0, 0.0],
        &[-5.0, -1.0, 0.0],
        &[3.0, -3.0, 2.0, 0.0],
        &[1e30, 1e20, 1e-20, 0.0],
        &[f32::MAX, f32::MIN_POSITIVE, 0.0],
        &[1e-7, 1e-8, 0.0],
        &[1.0, 0.0],
        &[1.0, 0.5],
    ];
    for name in all() {
        for sigmas in lists {
            // Whatever comes, it comes.
            let _ = attempt(name, &mut bent(), sigmas, &options);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let result = attempt(name, &mut bent(), &[5.0, bad, 0.0], &options);
            assert!(
                matches!(result, Err(SampleError::Sigma { index: 1, .. })),
                "{name:?}"
            );
        }
    }
}

#[test]
fn answers_that_are_not_numbers() {
    let options = SamplerOptions::default();
    let sigmas = levels(&eps(), 6);
    for name in all() {
        for value in [f32::NAN, f32::INFINITY, f32::MAX] {
            let result = attempt(name, &mut constant(value), &sigmas, &options);
            if name != SamplerName::DpmAdaptive {
                assert_eq!(result.unwrap().shape().len(), 4, "{name:?}");
            } else if value.is_nan() {
                assert!(matches!(result, Err(SampleError::Unfit { .. })));
            }
        }
    }
}

#[test]
fn few_steps() {
    let options = SamplerOptions::default();
    for name in all() {
        for steps in 1..=4 {
            let sigmas = levels(&eps(), steps);
            let result = attempt(name, &mut normal(), &sigmas, &options).unwrap();
            let finite = result.data().iter().all(|v| v.is_finite());
            assert!(finite, "{name:?} in {steps} steps");
        }
    }
}

#[test]
fn adaptive_steps_that_cannot_be_found() {
    let sigmas = levels(&eps(), 6);
    let fail = |options: SamplerOptions| {
        let calls = Cell::new(0usize);
        let mut model = Toy::new(
            |x, s| {
                calls.set(calls.get() + 1);
                x / (1.0 + s * s) + 0.1 * (9.0 * x).sin()
            },
            |_, _| 0.0,
        );
        let result = attempt(SamplerName::DpmAdaptive, &mut model, &sigmas, &options);
        assert!(calls.get() / 256 < FEW, "{} model calls", calls.get() / 256);
        assert!(
            matches!(result, Err(SampleError::Unfit { .. })),
            "{options:?}"
        );
    };
    let base = SamplerOptions::default;
    fail(SamplerOptions {
        h_init: 0.0,
        ..base()
    });
    fail(SamplerOptions {
        accept_safety: 100.0,
        ..base()
    });
    fail(SamplerOptions {
        rtol: 0.0,
        atol: 0.0,
        ..base()
    });
    fail(SamplerOptions {
        order: Some(7),
        ..base()
    });
    let zero = attempt(
        SamplerName::DpmAdaptive,
        &mut normal(),
        &[0.0, 0.0],
        &base(),
    );
    assert!(matches!(zero, Err(SampleError::Unfit { .. })));
}

#[test]
fn options_out_of_all_reason() {
    let sigmas = levels(&eps(), 5);
    let values = [0.0, -1.0, 1e300, f64::NAN, f64::INFINITY];
    for name in all() {
        if matches!(name, SamplerName::DpmAdaptive | SamplerName::LcmUpscale) {
            continue;
        }
        for value in values {
            let options = SamplerOptions {
                eta: Some(value),
                s_noise: Some(value),
                s_churn: value,
                r: value,
                ge_gamma: value,
                order: Some(if value == 0.0 { 0 } else { 100 }),
                max_stage: 0,
                predictor_order: 0,
                corrector_order: 0,
                ..SamplerOptions::default()
            };
            let _ = attempt(name, &mut bent(), &sigmas, &options);
        }
        let options = SamplerOptions {
            predictor_order: 100,
            corrector_order: 100,
            max_stage: 100,
            ..SamplerOptions::default()
        };
        let _ = attempt(name, &mut bent(), &sigmas, &options);
    }
}

#[test]
fn growing_beyond_memory() {
    let sigmas = levels(&eps(), 5);
    for total_upscale in [0.0, -3.0, 1e9, 1e300, f64::NAN, f64::INFINITY] {
        let options = SamplerOptions {
            total_upscale,
            ..SamplerOptions::default()
        };
        let result = attempt(SamplerName::LcmUpscale, &mut normal(), &sigmas, &options);
        assert!(result.is_err(), "{total_upscale}");
    }
    let flat = run_with(
        SamplerName::LcmUpscale,
        &mut normal(),
        &eps(),
        &sigmas,
        &SamplerOptions::default(),
        &[20],
        &mut |_| Ok(()),
    );
    assert!(matches!(flat, Err(SampleError::Unfit { .. })));
}

#[test]
fn models_that_break_their_word() {
    struct Wrong;
    impl Denoiser for Wrong {
        fn denoise(&mut self, _: &Tensor, _: f32) -> Result<Tensor, SampleError> {
            Ok(Tensor::zeros([2, 2])?)
        }
    }
    struct Plain;
    impl Denoiser for Plain {
        fn denoise(&mut self, x: &Tensor, _: f32) -> Result<Tensor, SampleError> {
            Ok(x.clone())
        }
    }
    let options = SamplerOptions::default();
    let sigmas = levels(&eps(), 5);
    for name in all() {
        let wrong = attempt(name, &mut Wrong, &sigmas, &options);
        assert!(matches!(wrong, Err(SampleError::Shape { .. })), "{name:?}");
        let plain = attempt(name, &mut Plain, &sigmas, &options);
        assert_eq!(
            matches!(plain, Err(SampleError::NoUncond)),
            name.needs_uncond(),
            "{name:?}"
        );
    }
}

/// Counts calls, and stops when told to.
struct Stopping {
    calls: usize,
    stop_at: usize,
}

impl Denoiser for Stopping {
    fn denoise(&mut self, x: &Tensor, sigma: f32) -> Result<Tensor, SampleError> {
        self.calls += 1;
        if self.calls == self.stop_at {
            return Err(SampleError::Cancelled);
        }
        assert!(self.calls < self.stop_at, "asked again after the end");
        normal().denoise(x, sigma)
    }

    fn uncond(&self) -> Option<&Tensor> {
        None
    }
}

#[test]
fn stopping_at_any_call() {
    let options = SamplerOptions::default();
    let sigmas = levels(&eps(), 6);
    for name in all().filter(|name| !name.needs_uncond()) {
        for stop_at in 1.. {
            let mut model = Stopping { calls: 0, stop_at };
            let result = run_with(
                name,
                &mut model,
                &eps(),
                &sigmas,
                &options,
                &SHAPE,
                &mut |_| Ok(()),
            );
            match result {
                Err(SampleError::Cancelled) => assert_eq!(model.calls, stop_at),
                Ok(_) => {
                    assert!(stop_at > 5, "{name:?} makes {stop_at} calls");
                    break;
                }
                Err(error) => panic!("{name:?}: {error}"),
            }
        }
    }
}

#[test]
fn stopping_at_any_step() {
    let options = SamplerOptions::default();
    let sigmas = levels(&eps(), 6);
    for name in all() {
        for stop_at in 0.. {
            let (steps, calls, calls_at_stop) = (Cell::new(0), Cell::new(0usize), Cell::new(0));
            let mut model = Toy::new(
                |x, s| {
                    calls.set(calls.get() + 1);
                    x / (1.0 + s * s)
                },
                |x, s| x / (1.0 + s * s),
            );
            let result = run_with(
                name,
                &mut model,
                &eps(),
                &sigmas,
                &options,
                &SHAPE,
                &mut |step| {
                    assert_eq!(step.index, steps.get());
                    steps.set(steps.get() + 1);
                    if step.index == stop_at {
                        calls_at_stop.set(calls.get());
                        return Err(SampleError::Cancelled);
                    }
                    Ok(())
                },
            );
            match result {
                Err(SampleError::Cancelled) => {
                    assert_eq!(steps.get(), stop_at + 1);
                    assert_eq!(calls.get(), calls_at_stop.get(), "{name:?} went on");
                }
                Ok(_) => {
                    assert!(stop_at > 2, "{name:?} told of {stop_at} steps");
                    break;
                }
                Err(error) => panic!("{name:?}: {error}"),
            }
        }
    }
}
