//! Samplers and schedules that packs added to the lists of their host. Our nodes offer them and run them as parts of
//! another process.

use std::sync::Arc;

use fresco_graph::{
    Args, Choices, Cx, Flow, IoType, NodeClass, NodeEntry, NodeError, NodeRegistry, Schema, Value,
    entry,
};

use crate::sampling::{ksampler, samplers};
use crate::sigmas::of_model;

/// What one process added, by name.
#[derive(Default)]
pub struct Listed {
    pub samplers: Vec<(Arc<str>, Value)>,
    pub schedulers: Vec<(Arc<str>, Value)>,
}

impl Listed {
    pub fn is_empty(&self) -> bool {
        self.samplers.is_empty() && self.schedulers.is_empty()
    }
}

/// Nodes that let people choose from these lists.
const CHOOSE: [NodeEntry; 4] = [
    entry::<ksampler::KSampler>(),
    entry::<ksampler::KSamplerAdvanced>(),
    entry::<samplers::KSamplerSelect>(),
    entry::<of_model::BasicScheduler>(),
];

/// Puts the nodes that offer all of these in the place of the plain ones.
pub fn with_listed(registry: &mut NodeRegistry, parts: &[&Listed]) {
    let of = |pick: fn(&Listed) -> &[ListEntry]| -> Arc<[ListEntry]> {
        parts.iter().flat_map(|part| pick(part).to_vec()).collect()
    };
    let (samplers, schedulers) = (of(|part| &part.samplers), of(|part| &part.schedulers));
    for one in CHOOSE {
        let plain = one.class();
        if registry.get(&plain.schema().id).is_some() {
            let more = [
                ("sampler_name", samplers.clone()),
                ("scheduler", schedulers.clone()),
            ];
            registry.add_class(Arc::new(Extended::new(plain, more)));
        }
    }
}

/// An entry of a list and the object that stands for it.
type ListEntry = (Arc<str>, Value);

/// Entries by input.
type MoreEntries = [(&'static str, Arc<[ListEntry]>); 2];

/// One of our nodes with longer lists.
struct Extended {
    plain: Arc<dyn NodeClass>,
    schema: Arc<Schema>,
    /// Objects that stand for entries, by input.
    more: MoreEntries,
}

impl Extended {
    fn new(plain: Arc<dyn NodeClass>, more: MoreEntries) -> Self {
        let mut schema = (*plain.schema()).clone();
        for (name, entries) in &more {
            let input = schema.inputs.iter_mut().find(|input| &*input.name == *name);
            let Some(input) = input else { continue };
            let ((IoType::List(list), _) | (_, Some(list))) = (&mut input.ty, &mut input.choices)
            else {
                continue;
            };
            if let Choices::Fixed(fixed) = list {
                let mut longer = (**fixed).clone();
                for (entry, _) in entries.iter() {
                    if !longer.iter().any(|known| known.as_str() == Some(&**entry)) {
                        longer.push(Value::from(entry));
                    }
                }
                *fixed = Arc::new(longer);
            }
        }
        Self {
            plain,
            schema: Arc::new(schema),
            more,
        }
    }
}

impl NodeClass for Extended {
    fn schema(&self) -> Arc<Schema> {
        self.schema.clone()
    }

    fn call(&self, mut args: Args, cx: &Cx) -> Result<Flow, NodeError> {
        for (name, entries) in &self.more {
            let Some(given) = args.0.get_mut(*name) else {
                continue;
            };
            let own = given
                .as_str()
                .and_then(|given| entries.iter().find(|(entry, _)| &**entry == given));
            if let Some((_, object)) = own {
                *given = object.clone();
            }
        }
        self.plain.call(args, cx)
    }
}
