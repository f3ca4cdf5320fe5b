//! What holds for all inputs.

use fresco_models::samplers::{SamplerName, SamplerOptions};
use fresco_tensor::Tensor;
use proptest::prelude::*;

use crate::support::{all, bent, eps, flow, levels, run_with};

fn sample(name: SamplerName, straight: bool, steps: usize, shape: &[usize]) -> Tensor {
    let sampling = if straight { flow() } else { eps() };
    let sigmas = levels(&sampling, steps);
    let options = SamplerOptions::default();
    run_with(
        name,
        &mut bent(),
        &sampling,
        &sigmas,
        &options,
        shape,
        &mut |_| Ok(()),
    )
    .unwrap()
}

fn samplers() -> impl Strategy<Value = SamplerName> {
    prop::sample::select(all().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_same_again(name in samplers(), straight: bool, steps in 1usize..7) {
        let shape = [2, 4, 6, 5];
        let once = sample(name, straight, steps, &shape);
        let twice = sample(name, straight, steps, &shape);
        let bits = |t: &Tensor| t.data().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&once), bits(&twice));
        prop_assert!(once.data().iter().all(|v| v.is_finite()));
    }

    /// Only `dpm_adaptive` looks at all items at once, and noise is drawn for all of them in one go, the first first.
    #[test]
    fn the_first_item_does_not_know_of_the_others(
        name in samplers(),
        straight: bool,
        steps in 1usize..7,
        batch in 2usize..4,
    ) {
        // A draw from the same generator goes on where the one before ended, and a larger batch draws more.
        let draws_again = !matches!(
            name,
            SamplerName::Euler | SamplerName::EulerCfgPp | SamplerName::Heun | SamplerName::Heunpp2
                | SamplerName::ExpHeun2X0 | SamplerName::Dpm2 | SamplerName::Lms | SamplerName::DpmFast
                | SamplerName::Dpmpp2m | SamplerName::Dpmpp2mCfgPp | SamplerName::Ipndm
                | SamplerName::IpndmV | SamplerName::Deis | SamplerName::ResMultistep
                | SamplerName::ResMultistepCfgPp | SamplerName::GradientEstimation
                | SamplerName::GradientEstimationCfgPp | SamplerName::Ddim | SamplerName::UniPc
                | SamplerName::UniPcBh2 | SamplerName::EulerPp
                // Brownian noise has a generator of its own for every draw.
                | SamplerName::DpmppSde | SamplerName::DpmppSdeGpu | SamplerName::Dpmpp2mSde
                | SamplerName::Dpmpp2mSdeGpu | SamplerName::Dpmpp2mSdeHeun
                | SamplerName::Dpmpp2mSdeHeunGpu | SamplerName::Dpmpp3mSde
                | SamplerName::Dpmpp3mSdeGpu
        );
        prop_assume!(!draws_again);
        let alone = sample(name, straight, steps, &[1, 4, 4, 4]);
        let among = sample(name, straight, steps, &[batch, 4, 4, 4]);
        prop_assert_eq!(alone.data(), &among.data()[..alone.len()]);
    }
}
