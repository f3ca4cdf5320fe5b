//! The UNet.

use fresco_models::unet::{Heads, UNet, UNetConfig, UNetHooks};
use fresco_tensor::Tensor;

use crate::gold::{Gold, assert_near, assert_summary, config, exactly, json, store, wave, waves};

fn run(net: &UNet, gold: &Gold, x: &str, t: &[f32]) -> Tensor {
    let context = gold.tensor("context").narrow(0, 0, t.len()).unwrap();
    let y = net.config().adm.map(|_| gold.tensor("y"));
    net.forward(
        &gold.tensor(x),
        t,
        Some(&context),
        y.as_ref(),
        None,
        &UNetHooks::default(),
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
    let net = UNet::new(&store, found).unwrap();
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
        let hooks = UNetHooks::default();
        let out = exactly(|| {
            let net = UNet::new(&store(waves(config.weights())), config).unwrap();
            let x = wave(&x, 0.11);
            net.forward(&x, &t, Some(&context), y.as_ref(), None, &hooks)
        });
        assert_summary(&out.unwrap(), &about[name]["out"], name);
    }
}
