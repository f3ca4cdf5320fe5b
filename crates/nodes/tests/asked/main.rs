//! Every allocation that a request can size is asked for first: each node that needs no model is called with large
//! inputs, under an allocator that notes what was taken without asking.
//!
//! Inputs are made from the schemas; values of further types (tracks, meshes, films) come from the nodes that make them. So a
//! new node is covered by being in the list.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use fresco_files::dirs::Dirs;
use fresco_files::naming::Saver;
use fresco_files::{Picture, Pixels, encode_png};
use fresco_graph::{
    Args, Cx, Declared, Flow, Input, InputGroup, Kind, Listings, Map, NodeClass, NodeRegistry,
    Resources, Slots, Value, map,
};
use fresco_nodes::types::tensor;
use fresco_tensor::{Tensor, WatchedAllocator};

#[global_allocator]
static WATCHED: WatchedAllocator = WatchedAllocator;

/// A plane of single bytes of the pictures below is larger than this; tables of fixed size are smaller.
const MOST: usize = 1 << 20;

const HEIGHT: usize = 1030;
const WIDTH: usize = 1024;

/// Bytes of the texts: no other allocation has this size by chance.
const TEXT: usize = 1_100_017;

fn ramp(shape: &[usize]) -> Value {
    let t = Tensor::from_fn(shape, |i| (i % 251) as f32 / 250.0);
    tensor(t.expect("this machine has some megabytes"))
}

/// One large value of each type that can be made without a node.
fn base_values() -> BTreeMap<&'static str, Value> {
    let latent = ramp(&[1, 4, HEIGHT / 2, WIDTH]);
    let options = map! {"pooled_output" => ramp(&[1, 1280])};
    let text: String = "some words, (and more) "
        .chars()
        .cycle()
        .take(TEXT)
        .collect();
    BTreeMap::from([
        ("IMAGE", ramp(&[1, HEIGHT, WIDTH, 3])),
        ("MASK", ramp(&[1, HEIGHT, WIDTH])),
        ("LATENT", map! {"samples" => latent}.into()),
        (
            "CONDITIONING",
            vec![Value::from(vec![ramp(&[1, 1200, 768]), options.into()])].into(),
        ),
        ("SIGMAS", ramp(&[1 << 20])),
        (
            "AUDIO",
            map! {"waveform" => ramp(&[1, 2, 600_000]), "sample_rate" => 48_000}.into(),
        ),
        ("STRING", text.into()),
    ])
}

/// A value of each type that can be had so far.
type Known = BTreeMap<String, Value>;

/// One way to call a node: which entry of each list is taken, and whether short texts are long ones.
#[derive(Clone, Copy)]
struct Variant {
    entry: usize,
    long: bool,
}

/// In how many ways a node is called: it may go different ways with lists, texts and values of several types.
fn variants(class: &dyn NodeClass) -> usize {
    let varies = |input: &Input| {
        let plain = matches!(input.kind, Kind::Plain) && input.entries(&Files).is_none();
        let name = input.ty.name().unwrap_or_default();
        !plain || matches!(name, "BOOLEAN" | "STRING" | "*") || name.contains(',')
    };
    if class.schema().inputs.iter().any(varies) {
        4
    } else {
        1
    }
}

/// What the folders hold.
struct Files;

impl Listings for Files {
    fn list(&self, source: &str) -> Vec<String> {
        match source {
            "input/image" | "input/files" => vec!["large.png".into()],
            _ => Vec::new(),
        }
    }
}

fn value_for(input: &Input, known: &Known, variant: Variant) -> Option<Value> {
    if let Some(entries) = input.entries(&Files) {
        return entries.get(variant.entry % entries.len().max(1)).cloned();
    }
    let preset = input.options.get("default").cloned();
    let types = input.ty.name()?;
    match types {
        "INT" => return Some(preset.unwrap_or_else(|| 2.into())),
        "FLOAT" => return Some(preset.unwrap_or_else(|| 0.5.into())),
        "BOOLEAN" => return Some(variant.entry.is_multiple_of(2).into()),
        "*" => {
            return known
                .get(["IMAGE", "STRING", "LATENT"][variant.entry % 3])
                .cloned();
        }
        "STRING" if !variant.long && preset.as_ref().is_some_and(Value::truthy) => return preset,
        _ => {}
    }
    let first = types.split(',').cycle().skip(variant.entry);
    let found = first.take(types.split(',').count());
    found.into_iter().find_map(|name| known.get(name)).cloned()
}

/// Puts values for an input, and for those it brings along, under their dotted names; says whether that was possible.
fn supply(input: &Input, name: &str, known: &Known, variant: Variant, all: &mut Map) -> bool {
    let mut put = |value: Option<Value>| match value {
        Some(value) => {
            all.insert(name.into(), value);
            true
        }
        None => input.group == InputGroup::Optional,
    };
    match &input.kind {
        Kind::Plain => put(value_for(input, known, variant)),
        Kind::Match { allowed, .. } => {
            let io = allowed.split(',').find_map(|name| match name {
                "*" => known.get("IMAGE"),
                name => known.get(name),
            });
            put(io.cloned())
        }
        Kind::DynamicCombo(options) => {
            let option = &options[variant.entry % options.len().max(1)];
            put(Some(Value::from(&option.key)));
            let inner = |i: &Input| supply(i, &format!("{name}.{}", i.name), known, variant, all);
            option.inputs.iter().map(inner).fold(true, |a, b| a & b)
        }
        Kind::Autogrow {
            template,
            names,
            min,
            ..
        } => {
            let slots = names.all();
            let slots = slots.iter().take((*min).max(2));
            let inner =
                |slot: &Arc<str>| supply(template, &format!("{name}.{slot}"), known, variant, all);
            slots.map(inner).fold(true, |a, b| a & b)
        }
        Kind::DynamicSlot { inputs, .. } => {
            put(value_for(input, known, variant));
            for inner in inputs {
                supply(
                    inner,
                    &format!("{name}.{}", inner.name),
                    known,
                    variant,
                    all,
                );
            }
            true
        }
    }
}

/// Arguments of a node, unless something it needs cannot be made without a model.
fn arguments(class: &dyn NodeClass, known: &Known, variant: Variant) -> Option<Args> {
    let schema = class.schema();
    let mut supplied = Map::new();
    for input in &schema.inputs {
        if !supply(input, &input.name, known, variant, &mut supplied) {
            return None;
        }
    }
    let declared = Declared::new(&schema, &supplied);
    if schema.input_is_list {
        for value in supplied.values_mut() {
            *value = vec![value.clone(); 2].into();
        }
    }
    Some(declared.nest(Args(supplied), false))
}

/// What a call gave, by the type of its slot.
fn results(class: &dyn NodeClass, flow: Flow, known: &mut Known) {
    let Flow::Done(output) = flow else { return };
    let Slots::Values(values) = output.slots else {
        return;
    };
    for (slot, value) in class.schema().outputs.iter().zip(values) {
        if let Some(name) = slot.ty.name()
            && !matches!(name, "*" | "INT" | "FLOAT" | "BOOLEAN" | "COMBO")
            && !matches!(value, Value::Null | Value::Blocker(_))
        {
            let value = match value {
                Value::List(list) if slot.is_list => list.first().cloned().unwrap_or_default(),
                other => other,
            };
            known.entry(name.to_owned()).or_insert(value);
        }
    }
}

fn resources(base: &Path) -> Resources {
    let dirs = Dirs::under(base);
    std::fs::create_dir_all(&dirs.input).expect("a folder");
    let pixels: Vec<u8> = (0..WIDTH * HEIGHT * 3).map(|i| (i % 251) as u8).collect();
    let picture = Picture::new(WIDTH as u32, HEIGHT as u32, Pixels::Rgb, &pixels);
    let png = encode_png(&picture.expect("as many pixels as it says"), &[], 1).expect("a picture");
    std::fs::write(dirs.input.join("large.png"), png).expect("a file");
    let mut resources = Resources::default();
    resources.insert(dirs);
    resources.insert(Saver::new());
    resources
}

#[test]
fn no_node_takes_much_memory_without_asking() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let cx = Cx::detached(Arc::new(resources(base.path())));
    let mut registry = NodeRegistry::new();
    registry.add(&fresco_nodes::all());
    let mut known: Known = base_values()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let mut called = BTreeSet::new();
    let mut found = BTreeMap::new();
    // What one round makes may be what nodes of the next one need.
    loop {
        let before = called.len();
        for class in registry.iter() {
            let name = class.schema().id.to_string();
            if called.contains(&name) {
                continue;
            }
            for i in 0..variants(&**class) {
                let variant = Variant {
                    entry: i,
                    long: i % 2 == 1,
                };
                let Some(args) = arguments(&**class, &known, variant) else {
                    break;
                };
                called.insert(name.clone());
                WatchedAllocator::start(TEXT);
                let call = || {
                    class
                        .call(args, &cx)
                        .map(|flow| results(&**class, flow, &mut known))
                };
                let answer = catch_unwind(AssertUnwindSafe(call));
                let largest = WatchedAllocator::largest();
                assert!(answer.is_ok(), "{name} panics");
                if largest > MOST {
                    let worst = found.entry(name.clone()).or_insert(largest);
                    *worst = largest.max(*worst);
                }
            }
        }
        if called.len() == before {
            break;
        }
    }
    assert!(
        called.len() > 150,
        "only {} nodes were called",
        called.len()
    );
    assert!(
        found.is_empty(),
        "{} of {} nodes take memory without asking (make it with fresco_tensor::Buffer or inside with_memory): {found:#?}",
        found.len(),
        called.len()
    );
}
