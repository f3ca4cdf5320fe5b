//! What a node class declares: inputs, outputs, flags. The wire form is in [`crate::object_info`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{Map, SharedTooltips, Value};

/// Which of the reference's two shapes a class has on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    V1,
    V3,
}

/// Whether an input must be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputGroup {
    Required,
    Optional,
}

/// Hidden values the engine fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magic {
    Prompt,
    DynPrompt,
    ExtraPngInfo,
    UniqueId,
    AuthToken,
    ApiKey,
}

impl Magic {
    pub const fn wire(self) -> &'static str {
        match self {
            Self::Prompt => "PROMPT",
            Self::DynPrompt => "DYNPROMPT",
            Self::ExtraPngInfo => "EXTRA_PNGINFO",
            Self::UniqueId => "UNIQUE_ID",
            Self::AuthToken => "AUTH_TOKEN_COMFY_ORG",
            Self::ApiKey => "API_KEY_COMFY_ORG",
        }
    }

    pub fn from_wire(text: &str) -> Option<Self> {
        [
            Self::Prompt,
            Self::DynPrompt,
            Self::ExtraPngInfo,
            Self::UniqueId,
            Self::AuthToken,
            Self::ApiKey,
        ]
        .into_iter()
        .find(|m| m.wire() == text)
    }
}

/// The entries of a combo box.
#[derive(Clone, Debug)]
pub enum Choices {
    Fixed(Arc<Vec<Value>>),
    /// Read anew each time from [`Listings`], e.g. `models/checkpoints` or `input/image`.
    Listed(Arc<str>),
}

impl Choices {
    /// Whether the list is of this kind: what stands before the first slash of its source.
    pub fn is_of(&self, kind: &str) -> bool {
        matches!(self, Self::Listed(source) if source.split('/').next() == Some(kind))
    }

    pub fn entries(&self, listings: &dyn Listings) -> Arc<Vec<Value>> {
        match self {
            Self::Fixed(v) => v.clone(),
            Self::Listed(source) => {
                Arc::new(listings.list(source).into_iter().map(Value::from).collect())
            }
        }
    }
}

/// Gives something for a folder and a name, if it knows.
type Lookup = dyn Fn(&str, &str) -> Option<String> + Send + Sync;

/// What an entry of a list stands for now: another text as soon as it stands for something else, as a model whose file was
/// replaced. One of the [`Resources`](crate::Resources) of an engine, asked with the source of the list and the entry; a
/// node's results are used again only while the answers stay the same.
pub struct Versions(pub Arc<Lookup>);

/// Calls a function with a flag in force.
type ScopedCall = dyn Fn(&Arc<AtomicBool>, &mut dyn FnMut()) + Send + Sync;

/// Makes a flag known to what a node does, however deep: nodes get their [`Cx`](crate::Cx), but the arithmetic below them
/// does not. One of the [`Resources`](crate::Resources) of an engine, called with a flag that is raised when the work is
/// not wanted any more, and with the work.
pub struct CallScope(pub Arc<ScopedCall>);

/// Gives the entries of combos that follow the disk. `models/TYPE` lists a model folder, `input/CLASS` the input
/// folder's files of a content class (`image`, `audio`, ...).
/// `devices/all` lists the devices.
pub trait Listings: Send + Sync {
    fn list(&self, source: &str) -> Vec<String>;

    /// The entries as they are on the disk now, for a caller who waits for them; nothing where [`Listings::list`] gives no others.
    fn renewed(&self, _source: &str) -> Option<Vec<String>> {
        None
    }

    /// Why the entries may not be those that are on the disk now; nothing where they are.
    fn trouble(&self, _source: &str) -> Option<String> {
        None
    }

    /// The entry that an input starts with, where that is not simply the first.
    fn preset(&self, _source: &str) -> Option<String> {
        None
    }
}

/// For tests and tools: every listing is empty.
pub struct NoListings;

impl Listings for NoListings {
    fn list(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

/// An input's or output's type.
#[derive(Clone, Debug)]
pub enum IoType {
    /// A type name, or several joined by commas.
    Name(Arc<str>),
    /// V1 combos: the list is the type.
    List(Choices),
}

impl IoType {
    /// The type as it stands on the wire: a string or an array.
    pub fn to_value(&self, listings: &dyn Listings) -> Value {
        match self {
            Self::Name(n) => Value::from(n),
            Self::List(c) => Value::List(c.entries(listings)),
        }
    }

    fn is_listed(&self) -> bool {
        matches!(self, Self::List(Choices::Listed(_)))
    }

    pub fn name(&self) -> Option<&str> {
        if let Self::Name(n) = self {
            Some(n)
        } else {
            None
        }
    }
}

impl From<&str> for IoType {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

/// One declared input.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: Arc<str>,
    pub group: InputGroup,
    pub ty: IoType,
    /// Wire options in wire order; `options` of a V3 combo is in `choices`, not here.
    pub options: Map,
    pub lazy: bool,
    pub raw_link: bool,
    pub kind: Kind,
    /// V3 combos (`COMBO`): the entries.
    pub choices: Option<Choices>,
}

/// Inputs that change shape with what is supplied.
#[derive(Clone, Debug)]
pub enum Kind {
    Plain,
    /// Any type, the same for all inputs and outputs of one template.
    Match {
        template: Arc<str>,
        allowed: Arc<str>,
    },
    /// As many slots as are supplied: `name.prefix0`, `name.prefix1`, ...
    Autogrow {
        template: Box<Input>,
        names: GrowNames,
        min: usize,
    },
    /// The chosen key decides which further inputs there are.
    DynamicCombo(Vec<ComboOption>),
    /// Further inputs appear when the slot is connected.
    DynamicSlot {
        slot: Arc<str>,
        inputs: Vec<Input>,
    },
}

#[derive(Clone, Debug)]
pub enum GrowNames {
    Prefix { prefix: Arc<str>, max: usize },
    List(Vec<Arc<str>>),
}

impl GrowNames {
    /// At most a hundred, as in the reference.
    pub fn all(&self) -> Vec<Arc<str>> {
        match self {
            Self::Prefix { prefix, max } => (0..(*max).min(100))
                .map(|i| format!("{prefix}{i}").into())
                .collect(),
            Self::List(names) => names.iter().take(100).cloned().collect(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ComboOption {
    pub key: Arc<str>,
    pub inputs: Vec<Input>,
}

impl Input {
    pub fn new(name: &str, ty: impl Into<IoType>) -> Self {
        Self {
            name: name.into(),
            group: InputGroup::Required,
            ty: ty.into(),
            options: Map::new(),
            lazy: false,
            raw_link: false,
            kind: Kind::Plain,
            choices: None,
        }
    }

    /// A whole number between two bounds.
    pub fn int(name: &str, default: i64, [min, max]: [i64; 2]) -> Self {
        let input = Self::new(name, "INT").option("default", default);
        input.option("min", min).option("max", max)
    }

    /// A number between two bounds, and the step of its widget.
    pub fn float(name: &str, default: f64, [min, max, step]: [f64; 3]) -> Self {
        let input = Self::new(name, "FLOAT").option("default", default);
        let input = input.option("min", min).option("max", max);
        input.option("step", step)
    }

    /// A combo box over these entries.
    pub fn choice(name: &str, entries: &[&str]) -> Self {
        let entries = entries.iter().map(|entry| Value::from(*entry)).collect();
        Self::combo(name, Choices::Fixed(Arc::new(entries)))
    }

    /// A combo box; it takes its V1 or V3 wire form from the schema it is put into.
    pub fn combo(name: &str, choices: Choices) -> Self {
        Self {
            choices: Some(choices),
            ..Self::new(name, "COMBO")
        }
    }

    pub fn match_type(name: &str, template: &str, allowed: &str) -> Self {
        let kind = Kind::Match {
            template: template.into(),
            allowed: allowed.into(),
        };
        Self {
            kind,
            ..Self::new(name, "COMFY_MATCHTYPE_V3")
        }
    }

    pub fn autogrow(name: &str, template: Input, prefix: &str, min: usize, max: usize) -> Self {
        let names = GrowNames::Prefix {
            prefix: prefix.into(),
            max,
        };
        let kind = Kind::Autogrow {
            template: Box::new(template),
            names,
            min,
        };
        Self {
            kind,
            ..Self::new(name, "COMFY_AUTOGROW_V3")
        }
    }

    /// Autogrow over a fixed list of names.
    pub fn autogrow_named(name: &str, template: Input, names: &[&str], min: usize) -> Self {
        let names = GrowNames::List(names.iter().map(|n| Arc::from(*n)).collect());
        let kind = Kind::Autogrow {
            template: Box::new(template),
            names,
            min,
        };
        Self {
            kind,
            ..Self::new(name, "COMFY_AUTOGROW_V3")
        }
    }

    pub fn dynamic_combo(name: &str, options: Vec<(&str, Vec<Input>)>) -> Self {
        let options = options
            .into_iter()
            .map(|(key, inputs)| ComboOption {
                key: key.into(),
                inputs,
            })
            .collect();
        Self {
            kind: Kind::DynamicCombo(options),
            ..Self::new(name, "COMFY_DYNAMICCOMBO_V3")
        }
    }

    pub fn dynamic_slot(name: &str, slot: &str, inputs: Vec<Input>) -> Self {
        let kind = Kind::DynamicSlot {
            slot: slot.into(),
            inputs,
        };
        Self {
            kind,
            group: InputGroup::Optional,
            ..Self::new(name, "COMFY_DYNAMICSLOT_V3")
        }
    }

    pub fn optional(mut self) -> Self {
        self.group = InputGroup::Optional;
        self
    }

    /// Where the entries come from, if not from the schema itself.
    pub fn source(&self) -> Option<&str> {
        match (&self.ty, &self.choices) {
            (IoType::List(Choices::Listed(source)), _) | (_, Some(Choices::Listed(source))) => {
                Some(source)
            }
            _ => None,
        }
    }

    /// Sets a wire option. `lazy` and `rawLink` also change what the engine does.
    pub fn option(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        match key {
            "lazy" => self.lazy = value.truthy(),
            "rawLink" => self.raw_link = value.truthy(),
            _ => {}
        }
        self.options.insert(key.into(), value);
        self
    }

    /// What the input means, for people; shown beside it by clients.
    pub fn tooltip(self, text: &str) -> Self {
        self.option("tooltip", text)
    }

    /// The inputs that appear with this one: those of its slots or of its choices.
    pub fn inner(&self) -> Vec<&Input> {
        match &self.kind {
            Kind::Plain | Kind::Match { .. } => Vec::new(),
            Kind::Autogrow { template, .. } => vec![template],
            Kind::DynamicCombo(options) => options.iter().flat_map(|o| &o.inputs).collect(),
            Kind::DynamicSlot { inputs, .. } => inputs.iter().collect(),
        }
    }

    fn describe(&mut self, tooltips: SharedTooltips) {
        if !self.options.contains_key("tooltip")
            && let Some(text) = tooltips(self)
        {
            self.options.insert("tooltip".into(), text.into());
        }
        match &mut self.kind {
            Kind::Plain | Kind::Match { .. } => {}
            Kind::Autogrow { template, .. } => template.describe(tooltips),
            Kind::DynamicCombo(options) => {
                for input in options.iter_mut().flat_map(|o| &mut o.inputs) {
                    input.describe(tooltips);
                }
            }
            Kind::DynamicSlot { inputs, .. } => {
                for input in inputs {
                    input.describe(tooltips);
                }
            }
        }
    }

    /// Whether entries of it, in any of its forms, are asked of [`Listings`].
    fn has_listing(&self) -> bool {
        let of_kind = || match &self.kind {
            Kind::Plain | Kind::Match { .. } => false,
            Kind::Autogrow { template, .. } => template.has_listing(),
            Kind::DynamicCombo(options) => options
                .iter()
                .any(|option| option.inputs.iter().any(Self::has_listing)),
            Kind::DynamicSlot { inputs, .. } => inputs.iter().any(Self::has_listing),
        };
        self.ty.is_listed() || matches!(self.choices, Some(Choices::Listed(_))) || of_kind()
    }

    fn listing(&self) -> Option<&str> {
        match (&self.ty, &self.choices) {
            (IoType::List(Choices::Listed(source)), _) | (_, Some(Choices::Listed(source))) => {
                Some(source)
            }
            _ => None,
        }
    }

    /// Why the entries may not be those that are on the disk now.
    pub(crate) fn trouble(&self, listings: &dyn Listings) -> Option<String> {
        listings.trouble(self.listing()?)
    }

    /// The entries as they are on the disk now, where others were given before.
    pub(crate) fn renewed_entries(&self, listings: &dyn Listings) -> Option<Arc<Vec<Value>>> {
        let names = listings.renewed(self.listing()?)?;
        Some(Arc::new(names.into_iter().map(Value::from).collect()))
    }

    /// The combo entries to check membership against: a V1 list type, or a V3 combo's options.
    pub fn entries(&self, listings: &dyn Listings) -> Option<Arc<Vec<Value>>> {
        match (&self.ty, &self.choices) {
            (IoType::List(c), _) | (_, Some(c)) => Some(c.entries(listings)),
            (IoType::Name(n), None) if &**n == "COMBO" => Some(Arc::new(Vec::new())),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Output {
    pub ty: IoType,
    pub name: Arc<str>,
    pub is_list: bool,
    /// Not a list, and the wire says null for it instead of false.
    pub list_unset: bool,
    pub tooltip: Option<Arc<str>>,
    /// V3 match types: the template this output follows.
    pub template: Option<Arc<str>>,
}

impl Output {
    pub fn new(ty: &str) -> Self {
        Self {
            ty: ty.into(),
            name: ty.into(),
            is_list: false,
            list_unset: false,
            tooltip: None,
            template: None,
        }
    }

    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    pub fn list(mut self) -> Self {
        self.is_list = true;
        self
    }

    /// For the few classes of the reference that leave the list flag open.
    pub fn list_unset(mut self) -> Self {
        self.list_unset = true;
        self
    }

    /// A V1 combo output: its type is the list itself.
    pub fn combo(choices: Choices, name: &str) -> Self {
        Self {
            ty: IoType::List(choices),
            ..Self::new(name)
        }
    }

    pub fn matching(template: &str, name: &str) -> Self {
        Self {
            template: Some(template.into()),
            ..Self::new("COMFY_MATCHTYPE_V3").named(name)
        }
    }
}

/// Everything a class declares.
#[derive(Clone, Debug)]
pub struct Schema {
    pub id: Arc<str>,
    pub form: Form,
    pub display_name: Option<Arc<str>>,
    pub category: Arc<str>,
    pub description: Arc<str>,
    /// `nodes`, `comfy_extras.nodes_mask`, `custom_nodes.pack`, ...
    pub module: Arc<str>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    /// Name to magic; a V1 hidden entry that is no magic value is just an extra accepted input.
    pub hidden: Vec<(Arc<str>, Option<Magic>)>,
    pub output_node: bool,
    pub input_is_list: bool,
    pub deprecated: bool,
    pub experimental: bool,
    pub api_node: Option<bool>,
    /// The node id is part of the cache key.
    pub not_idempotent: bool,
    /// Takes inputs that it does not list: some classes of packs do.
    pub catch_all: Option<CatchAll>,
}

/// How a class treats inputs that it does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchAll {
    pub lazy: bool,
    pub raw_link: bool,
}

impl Schema {
    pub fn new(id: &str, form: Form) -> Self {
        Self {
            id: id.into(),
            form,
            display_name: None,
            category: "sd".into(),
            description: "".into(),
            module: "nodes".into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            hidden: Vec::new(),
            output_node: false,
            input_is_list: false,
            deprecated: false,
            experimental: false,
            api_node: None,
            not_idempotent: false,
            catch_all: None,
        }
    }

    /// Whether something in it is asked of [`Listings`], and so of a disk.
    pub fn has_listings(&self) -> bool {
        self.inputs.iter().any(Input::has_listing)
            || self.outputs.iter().any(|output| output.ty.is_listed())
    }

    pub fn display_name(mut self, name: &str) -> Self {
        self.display_name = Some(name.into());
        self
    }

    pub fn category(mut self, category: &str) -> Self {
        self.category = category.into();
        self
    }

    pub fn description(mut self, text: &str) -> Self {
        self.description = text.trim().into();
        self
    }

    pub fn module(mut self, module: &str) -> Self {
        self.module = module.into();
        self
    }

    /// Adds an input; a combo becomes a list type in a V1 schema.
    pub fn input(mut self, mut input: Input) -> Self {
        if self.form == Form::V1
            && let Some(choices) = input.choices.take()
        {
            // A V1 class may still use the string form; it then keeps `COMBO` by having no choices.
            input.ty = IoType::List(choices);
        }
        self.inputs.push(input);
        self
    }

    pub fn output(mut self, output: Output) -> Self {
        self.outputs.push(output);
        self
    }

    pub fn hidden(mut self, name: &str, magic: &str) -> Self {
        self.hidden.push((name.into(), Magic::from_wire(magic)));
        self
    }

    /// Gives a tooltip to each input that has none and that the table knows.
    pub fn describe_inputs(&mut self, tooltips: SharedTooltips) {
        for input in &mut self.inputs {
            input.describe(tooltips);
        }
    }

    /// Declared input by its plain name (dynamic inputs: before finalising).
    pub fn find(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| &*i.name == name)
    }

    pub fn has_dynamic(&self) -> bool {
        self.inputs
            .iter()
            .any(|i| !matches!(i.kind, Kind::Plain | Kind::Match { .. }))
    }

    /// Whether a link to this input is given to the node as it is.
    pub fn gives_link(&self, input: Option<&Input>) -> bool {
        let undeclared = self.catch_all.is_some_and(|all| all.raw_link);
        input.map_or(undeclared, |input| input.raw_link)
    }

    /// Whether a literal under this name reaches the node: an undeclared one is dropped, but a V1 hidden name that is no
    /// magic value counts as declared.
    pub fn takes(&self, name: &str, input: Option<&Input>) -> bool {
        let hidden = || self.hidden.iter().any(|(hidden, _)| &**hidden == name);
        input.is_some() || self.catch_all.is_some() || hidden()
    }

    /// Whether the source of this input waits until the node asks for it.
    pub fn is_lazy(&self, name: &str) -> bool {
        if let Some(input) = self.find(name) {
            return input.lazy;
        }
        // A slot that grew has the ways of those it grew from.
        let group = name.split_once('.').and_then(|(group, _)| self.find(group));
        match group.map(|input| &input.kind) {
            Some(Kind::Autogrow { template, .. }) => template.lazy,
            _ => self.catch_all.is_some_and(|all| all.lazy),
        }
    }

    pub fn wants(&self, magic: Magic) -> bool {
        self.hidden.iter().any(|(_, m)| *m == Some(magic))
    }
}
