//! No input makes a node panic: every class is called with odd values of every declared type, and with values of other
//! types, as links can bring them. What a node answers does not matter here, only that it answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fresco_files::dirs::Dirs;
use fresco_files::naming::Saver;
use fresco_graph::{
    Args, Cx, Declared, Input, Kind, Map, NoListings, NodeClass, Resources, Value, map,
};
use fresco_nodes::types::tensor;
use fresco_tensor::{Tensor, synthetic::fnv1a64};

use crate::{objects_b, objects_c, run};

/// Calls per class. Each input has about ten candidates, so pairs of them meet often enough.
const CALLS: usize = 120;

/// splitmix64: the same calls on every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 33) as usize % sides.max(1)
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.roll(list.len())].clone()
    }
}

fn filled(shape: &[usize], value: f32) -> Value {
    tensor(Tensor::full(shape, value).expect("small shapes fit"))
}

fn ramp(shape: &[usize]) -> Value {
    let t = Tensor::from_fn(shape, |i| (i % 17) as f32 / 16.0);
    tensor(t.expect("small shapes fit"))
}

fn tensors(shapes: &[&[usize]]) -> Vec<Value> {
    let mut all: Vec<Value> = shapes.iter().map(|s| ramp(s)).collect();
    all.push(filled(shapes[0], f32::NAN));
    all.push(filled(shapes[0], f32::INFINITY));
    all.push(filled(shapes[0], -3.0));
    all
}

/// Values of a wire type, from the plain to the absurd.
fn candidates(io: &str) -> Vec<Value> {
    match io.split(',').next().unwrap_or(io) {
        "INT" => [-1, 0, 1, 2, 3, 7, 64, 1 << 40, i64::MAX, i64::MIN]
            .map(Value::from)
            .to_vec(),
        "FLOAT" => [0.0, 0.5, 1.0, -1.0, 2.5, 1e30, f64::NAN, f64::INFINITY]
            .map(Value::from)
            .to_vec(),
        "BOOLEAN" => vec![true.into(), false.into()],
        "STRING" => [
            "",
            "a",
            "é\u{0}\n",
            "((",
            "[1, 2]",
            "0.5, x",
            "../..",
            "%width%",
        ]
        .map(Value::from)
        .to_vec(),
        "IMAGE" => tensors(&[
            &[1, 8, 8, 3],
            &[3, 9, 7, 4],
            &[2, 1, 1, 1],
            &[1, 8, 8, 2],
            &[0, 8, 8, 3],
            &[1, 0, 4, 3],
            &[1, 4, 0, 3],
            &[1, 4, 4, 0],
            &[4, 4],
            &[1, 2, 4, 4, 3],
        ]),
        "MASK" => tensors(&[
            &[1, 8, 8],
            &[3, 5, 9],
            &[6, 4],
            &[0, 4, 4],
            &[1, 0, 4],
            &[2, 1, 4, 4],
            &[5],
        ]),
        "LATENT" => {
            let mut all: Vec<Value> = tensors(&[
                &[1, 4, 8, 8],
                &[3, 16, 5, 7],
                &[1, 16, 3, 4, 4],
                &[0, 4, 4, 4],
                &[1, 4, 0, 4],
                &[1, 4, 6],
                &[4],
            ])
            .into_iter()
            .map(|t| map! {"samples" => t}.into())
            .collect();
            all.push(map! {"samples" => ramp(&[2, 4, 8, 8]), "noise_mask" => ramp(&[1, 8, 8]), "batch_index" => vec![0, 9]}.into());
            all.push(map! {"samples" => ramp(&[2, 4, 8, 8]), "noise_mask" => 3, "batch_index" => vec!["x"]}.into());
            all.push(Map::new().into());
            all
        }
        "CONDITIONING" => {
            let entry = |tokens: Value, options: Map| Value::from(vec![tokens, options.into()]);
            let pooled = map! {"pooled_output" => ramp(&[1, 8])};
            vec![
                vec![entry(ramp(&[1, 7, 8]), pooled.clone())].into(),
                vec![
                    entry(ramp(&[1, 7, 8]), Map::new()),
                    entry(ramp(&[2, 3, 8]), pooled),
                ]
                .into(),
                vec![entry(ramp(&[1, 0, 8]), Map::new())].into(),
                vec![entry(
                    ramp(&[5]),
                    map! {"pooled_output" => "x", "area" => 3},
                )]
                .into(),
                vec![entry(Value::Null, Map::new())].into(),
                Vec::<Value>::new().into(),
                vec![1, 2].into(),
            ]
        }
        "SIGMAS" => tensors(&[&[7], &[1], &[0], &[2, 2]]),
        "AUDIO" => vec![
            map! {"waveform" => ramp(&[1, 2, 100]), "sample_rate" => 100}.into(),
            map! {"waveform" => ramp(&[2, 1, 30]), "sample_rate" => 44100}.into(),
            map! {"waveform" => ramp(&[1, 2, 0]), "sample_rate" => 0}.into(),
            map! {"waveform" => ramp(&[5]), "sample_rate" => -5}.into(),
            Map::new().into(),
        ],
        io if !objects_b::odd(io).is_empty() => objects_b::odd(io),
        other => {
            let mut all = vec![
                Value::Null,
                1.into(),
                0.5.into(),
                "x".into(),
                ramp(&[1, 4, 4, 3]),
                Map::new().into(),
                vec![Value::Null].into(),
            ];
            // Twice, so that they are met more often than not.
            all.extend(objects_c::odd(other));
            all.extend(objects_c::odd(other));
            all
        }
    }
}

fn value_for(input: &Input, dice: &mut Dice) -> Value {
    // One in twelve comes from another type altogether.
    if dice.roll(12) == 0 {
        let other = dice.pick(&[
            "INT",
            "FLOAT",
            "STRING",
            "IMAGE",
            "LATENT",
            "CONDITIONING",
            "?",
        ]);
        return dice.pick(&candidates(other));
    }
    if let Some(entries) = input.entries(&NoListings) {
        return match entries.get(dice.roll(entries.len() + 1)) {
            Some(entry) => entry.clone(),
            None => "no such entry".into(),
        };
    }
    dice.pick(&candidates(input.ty.name().unwrap_or("?")))
}

/// Puts values for an input, and for those it brings along, under their dotted names.
fn supply(input: &Input, name: &str, dice: &mut Dice, all: &mut Map) {
    match &input.kind {
        Kind::Plain => {
            all.insert(name.into(), value_for(input, dice));
        }
        Kind::Match { allowed, .. } => {
            let io = dice.pick(&allowed.split(',').collect::<Vec<_>>());
            all.insert(name.into(), dice.pick(&candidates(io)));
        }
        Kind::DynamicCombo(options) => {
            let option = &options[dice.roll(options.len())];
            all.insert(name.into(), Value::from(&option.key));
            for inner in &option.inputs {
                supply(inner, &format!("{name}.{}", inner.name), dice, all);
            }
        }
        Kind::Autogrow {
            template, names, ..
        } => {
            for slot in names.all().iter().take(dice.roll(4)) {
                supply(template, &format!("{name}.{slot}"), dice, all);
            }
        }
        Kind::DynamicSlot { inputs, .. } => {
            all.insert(name.into(), value_for(input, dice));
            for inner in inputs {
                supply(inner, &format!("{name}.{}", inner.name), dice, all);
            }
        }
    }
}

fn arguments(class: &dyn NodeClass, dice: &mut Dice) -> Args {
    let schema = class.schema();
    let mut supplied = Map::new();
    for input in &schema.inputs {
        // Inputs are left out now and then, required ones too.
        if dice.roll(16) > 0 {
            supply(input, &input.name, dice, &mut supplied);
        }
    }
    let declared = Declared::new(&schema, &supplied);
    let given: Map = if schema.input_is_list {
        let lists = supplied.iter().map(|(name, value)| {
            let list = vec![value.clone(); [1, 1, 2, 0][dice.roll(4)]];
            (name.clone(), Value::from(list))
        });
        lists.collect()
    } else {
        supplied.clone()
    };
    declared.nest(Args(given), false)
}

#[test]
fn odd_inputs_do_not_make_nodes_panic() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let mut resources = Resources::default();
    resources.insert(Dirs::under(base.path()));
    resources.insert(Saver::new());
    let cx = Cx::detached(Arc::new(resources));
    let mut found = Vec::new();
    for class in run::registry().iter() {
        let name = &class.schema().id.clone();
        let mut dice = Dice(fnv1a64(name.as_bytes()));
        // Most of these calls end at a size that is none, so that more of them are needed.
        let takes_vae = class
            .schema()
            .inputs
            .iter()
            .any(|i| i.ty.name() == Some("VAE"));
        for _ in 0..if takes_vae { 4 * CALLS } else { CALLS } {
            let args = arguments(&**class, &mut dice);
            let shown = format!("{:?}", Value::from(args.0.clone()));
            let call = || class.call(args, &cx).map(|_| ());
            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                let shown: String = shown.chars().take(600).collect();
                found.push(format!("{name} panics on {shown}"));
                break;
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
