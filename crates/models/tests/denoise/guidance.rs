//! How the predictions of a step are joined.

use std::sync::Arc;

use fresco_models::denoise::{Cond, Guidance, Guider, Lists, Patches, Setting, prepare};
use fresco_models::guidance::{
    Again, FreSca, GuidanceStep, PostCfg, PreCfg, TangentialDamping, Which,
};
use fresco_models::{ModelError, guidance};
use fresco_tensor::Tensor;

use crate::conds::{Mock, latent, plain_encode, sampling, tokens};

fn lists(entries: &[(&str, f32)]) -> Lists {
    let list = |v: f32| vec![tokens(v, 4)];
    entries
        .iter()
        .map(|(name, v)| (Arc::from(*name), list(*v)))
        .collect()
}

/// What is added to `x / 2`, and the lists each pass ran.
fn run(entries: &[(&str, f32)], guidance: Guidance, patches: &Patches) -> (f32, Vec<Vec<usize>>) {
    let (x, sampling) = (latent(), sampling());
    let setting = Setting {
        sampling: &sampling,
        noise: &x,
        latent: None,
        denoise_mask: None,
    };
    let lists = prepare(lists(entries), &setting, &plain_encode).unwrap();
    let mock = Mock::default();
    let mut guider = Guider::new(&mock, &lists, guidance, patches, setting, &plain_encode);
    let out = guider.denoise(&x, 7.0).unwrap();
    let added = out.data()[0] - 0.5 * x.data()[0];
    for (o, x) in out.data().iter().zip(x.data()) {
        assert!((o - 0.5 * x - added).abs() < 2e-4, "{o} {x} {added}");
    }
    let calls = mock.calls.borrow();
    (
        added,
        calls.iter().map(|(_, which)| which.clone()).collect(),
    )
}

#[track_caller]
fn close(a: f32, b: f32) {
    assert!((a - b).abs() < 1e-4, "{a} is not {b}");
}

const PAIR: [(&str, f32); 2] = [("positive", 1.0), ("negative", -1.0)];

#[test]
fn plain_guidance_and_its_shortcut() {
    let plain = Patches::default();
    let (added, calls) = run(&PAIR, Guidance::Cfg { cfg: 7.0 }, &plain);
    close(added, -1.0 + 2.0 * 7.0);
    assert_eq!(calls, [[1, 0]]);
    let (added, calls) = run(&PAIR, Guidance::Cfg { cfg: 1.0 }, &plain);
    close(added, 1.0);
    assert_eq!(calls, [[0]]);
    let keep = Patches {
        keep_uncond: true,
        ..Patches::default()
    };
    assert_eq!(run(&PAIR, Guidance::Cfg { cfg: 1.0 }, &keep).1, [[1, 0]]);
    // Only a positive prompt, as the basic guider has it.
    let (added, calls) = run(&PAIR[..1], Guidance::Cfg { cfg: 1.0 }, &plain);
    close(added, 1.0);
    assert_eq!(calls, [[0]]);
}

#[test]
fn two_guidances() {
    let three = [("positive", 3.0), ("middle", 1.0), ("negative", -1.0)];
    let dual = |cfg_conds, cfg_negative, nested| Guidance::Dual {
        cfg_conds,
        cfg_negative,
        nested,
    };
    let plain = Patches::default();
    let (added, calls) = run(&three, dual(2.0, 5.0, false), &plain);
    close(added, -1.0 + 5.0 * 2.0 + 2.0 * 2.0);
    assert_eq!(calls, [[2, 1, 0]]);
    let (added, _) = run(&three, dual(2.0, 5.0, true), &plain);
    let text = 1.0 + 2.0 * 2.0;
    close(added, -1.0 + 5.0 * (text + 1.0));
    assert_eq!(run(&three, dual(2.0, 1.0, false), &plain).1, [[2, 1]]);
    let (added, calls) = run(&three, dual(1.0, 1.0, false), &plain);
    assert_eq!(calls, [[2]]);
    close(added, 3.0);
    assert_eq!(run(&three, dual(1.0, 1.0, true), &plain).1, [[2, 1, 0]]);
}

#[test]
fn perpendicular_negatives() {
    let three = [
        ("positive", 3.0),
        ("empty_negative_prompt", 1.0),
        ("negative", -1.0),
    ];
    let perp = |cfg, neg_scale| Guidance::PerpNeg { cfg, neg_scale };
    let plain = Patches::default();
    // In the mock both directions are parallel, so nothing of the negative is left.
    let (added, calls) = run(&three, perp(4.0, 1.0), &plain);
    close(added, 1.0 + 4.0 * 2.0);
    assert_eq!(calls, [[2, 1, 0]]);
    assert_eq!(run(&three, perp(4.0, 0.0), &plain).1, [[2, 0]]);
    let (added, calls) = run(&three, perp(1.0, 0.0), &plain);
    close(added, 3.0);
    assert_eq!(calls, [[0]]);
}

/// Runs the model again with each prompt and another one, and sums up.
struct Rerun;

impl PostCfg for Rerun {
    fn apply(&self, _: &GuidanceStep, _: &Tensor) -> guidance::Result<Tensor> {
        Err("the model is needed".into())
    }

    fn with_model(
        &self,
        step: &GuidanceStep,
        denoised: &Tensor,
        model: &dyn Again,
    ) -> guidance::Result<Tensor> {
        let base = step.x.mul_scalar(0.5);
        let mut out = denoised.clone();
        let other = [tokens(100.0, 4)];
        for which in [Which::Cond, Which::Uncond, Which::Other(&other)] {
            let again = model.predict(which, step.x, step.sigma, model.hooks())?;
            out = out.add(&again.sub(&base)?)?;
        }
        Ok(out)
    }
}

#[test]
fn guidance_may_run_the_model_again() {
    let patches = Patches {
        post_cfg: vec![Arc::new(Rerun)],
        ..Patches::default()
    };
    let (added, calls) = run(&PAIR, Guidance::Cfg { cfg: 2.0 }, &patches);
    close(added, 3.0 + 1.0 - 1.0 + 100.0);
    assert_eq!(calls, [vec![1, 0], vec![0], vec![0], vec![0]]);
}

#[test]
fn what_needs_both_predictions_waits_for_both() {
    let pre: [Arc<dyn PreCfg>; 2] = [
        Arc::new(TangentialDamping),
        Arc::new(FreSca {
            scale_low: 3.0,
            scale_high: 3.0,
            cutoff: 1,
        }),
    ];
    for pre in pre {
        let patches = Patches {
            pre_cfg: vec![pre],
            ..Patches::default()
        };
        close(run(&PAIR, Guidance::Cfg { cfg: 1.0 }, &patches).0, 1.0);
    }
}

#[test]
fn errors_of_the_network_keep_their_kind() {
    struct Stops;
    impl PostCfg for Stops {
        fn apply(&self, _: &GuidanceStep, _: &Tensor) -> guidance::Result<Tensor> {
            Err(ModelError::Cancelled.into())
        }
    }
    let (x, sampling) = (latent(), sampling());
    let setting = Setting {
        sampling: &sampling,
        noise: &x,
        latent: None,
        denoise_mask: None,
    };
    let lists: Lists = vec![("positive".into(), Vec::<Cond>::new())];
    let patches = Patches {
        post_cfg: vec![Arc::new(Stops)],
        ..Patches::default()
    };
    let mock = Mock::default();
    let cfg = Guidance::Cfg { cfg: 1.0 };
    let mut guider = Guider::new(&mock, &lists, cfg, &patches, setting, &plain_encode);
    let error = guider.denoise(&x, 1.0).unwrap_err();
    assert!(matches!(error, ModelError::Cancelled));
}
