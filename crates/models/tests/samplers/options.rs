//! Options: what must agree with another sampler or with the known path, and that each one has an effect.

use fresco_models::samplers::{
    NoiseInterval, NoiseScaler, SamplerName, SamplerOptions, SdeSolver, SeedsSolver,
};
use fresco_tensor::{ResizeMethod, Tensor};

use crate::golden::relative_error;
use crate::support::{SHAPE, bent, eps, flow, levels, normal, run};

fn with(set: impl FnOnce(&mut SamplerOptions)) -> SamplerOptions {
    let mut options = SamplerOptions::default();
    set(&mut options);
    options
}

fn sample(name: SamplerName, options: &SamplerOptions) -> Tensor {
    run(name, &mut bent(), &eps(), &levels(&eps(), 8), options)
}

#[track_caller]
fn same(a: (SamplerName, &SamplerOptions), b: (SamplerName, &SamplerOptions), within: f64) {
    let error = relative_error(sample(a.0, a.1).data(), sample(b.0, b.1).data());
    assert!(error <= within, "{:?} and {:?}: {error:e}", a.0, b.0);
}

#[test]
fn samplers_that_are_others_with_options() {
    let none = &SamplerOptions::default();
    let eta_0 = &with(|o| o.eta = Some(0.0));
    let euler = (SamplerName::Euler, none);
    same((SamplerName::EulerAncestral, eta_0), euler, 1e-6);
    same(
        (SamplerName::ResMultistepAncestral, eta_0),
        (SamplerName::ResMultistep, none),
        0.0,
    );
    same(
        (SamplerName::Dpm2Ancestral, eta_0),
        (SamplerName::Dpm2, none),
        1e-6,
    );
    same(
        (SamplerName::EulerAncestralCfgPp, eta_0),
        (SamplerName::EulerCfgPp, none),
        0.0,
    );
    same(
        (SamplerName::Dpmpp2mSde, eta_0),
        (SamplerName::Dpmpp2m, none),
        1e-5,
    );
    // Order one is Euler's method, except that euler goes the last step, too.
    same(
        (SamplerName::Lms, &with(|o| o.order = Some(1))),
        euler,
        1e-6,
    );
    same(
        (
            SamplerName::Dpmpp2mSde,
            &with(|o| o.sde_solver = SdeSolver::Heun),
        ),
        (SamplerName::Dpmpp2mSdeHeun, none),
        0.0,
    );
    let heun = with(|o| {
        o.seeds_solver = SeedsSolver::Phi2;
        o.r = 1.0;
    });
    same(
        (SamplerName::Seeds2, &heun),
        (SamplerName::ExpHeun2X0Sde, none),
        0.0,
    );
    same(
        (SamplerName::SaSolver, &with(|o| o.use_pece = true)),
        (SamplerName::SaSolverPece, none),
        0.0,
    );
    let interval = NoiseInterval {
        eta: 1.0,
        start_sigma: eps().percent_to_sigma(0.2),
        end_sigma: eps().percent_to_sigma(0.8),
    };
    same(
        (
            SamplerName::SaSolver,
            &with(|o| o.noise_interval = Some(interval)),
        ),
        (SamplerName::SaSolver, none),
        0.0,
    );
    // Without guidance both forms of CFG++ are plain.
    same(
        (SamplerName::GradientEstimation, &with(|o| o.ge_gamma = 1.0)),
        euler,
        1e-6,
    );
    let stage_1 = with(|o| {
        o.max_stage = 1;
        o.noise_scaler = NoiseScaler::Power { eta: 0.0 };
        o.s_noise = Some(0.0);
    });
    same((SamplerName::ErSde, &stage_1), euler, 1e-5);
}

/// Without noise, every sampler goes the same way when the steps are short: the model's paths are known. (Not so
/// `dpmpp_2s_ancestral_cfg_pp`, which compares predictions of two levels.)
#[test]
fn all_converge_to_the_known_path() {
    let sampling = eps();
    let sigmas = levels(&sampling, 250);
    let last = sigmas[sigmas.len() - 2];
    let sigmas = &sigmas[..sigmas.len() - 1];
    let quiet = |set: fn(&mut SamplerOptions)| {
        with(|o| {
            o.eta = Some(0.0);
            o.s_noise = Some(0.0);
            set(o);
        })
    };
    let no_noise = NoiseInterval {
        eta: 0.0,
        start_sigma: 0.0,
        end_sigma: 0.0,
    };
    let plain = quiet(|_| ());
    let ode = SamplerOptions {
        noise_scaler: NoiseScaler::Power { eta: 0.0 },
        noise_interval: Some(no_noise),
        ..plain.clone()
    };
    let runs = [
        (SamplerName::Euler, plain.clone(), 1e-2),
        (SamplerName::EulerCfgPp, plain.clone(), 1e-2),
        (SamplerName::EulerAncestral, plain.clone(), 1e-2),
        (SamplerName::Heun, plain.clone(), 3e-4),
        (SamplerName::Heunpp2, plain.clone(), 1e-2),
        (SamplerName::ExpHeun2X0, plain.clone(), 3e-4),
        (SamplerName::Dpm2, plain.clone(), 3e-4),
        (SamplerName::Dpm2Ancestral, plain.clone(), 3e-4),
        (SamplerName::Lms, quiet(|o| o.order = Some(2)), 1e-3),
        (SamplerName::Lms, plain.clone(), 1e-3),
        (SamplerName::DpmFast, plain.clone(), 1e-3),
        (SamplerName::DpmAdaptive, plain.clone(), 6e-2),
        (SamplerName::DpmAdaptive, quiet(|o| o.order = Some(2)), 6e-2),
        (
            SamplerName::DpmAdaptive,
            quiet(|o| (o.rtol, o.atol) = (5e-4, 5e-4)),
            2e-3,
        ),
        (SamplerName::DpmAdaptive, quiet(|o| o.pcoeff = 0.2), 6e-2),
        (SamplerName::DpmAdaptive, quiet(|o| o.dcoeff = 0.1), 6e-2),
        (SamplerName::Dpmpp2sAncestral, plain.clone(), 3e-4),
        (SamplerName::DpmppSde, plain.clone(), 3e-4),
        (SamplerName::DpmppSde, quiet(|o| o.r = 0.8), 3e-4),
        (SamplerName::Dpmpp2m, plain.clone(), 1e-3),
        (SamplerName::Dpmpp2mSde, plain.clone(), 1e-3),
        (SamplerName::Dpmpp2mSdeHeun, plain.clone(), 1e-3),
        (SamplerName::Dpmpp3mSde, plain.clone(), 1e-3),
        (SamplerName::Ipndm, plain.clone(), 1e-3),
        (SamplerName::IpndmV, plain.clone(), 1e-3),
        (SamplerName::Deis, plain.clone(), 1e-2),
        (SamplerName::ResMultistep, plain.clone(), 1e-3),
        (SamplerName::GradientEstimation, plain.clone(), 1e-2),
        (SamplerName::ErSde, ode.clone(), 1e-3),
        (
            SamplerName::ErSde,
            SamplerOptions {
                max_stage: 2,
                ..ode.clone()
            },
            1e-3,
        ),
        (SamplerName::Seeds2, plain.clone(), 3e-4),
        (
            SamplerName::Seeds2,
            quiet(|o| o.seeds_solver = SeedsSolver::Phi2),
            3e-4,
        ),
        (SamplerName::Seeds2, quiet(|o| o.r = 0.3), 3e-4),
        (SamplerName::Seeds3, plain.clone(), 3e-4),
        (SamplerName::SaSolver, ode.clone(), 1e-3),
        (
            SamplerName::SaSolver,
            SamplerOptions {
                use_pece: true,
                ..ode.clone()
            },
            1e-3,
        ),
        (
            SamplerName::SaSolver,
            SamplerOptions {
                predictor_order: 2,
                corrector_order: 2,
                simple_order_2: true,
                ..ode.clone()
            },
            1e-3,
        ),
        (
            SamplerName::SaSolver,
            SamplerOptions {
                predictor_order: 1,
                corrector_order: 0,
                ..ode.clone()
            },
            1e-2,
        ),
        (SamplerName::UniPc, plain.clone(), 1e-3),
        (SamplerName::UniPcBh2, plain, 1e-3),
    ];
    let start = run(
        SamplerName::Euler,
        &mut normal(),
        &sampling,
        &sigmas[..1],
        &ode,
    );
    let first = sigmas[0];
    let way = ((1.0 + last * last) / (1.0 + first * first)).sqrt();
    let wanted = start.mul_scalar(way);
    let mut failures = Vec::new();
    for (name, options, within) in runs {
        let out = run(name, &mut normal(), &sampling, sigmas, &options);
        let error = relative_error(out.data(), wanted.data());
        if error.is_nan() || error > within {
            failures.push(format!("{name:?} {options:?}: {error:e}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_option_has_an_effect() {
    let changes: [(SamplerName, SamplerOptions); 24] = [
        (SamplerName::Euler, with(|o| o.s_churn = 5.0)),
        (SamplerName::Heun, with(|o| o.s_churn = 5.0)),
        (SamplerName::Heunpp2, with(|o| o.s_churn = 5.0)),
        (SamplerName::Dpm2, with(|o| o.s_churn = 5.0)),
        (SamplerName::EulerAncestral, with(|o| o.eta = Some(0.5))),
        (SamplerName::EulerAncestral, with(|o| o.s_noise = Some(0.5))),
        (
            SamplerName::EulerAncestralCfgPp,
            with(|o| o.eta = Some(0.5)),
        ),
        (SamplerName::Lms, with(|o| o.order = Some(2))),
        (SamplerName::Dpmpp3mSde, with(|o| o.eta = Some(0.5))),
        (SamplerName::Dpmpp2mSde, with(|o| o.s_noise = Some(0.5))),
        (SamplerName::DpmppSde, with(|o| o.r = 0.8)),
        (SamplerName::Dpmpp2sAncestral, with(|o| o.eta = Some(0.5))),
        (SamplerName::DpmAdaptive, with(|o| o.order = Some(2))),
        (SamplerName::DpmAdaptive, with(|o| o.rtol = 0.5)),
        (SamplerName::DpmAdaptive, with(|o| o.eta = Some(0.5))),
        (SamplerName::DpmAdaptive, with(|o| o.h_init = 0.2)),
        (SamplerName::ErSde, with(|o| o.max_stage = 1)),
        (
            SamplerName::ErSde,
            with(|o| o.noise_scaler = NoiseScaler::Power { eta: 1.0 }),
        ),
        (
            SamplerName::Seeds2,
            with(|o| o.seeds_solver = SeedsSolver::Phi2),
        ),
        (SamplerName::Seeds2, with(|o| o.r = 0.8)),
        (SamplerName::SaSolver, with(|o| o.predictor_order = 2)),
        (SamplerName::SaSolver, with(|o| o.corrector_order = 0)),
        (
            SamplerName::SaSolver,
            with(|o| {
                o.predictor_order = 2;
                o.corrector_order = 2;
                o.simple_order_2 = true;
            }),
        ),
        (SamplerName::SaSolver, with(|o| o.s_noise = Some(0.1))),
    ];
    for (name, options) in &changes {
        let changed = sample(*name, options);
        let plain = sample(*name, &SamplerOptions::default());
        assert!(changed.data().iter().all(|v| v.is_finite()), "{name:?}");
        let gap = relative_error(changed.data(), plain.data());
        assert!(gap > 1e-6, "{name:?} {options:?}");
    }
}

#[test]
fn latents_that_grow() {
    for (ratio, steps, method, wanted) in [
        (2.0, None, ResizeMethod::Bislerp, [1, 4, 16, 16]),
        (1.5, Some(1), ResizeMethod::NearestExact, [1, 4, 12, 12]),
        (0.5, Some(3), ResizeMethod::Area, [1, 4, 4, 4]),
        (3.0, Some(0), ResizeMethod::Bicubic, SHAPE),
        // More steps of growth than there are steps: the last ones are not reached.
        (2.0, Some(1000), ResizeMethod::Bilinear, [1, 4, 15, 15]),
    ] {
        let options = with(|o| {
            o.total_upscale = ratio;
            o.upscale_steps = steps;
            o.upscale_method = method;
        });
        let out = run(
            SamplerName::LcmUpscale,
            &mut bent(),
            &eps(),
            &levels(&eps(), 8),
            &options,
        );
        assert_eq!(out.shape(), wanted);
    }
}

#[test]
fn flow_models_take_options_too() {
    let sigmas = levels(&flow(), 8);
    for name in [
        SamplerName::EulerAncestral,
        SamplerName::Dpm2Ancestral,
        SamplerName::Dpmpp2sAncestral,
        SamplerName::Seeds2,
        SamplerName::ErSde,
    ] {
        let of = |options: &SamplerOptions| run(name, &mut bent(), &flow(), &sigmas, options);
        let plain = of(&SamplerOptions::default());
        let calm = of(&with(|o| {
            o.s_noise = Some(0.5);
            o.noise_scaler = NoiseScaler::Power { eta: 0.5 };
        }));
        assert!(relative_error(calm.data(), plain.data()) > 1e-4, "{name:?}");
        assert!(calm.data().iter().all(|v| v.is_finite()));
    }
}
