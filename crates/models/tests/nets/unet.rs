//! The UNet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fresco_models::ModelError;
use fresco_models::denoise::hooks::{
    AttnInput, AttnOutput, AttnReplace, BlockFlow, BlockHook, BlockInfo, BlockKey, BlockKind,
    Embedding, Hooks, Moment,
};
use fresco_models::sd::unet::blocks::{Downscale, FreeU};
use fresco_models::sd::unet::{Heads, UNet, UNetConfig};
use fresco_tensor::nn::{Mask, attention};
use fresco_tensor::{ResizeMethod, Stored, Tensor};

use crate::gold::{
    Gold, assert_near, assert_summary, config, distance, json, store, switches, wave, waves,
};

fn run(net: &UNet, gold: &Gold, x: &str, t: &[f32]) -> Tensor {
    let context = gold.tensor("context").narrow(0, 0, t.len()).unwrap();
    let y = net.config().adm.map(|_| gold.tensor("y"));
    net.forward(
        &gold.tensor(x),
        t,
        Some(&context),
        y.as_ref(),
        None,
        &Hooks::default(),
    )
    .unwrap()
}

fn small(name: &str) -> (Gold, UNet) {
    let gold = Gold::open(name);
    let store = gold.store();
    let made = config(&gold.about["config"]);
    let found = UNetConfig {
        heads: made.heads,
        ..UNetConfig::detect(&store).unwrap()
    };
    assert_eq!(found, made);
    let net = UNet::new(&store, &found).unwrap();
    (gold, net)
}

#[test]
fn sd1() {
    let (gold, net) = small("unet_sd1_small");
    let t = gold.tensor("t");
    assert_near(
        &run(&net, &gold, "x", t.data()),
        &gold.tensor("out"),
        "even",
    );
    // Again, with the keys of the prompt that the first pass left.
    assert_near(
        &run(&net, &gold, "x", t.data()),
        &gold.tensor("out"),
        "again",
    );
    assert_near(
        &run(&net, &gold, "x_odd", &[37.0]),
        &gold.tensor("out_odd"),
        "odd",
    );
}

#[test]
fn sdxl() {
    let (gold, net) = small("unet_sdxl_small");
    let t = gold.tensor("t");
    assert_eq!(
        UNetConfig::detect(&gold.store()).unwrap().heads,
        Heads::Width(64)
    );
    assert_near(
        &run(&net, &gold, "x", t.data()),
        &gold.tensor("out"),
        "sdxl",
    );
}

#[test]
fn waves_through_three_networks() {
    let about = json("nets");
    for (name, x, t, y) in [
        ("unet_conv_proj", [2, 4, 8, 8], vec![10.0, 500.0], None),
        ("unet_odd_size", [1, 4, 7, 9], vec![10.0], None),
        (
            "unet_linear_adm",
            [2, 4, 8, 8],
            vec![10.0, 500.0],
            Some(wave(&[2, 20], 0.3)),
        ),
    ] {
        let config = config(&about[name]["config"]);
        let context = wave(&[x[0], 7, 48], 0.07);
        let hooks = Hooks::default();
        let out = {
            let net = UNet::new(&store(waves(config.weights().unwrap())), &config).unwrap();
            let x = wave(&x, 0.11);
            net.forward(&x, &t, Some(&context), y.as_ref(), None, &hooks)
        };
        assert_summary(&out.unwrap(), &about[name]["out"], name);
    }
}

fn sd1_inputs() -> (Gold, UNet, Tensor, Tensor) {
    let (gold, net) = small("unet_sd1_small");
    let (x, context) = (gold.tensor("x"), gold.tensor("context"));
    (gold, net, x, context)
}

#[test]
fn results_do_not_depend_on_threads() {
    let _only = switches();
    let (gold, _, x, context) = sd1_inputs();
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap().install(|| {
            let net = UNet::new(&gold.store(), &config(&gold.about["config"])).unwrap();
            let t = [1.0, 601.0];
            let out = net.forward(&x, &t, Some(&context), None, None, &Hooks::default());
            out.unwrap()
        })
    };
    let one = run(1);
    for threads in [2, 3, 7] {
        assert_eq!(run(threads), one, "{threads} threads");
    }
}

/// A prompt and its negative see one latent: what is computed once for both must be what each gets alone, and hooks must see all items.
#[test]
fn items_of_one_latent_get_what_each_gets_alone() {
    struct Seen(Mutex<Vec<usize>>);
    impl BlockHook for Seen {
        fn apply(&self, flow: BlockFlow, _at: &BlockInfo<'_>) -> Result<BlockFlow, ModelError> {
            self.0.lock().unwrap().push(flow.h.shape()[0]);
            Ok(flow)
        }
    }
    let (_, net, x, context) = sd1_inputs();
    let item = |t: &Tensor, at: usize| t.narrow(0, at, 1).unwrap();
    let join = |list: &[Tensor]| Tensor::cat(&list.iter().collect::<Vec<_>>(), 0).unwrap();
    let (a, b) = (item(&x, 0), item(&x, 1));
    let (p, q) = (item(&context, 0), item(&context, 1));
    for (latents, prompts) in [
        (vec![&a, &a], vec![&p, &q]),
        (vec![&a, &b, &a, &b], vec![&p, &p, &q, &q]),
        (vec![&a, &a, &a], vec![&p, &q, &p]),
        (vec![&a, &b, &b, &a], vec![&p, &q, &p, &q]),
        (vec![&a, &a, &b], vec![&p, &q, &q]),
    ] {
        let all = |list: &[&Tensor]| join(&list.iter().map(|t| (*t).clone()).collect::<Vec<_>>());
        let t = vec![601.0; latents.len()];
        let run = |x: &Tensor, t: &[f32], context: &Tensor, hooks: &Hooks| {
            let out = net.forward(x, t, Some(context), None, None, hooks);
            out.unwrap()
        };
        let plain = Hooks::default();
        let together = run(&all(&latents), &t, &all(&prompts), &plain);
        for (at, (latent, prompt)) in latents.iter().zip(&prompts).enumerate() {
            let alone = run(latent, &t[..1], prompt, &plain);
            assert_near(&item(&together, at), &alone, "alone");
        }
        let seen = Arc::new(Seen(Mutex::default()));
        let mut hooks = Hooks::default();
        hooks.on_block(BlockKind::INPUT, Moment::After, Arc::clone(&seen) as _);
        assert_near(
            &run(&all(&latents), &t, &all(&prompts), &hooks),
            &together,
            "hooks",
        );
        let seen = seen.0.lock().unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|items| *items == latents.len()));
    }
}

#[test]
fn bad_input_is_an_error() {
    let (_, net, x, context) = sd1_inputs();
    let hooks = Hooks::default();
    let run = |x: &Tensor, t: &[f32], context: Option<&Tensor>| {
        let out = net.forward(x, t, context, None, None, &hooks);
        out.map_err(|e| e.to_string())
    };
    let zeros = |shape: &[usize]| Tensor::zeros(shape).unwrap();
    let t = [1.0, 2.0];
    for shape in [
        &[0, 4, 8, 8][..],
        &[2, 4, 0, 8],
        &[2, 4, 8, 0],
        &[2, 3, 8, 8],
        &[2, 4, 8],
    ] {
        assert!(run(&zeros(shape), &t, Some(&context)).is_err(), "{shape:?}");
    }
    assert!(run(&x, &[1.0], Some(&context)).is_err());
    assert!(run(&x, &t, None).unwrap_err().contains("needs a prompt"));
    let wide = run(&x, &t, Some(&zeros(&[2, 77, 96]))).unwrap_err();
    assert!(
        wide.contains("96 values wide, the network wants 64"),
        "{wide}"
    );
    for shape in [&[1, 77, 64][..], &[2, 0, 64], &[2, 64]] {
        assert!(run(&x, &t, Some(&zeros(shape))).is_err(), "{shape:?}");
    }
    // One cell is a picture.
    let cell = run(&zeros(&[2, 4, 1, 1]), &t, Some(&context)).unwrap();
    assert_eq!(cell.shape(), [2, 4, 1, 1]);
    assert!(cell.data().iter().all(|v| v.is_finite()));
    // What is not a number goes through and comes out.
    let nan = Tensor::full([2, 4, 3, 5], f32::NAN).unwrap();
    let out = run(&nan, &t, Some(&context)).unwrap();
    assert!(out.data().iter().all(|v| v.is_nan()));
    let after = run(&x, &t, Some(&context)).unwrap();
    assert!(after.data().iter().all(|v| v.is_finite()));
}

#[test]
fn bad_weights_are_errors() {
    let gold = Gold::open("unet_sd1_small");
    let build = |weights| {
        let store = store(weights);
        let made = UNetConfig::detect(&store).and_then(|config| UNet::new(&store, &config));
        made.map(|_| ()).map_err(|e| e.to_string())
    };
    assert!(build(gold.weights()).is_ok());
    // A wrong shape of any one weight is found, whichever it is.
    for key in gold.weights().keys() {
        let mut weights = gold.weights();
        let shape = weights[key].shape().to_vec();
        let mut wrong = shape.clone();
        wrong[0] += 32;
        let zeros = Stored::from(&Tensor::zeros(wrong).unwrap());
        weights.insert(key.clone(), zeros);
        assert!(build(weights).is_err(), "{key} of another shape");
    }
    let mut weights = gold.weights();
    let key = "output_blocks.3.0.out_layers.3.weight";
    let zeros = Stored::from(&Tensor::zeros([64, 64, 1, 1]).unwrap());
    weights.insert(key.to_owned(), zeros);
    let said = build(weights).unwrap_err();
    assert!(
        said.contains(key) && said.contains("[64, 64, 1, 1]"),
        "{said}"
    );
    // Too many heads for the channels.
    let config = UNetConfig {
        heads: Heads::Count(5),
        ..UNetConfig::detect(&gold.store()).unwrap()
    };
    assert!(UNet::new(&gold.store(), &config).is_err());
}

#[test]
fn a_pass_can_be_stopped() {
    let (_, net, x, context) = sd1_inputs();
    let left = Arc::new(AtomicUsize::new(5));
    let count = Arc::clone(&left);
    let hooks = Hooks {
        check: Some(Arc::new(move || {
            let spent = |n: usize| n.checked_sub(1);
            match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent) {
                Ok(_) => Ok(()),
                Err(_) => Err(ModelError::Cancelled),
            }
        })),
        ..Hooks::default()
    };
    let stopped = net.forward(&x, &[1.0, 2.0], Some(&context), None, None, &hooks);
    assert!(matches!(stopped, Err(ModelError::Cancelled)));
    assert_eq!(left.load(Ordering::Relaxed), 0);
}

/// Notes where it is called, and changes nothing.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Seen {
    fn note(&self, what: &str, at: &BlockInfo<'_>, shape: &[usize]) {
        let note = format!(
            "{what} {} {} {} {:?} {:?} {:?}",
            at.kind.name(),
            at.number,
            at.index,
            at.size,
            at.original,
            shape
        );
        self.0.lock().unwrap().push(note);
    }
}

impl AttnInput for Seen {
    fn apply(
        &self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor, Tensor), ModelError> {
        self.note("in", at, k.shape());
        Ok((q, k, v))
    }
}

impl AttnOutput for Seen {
    fn apply(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor, ModelError> {
        self.note("out", at, x.shape());
        Ok(x)
    }
}

impl BlockHook for Seen {
    fn apply(&self, flow: BlockFlow, at: &BlockInfo<'_>) -> Result<BlockFlow, ModelError> {
        match &flow.beside {
            Some(skip) => self.note("skip", at, skip.shape()),
            None => self.note("block", at, flow.h.shape()),
        }
        Ok(flow)
    }
}

struct Plain;

impl AttnReplace for Plain {
    fn apply(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<Tensor, ModelError> {
        Ok(attention(q, k, v, at.heads, Mask::None, None)?)
    }
}

struct Doubled;

impl Embedding for Doubled {
    fn apply(&self, emb: Tensor, model_channels: usize) -> Result<Tensor, ModelError> {
        assert_eq!(emb.shape()[1], 4 * model_channels);
        Ok(emb.mul_scalar(2.0))
    }
}

#[test]
fn hooks_that_change_nothing_change_nothing() {
    let (gold, net, x, context) = sd1_inputs();
    let seen = Arc::new(Seen::default());
    let key = |number, index| BlockKey {
        kind: BlockKind::INPUT,
        number,
        index,
    };
    let mut hooks = Hooks::default();
    for (attention, replaced) in [
        (&mut hooks.self_attention, key(1, Some(0))),
        (&mut hooks.prompt_attention, key(3, None)),
    ] {
        attention.input.push(seen.clone());
        attention.output.push(seen.clone());
        attention.replace.push((replaced, Arc::new(Plain)));
    }
    hooks.self_attention.after.push(seen.clone());
    for (kind, moment) in [
        (BlockKind::INPUT, Moment::After),
        (BlockKind::INPUT, Moment::AfterSkip),
        (BlockKind::OUTPUT, Moment::Before),
    ] {
        hooks.on_block(kind, moment, seen.clone());
    }
    let t = gold.tensor("t");
    let out = net.forward(&x, t.data(), Some(&context), None, None, &hooks);
    assert_near(&out.unwrap(), &gold.tensor("out"), "hooked");
    let notes = seen.0.lock().unwrap();
    let count = |start: &str| notes.iter().filter(|n| n.starts_with(start)).count();
    // Seven transformer blocks: two in the encoder, one in the middle, four in the decoder.
    assert_eq!((count("in "), count("out ")), (14, 21));
    assert_eq!((count("block "), count("skip ")), (12, 6));
    assert_eq!(
        notes[0],
        "block input 0 0 [1, 16, 24] [2, 4, 16, 24] [2, 32, 16, 24]"
    );
    let has = |note: &str| assert!(notes.iter().any(|n| n == note), "{note}");
    has("in input 1 0 [1, 16, 24] [2, 4, 16, 24] [2, 384, 32]");
    has("in input 1 0 [1, 16, 24] [2, 4, 16, 24] [2, 77, 64]");
    has("out middle 0 0 [1, 4, 6] [2, 4, 16, 24] [2, 24, 128]");
    has("skip output 0 0 [1, 4, 6] [2, 4, 16, 24] [2, 128, 4, 6]");
    has("skip output 5 0 [1, 16, 24] [2, 4, 16, 24] [2, 32, 16, 24]");
}

#[test]
fn hooks_that_change_something_change_the_result() {
    let (gold, net, x, context) = sd1_inputs();
    let t = gold.tensor("t");
    let run = |hooks: &Hooks| {
        let out = net.forward(&x, t.data(), Some(&context), None, None, hooks);
        out.unwrap()
    };
    let far = |hooks: Hooks| {
        let out = run(&hooks);
        assert!(out.data().iter().all(|v| v.is_finite()));
        assert!(distance(&out, &gold.tensor("out")) > 1e-3);
    };
    far(Hooks {
        embedding: vec![Arc::new(Doubled)],
        ..Hooks::default()
    });
    let mut hooks = Hooks::default();
    FreeU {
        model_channels: 32,
        inner: (1.3, 0.9),
        outer: (1.4, 0.2),
        adaptive: true,
    }
    .install(&mut hooks);
    far(hooks);
    let downscale = |after_skip| Downscale {
        block: 1,
        factor: 2.0,
        start_sigma: 100.0,
        end_sigma: 0.0,
        after_skip,
        down: ResizeMethod::Bicubic,
        up: ResizeMethod::Bicubic,
    };
    let with = |downscale: Downscale| {
        let mut hooks = Hooks::default();
        downscale.install(&mut hooks);
        hooks
    };
    for after_skip in [false, true] {
        far(with(downscale(after_skip)));
    }
    // Outside its noise levels it does nothing.
    let quiet = Downscale {
        start_sigma: -1.0,
        ..downscale(true)
    };
    let out = run(&with(quiet));
    assert_near(&out, &gold.tensor("out"), "quiet");
}
