//! Node lists: classes from types, from rows of tables, and twins of other classes.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::{
    Args, Cx, Flow, Input, Map, Node, NodeClass, NodeError, NodeResult, Schema, ValidatorInputs,
    Value, Verdict,
};

struct Native<T> {
    schema: Arc<Schema>,
    validator: Option<Arc<ValidatorInputs>>,
    marker: PhantomData<fn() -> T>,
}

impl<T: Node> NodeClass for Native<T> {
    fn schema(&self) -> Arc<Schema> {
        self.schema.clone()
    }
    fn call(&self, args: Args, cx: &Cx) -> Result<Flow, NodeError> {
        T::from_args(args)?.start(cx)
    }
    fn is_async(&self) -> bool {
        T::ASYNC
    }
    fn has_lazy(&self) -> bool {
        T::LAZY
    }
    fn check_lazy(&self, args: Args, cx: &Cx) -> Result<Vec<String>, NodeError> {
        T::check_lazy(args, cx)
    }
    fn has_fingerprint(&self) -> bool {
        T::FINGERPRINT
    }
    fn fingerprint(&self, args: Args, cx: &Cx) -> Result<Value, NodeError> {
        T::fingerprint(args, cx)
    }
    fn validator(&self) -> Option<Arc<ValidatorInputs>> {
        self.validator.clone()
    }
    fn validate(&self, args: Args, types: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        T::validate(args, types, cx)
    }
}

/// The description of an input that has none of its own.
pub type SharedTooltips = fn(&Input) -> Option<&'static str>;

/// A class whose declaration and work are data: nodes that differ in little more than names and defaults are rows of one
/// table instead of a type each.
pub trait NodeRow: Send + Sync {
    fn schema(&self) -> Schema;
    fn run(&self, args: Args, cx: &Cx) -> NodeResult;
}

struct RowClass {
    schema: Arc<Schema>,
    row: &'static dyn NodeRow,
}

impl NodeClass for RowClass {
    fn schema(&self) -> Arc<Schema> {
        self.schema.clone()
    }
    fn call(&self, args: Args, cx: &Cx) -> Result<Flow, NodeError> {
        self.row.run(args, cx).map(Flow::Done)
    }
}

/// A class with the inputs of another one: what it is called, what it starts with, and what it does with them.
pub struct Twin<T> {
    pub id: &'static str,
    pub display: Option<&'static str>,
    pub about: &'static str,
    /// Defaults that are not those of the other.
    pub defaults: &'static [(&'static str, f64)],
    pub run: fn(T, &Cx) -> NodeResult,
}

impl<T: Node> NodeRow for Twin<T> {
    fn schema(&self) -> Schema {
        let mut schema = T::schema().description(self.about);
        schema.id = self.id.into();
        schema.display_name = self.display.map(Into::into);
        for (name, default) in self.defaults {
            let mut inputs = schema.inputs.iter_mut();
            let input = inputs.find(|input| *input.name == **name);
            let option = input.and_then(|input| input.options.get_mut("default"));
            if let Some(option) = option {
                *option = (*default).into();
            }
        }
        schema
    }

    fn run(&self, args: Args, cx: &Cx) -> NodeResult {
        (self.run)(T::from_args(args)?, cx)
    }
}

/// One of a node list: `static NODES: &[NodeEntry] = &[entry::<KSampler>(), row(&SD3_LATENT), ...]`.
#[derive(Clone, Copy)]
pub struct NodeEntry {
    source: Source,
    tooltips: Option<SharedTooltips>,
}

#[derive(Clone, Copy)]
enum Source {
    Type(fn(Option<SharedTooltips>) -> Arc<dyn NodeClass>),
    Row(&'static dyn NodeRow),
}

impl NodeEntry {
    pub fn class(self) -> Arc<dyn NodeClass> {
        match self.source {
            Source::Type(make) => make(self.tooltips),
            Source::Row(row) => Arc::new(RowClass {
                schema: described(row.schema(), self.tooltips),
                row,
            }),
        }
    }

    /// The same class, with descriptions for those inputs that declare none.
    pub const fn with_tooltips(self, tooltips: SharedTooltips) -> Self {
        Self {
            tooltips: Some(tooltips),
            ..self
        }
    }
}

fn described(mut schema: Schema, tooltips: Option<SharedTooltips>) -> Arc<Schema> {
    if let Some(tooltips) = tooltips {
        schema.describe_inputs(tooltips);
    }
    Arc::new(schema)
}

pub const fn entry<T: Node>() -> NodeEntry {
    NodeEntry {
        source: Source::Type(|tooltips| {
            Arc::new(Native::<T> {
                schema: described(T::schema(), tooltips),
                validator: T::VALIDATOR.map(|inputs| Arc::new(inputs.into())),
                marker: PhantomData,
            })
        }),
        tooltips: None,
    }
}

pub const fn row(row: &'static dyn NodeRow) -> NodeEntry {
    NodeEntry {
        source: Source::Row(row),
        tooltips: None,
    }
}

/// All rows of a table.
pub const fn rows<T: NodeRow, const N: usize>(table: &'static [T; N]) -> [NodeEntry; N] {
    let mut entries = [row(&table[0]); N];
    let mut i = 1;
    while i < N {
        entries[i] = row(&table[i]);
        i += 1;
    }
    entries
}
