//! Guidance by what a network predicts when some of its blocks do nothing.

use fresco_tensor::{Axes, Tensor};

use super::guidance::{Again, GuidanceStep, PostCfg, Result, Which};
use super::hooks::{BlockKind, Hooks};

/// Blocks that are left out between two noise levels.
#[derive(Clone, Debug, PartialEq)]
pub struct SkippedBlocks {
    pub blocks: Vec<(BlockKind, usize)>,
    /// The levels at which it starts and ends.
    pub start_sigma: f64,
    pub end_sigma: f64,
}

impl SkippedBlocks {
    pub fn is_active(&self, sigma: f32) -> bool {
        let sigma = f64::from(sigma);
        sigma >= self.end_sigma && sigma <= self.start_sigma
    }

    /// The hooks of a run with the blocks left out as well.
    pub fn installed(&self, hooks: &Hooks) -> Hooks {
        let mut hooks = hooks.clone();
        hooks.skipped.extend_from_slice(&self.blocks);
        hooks
    }
}

/// Away from what the network predicts for the prompt without some of its blocks.
#[derive(Clone, Debug)]
pub struct SkipLayers {
    pub skipped: SkippedBlocks,
    pub scale: f64,
    /// How much of the spread that the prompted prediction had is restored.
    pub rescale: f64,
}

impl PostCfg for SkipLayers {
    fn apply(&self, _step: &GuidanceStep, denoised: &Tensor) -> Result<Tensor> {
        Ok(denoised.clone())
    }

    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        model: &dyn Again,
    ) -> Result<Tensor> {
        if self.scale <= 0.0 || !self.skipped.is_active(step.sigma) {
            return Ok(denoised.clone());
        }
        let hooks = self.skipped.installed(model.hooks());
        let without = model.predict(Which::Cond, step.x, step.sigma, &hooks)?;
        let away = step.cond.sub(&without)?.mul_scalar(self.scale as f32);
        let guided = denoised.add(&away)?;
        if self.rescale == 0.0 {
            return Ok(guided);
        }
        let all: Vec<usize> = (0..guided.rank()).collect();
        let spread = |of: &Tensor| of.std(&all, Axes::Drop).and_then(|std| std.item());
        let ratio = f64::from(spread(step.cond)?) / f64::from(spread(&guided)?);
        let factor = self.rescale * ratio + (1.0 - self.rescale);
        Ok(guided.mul_scalar(factor as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Model(Hooks);

    impl Again for Model {
        fn hooks(&self) -> &Hooks {
            &self.0
        }

        fn predict(
            &self,
            which: Which<'_>,
            x: &Tensor,
            _sigma: f32,
            hooks: &Hooks,
        ) -> Result<Tensor> {
            assert!(matches!(which, Which::Cond));
            assert!(hooks.skips(BlockKind::DOUBLE, 7) && !hooks.skips(BlockKind::SINGLE, 7));
            Ok(x.mul_scalar(0.5))
        }
    }

    #[test]
    fn guides_away_from_the_network_without_its_blocks() {
        let x = Tensor::from_fn([1, 4], |i| i as f32).unwrap();
        let cond = x.mul_scalar(2.0);
        let step = GuidanceStep {
            x: &x,
            sigma: 0.9,
            cfg: 4.0,
            cond: &cond,
            uncond: &x,
        };
        let mut skip = SkipLayers {
            skipped: SkippedBlocks {
                blocks: vec![(BlockKind::DOUBLE, 7)],
                start_sigma: 0.95,
                end_sigma: 0.8,
            },
            scale: 2.0,
            rescale: 0.0,
        };
        let model = Model(Hooks::default());
        let run = |skip: &SkipLayers, step| skip.with_model(step, &x, &model).unwrap();
        // x + (2x - x/2) * 2
        assert_eq!(run(&skip, &step).data(), x.mul_scalar(4.0).data());
        skip.rescale = 1.0;
        for (found, wanted) in run(&skip, &step).data().iter().zip(cond.data()) {
            assert!((found - wanted).abs() < 1e-5);
        }
        let late = GuidanceStep { sigma: 0.5, ..step };
        assert_eq!(run(&skip, &late).data(), x.data());
        skip.scale = 0.0;
        assert_eq!(run(&skip, &step).data(), x.data());
    }
}
