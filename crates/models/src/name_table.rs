//! Other people's names for a network's weights, as data.
//!
//! A [`NameTable`] is one foreign layout: rules that say which layer of ours a layer of theirs is, or which part of it. It
//! serves both directions: where our keys are in a file with these names ([`NameTable::origins`]), and what LoRA files call
//! our layers ([`NameTable::targets`]).
//!
//! `{i}` and `{j}` in a name stand for the numbers of blocks, `{last}` for the number of the last one and `{front}` for the
//! others. Both names of a rule have the same holes. Numbers that have to be computed are written out: a table may be made
//! for one network ([`NameTable::with`]).

use std::collections::{BTreeMap, BTreeSet};

use fresco_tensor::WeightFile;

use crate::lora::NetworkKeys;
use crate::patch::{Reorder, Slice, Target};
use crate::store::Origin;

/// What a tensor of theirs is of one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// Start and number of rows, counted in the width of the table: of a matrix for queries, keys and values together
    /// the keys are `Rows(1, 1)`.
    Rows(usize, usize),
    /// All of it, with its two halves the other way round.
    Swapped,
    /// All of it, rows and columns exchanged.
    Transposed,
    /// All of it, as one row of numbers.
    Flat,
    /// All of it, without the first sizes of one.
    Squeezed,
    /// More than it: ours is this one of so many equal parts of theirs.
    Cut(usize, usize),
}

/// One name of theirs, the same of ours, and which part of ours it is.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    theirs: &'static str,
    ours: &'static str,
    part: Part,
    /// Whether the names are those of layers, whose weight and bias follow, or those of single values.
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The path of a layer; its tensors have one name more: `.weight`, `.bias`.
    Layer,
    /// The whole name of a tensor.
    Value,
    /// What stands before names that are the same after it.
    Tree,
}

impl Rule {
    const fn of(theirs: &'static str, ours: &'static str, part: Part, kind: Kind) -> Self {
        Self {
            theirs,
            ours,
            part,
            kind,
        }
    }
}

/// A layer under another name. A name of theirs that ends with `_` has `weight` and `bias` right behind it.
pub const fn layer(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Whole, Kind::Layer)
}

/// A layer that is some rows of ours: the first one and their number, counted in the width of the table.
pub const fn rows(theirs: &'static str, ours: &'static str, start: usize, count: usize) -> Rule {
    Rule::of(theirs, ours, Part::Rows(start, count), Kind::Layer)
}

/// A layer whose two halves are the other way round.
pub const fn swapped(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Swapped, Kind::Layer)
}

/// A layer of ours that is one of `count` equal parts of theirs.
pub const fn cut(theirs: &'static str, ours: &'static str, part: usize, count: usize) -> Rule {
    Rule::of(theirs, ours, Part::Cut(part, count), Kind::Layer)
}

/// All that follows a name, whose parts are called the same.
pub const fn tree(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Whole, Kind::Tree)
}

/// A tensor by its whole name.
pub const fn value(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Whole, Kind::Value)
}

/// A matrix by its whole name, whose rows are our columns.
pub const fn transposed(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Transposed, Kind::Value)
}

/// A tensor by its whole name that is one row of numbers here.
pub const fn flat(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Flat, Kind::Value)
}

/// A tensor by its whole name that has no sizes of one before its others here.
pub const fn squeezed(theirs: &'static str, ours: &'static str) -> Rule {
    Rule::of(theirs, ours, Part::Squeezed, Kind::Value)
}

/// A place in the tree of names, theirs and ours, and the rules that hold in it.
#[derive(Clone, Copy, Debug)]
pub struct Place<Name = &'static str> {
    theirs: Name,
    ours: Name,
    rules: &'static [Rule],
}

/// What stands before the names of the rules, with its dot.
pub const fn place(theirs: &'static str, ours: &'static str, rules: &'static [Rule]) -> Place {
    Place {
        theirs,
        ours,
        rules,
    }
}

/// A place with the same name in both layouts.
pub const fn within(name: &'static str, rules: &'static [Rule]) -> Place {
    place(name, name, rules)
}

impl Place<String> {
    /// A place of one network.
    pub fn at(theirs: String, ours: String, rules: &'static [Rule]) -> Self {
        Self {
            theirs,
            ours,
            rules,
        }
    }
}

/// What becomes of names that no rule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They are ours already.
    Kept,
    /// They are of no use.
    Dropped,
}

/// One foreign layout.
#[derive(Clone, Debug)]
pub struct NameTable {
    places: &'static [Place],
    /// Those of one network.
    made: Vec<Place<String>>,
    others: Others,
    /// Keys of ours: the rows of the first one that a network has are the width in which rows are counted.
    width: &'static [&'static str],
}

/// A rule with numbers in its holes.
struct Instance<'a> {
    theirs: String,
    ours: String,
    rule: &'a Rule,
}

impl Instance<'_> {
    /// The key of ours that a name of theirs belongs to, if it is one of this rule's.
    fn key(&self, name: &str) -> Option<String> {
        if self.rule.kind == Kind::Value {
            return (name == self.theirs).then(|| self.ours.clone());
        }
        let end = name.strip_prefix(self.theirs.as_str())?;
        let end = if self.theirs.ends_with('_') {
            end
        } else {
            end.strip_prefix('.')?
        };
        let one = !end.is_empty() && !end.contains('.');
        (one || self.rule.kind == Kind::Tree).then(|| format!("{}.{end}", self.ours))
    }
}

impl NameTable {
    /// The network's own names.
    pub const OWN: Self = Self::new(&[]).keeping_others();

    /// Rules for all names of a layout; what they do not name is of no use.
    pub const fn new(places: &'static [Place]) -> Self {
        Self {
            places,
            made: Vec::new(),
            others: Others::Dropped,
            width: &[],
        }
    }

    /// With rules that were made for one network.
    #[must_use]
    pub fn with(mut self, places: Vec<Place<String>>) -> Self {
        self.made = places;
        self
    }

    /// Names that no rule has are ours already.
    #[must_use]
    pub const fn keeping_others(mut self) -> Self {
        self.others = Others::Kept;
        self
    }

    /// Counts rows in the width of the first of these keys that a network has.
    #[must_use]
    pub const fn counted_in(mut self, keys: &'static [&'static str]) -> Self {
        self.width = keys;
        self
    }

    /// Where our keys are in a file, of which `inside` are the sorted names that follow `prefix`. A key of which a part is
    /// missing is left out.
    pub fn origins(
        &self,
        file: &dyn WeightFile,
        prefix: &str,
        inside: &[&str],
    ) -> BTreeMap<String, Origin> {
        let numbers = numbers_in(inside);
        let instances = self.instances(Side::Theirs, &numbers);
        let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
        for instance in &instances {
            if let Part::Rows(start, count) = instance.rule.part {
                let all = rows.entry(&instance.ours).or_default();
                *all = (*all).max(start + count);
            }
        }
        let mut found: BTreeMap<String, Vec<(Part, Origin)>> = BTreeMap::new();
        for (part, key, name) in self.pairs(&instances, inside) {
            let origin = part.origin(file, format!("{prefix}{name}"));
            found.entry(key).or_default().push((part, origin));
        }
        let whole = |(key, parts): (String, Vec<(Part, Origin)>)| {
            let all = rows.get(key.rsplit_once('.').map_or(&*key, |(layer, _)| layer));
            let origin = joined(parts, all.copied())?;
            Some((key, origin))
        };
        found.into_iter().filter_map(whole).collect()
    }

    /// Pairs of our key and the name it has, among sorted names.
    pub fn keys<'b>(&self, inside: &[&'b str]) -> Vec<(String, &'b str)> {
        let numbers = numbers_in(inside);
        let instances = self.instances(Side::Theirs, &numbers);
        let pairs = self.pairs(&instances, inside).into_iter();
        pairs.map(|(_, key, name)| (key, name)).collect()
    }

    /// Names with the keys they are parts of.
    fn pairs<'b>(
        &self,
        instances: &[Instance<'_>],
        inside: &[&'b str],
    ) -> Vec<(Part, String, &'b str)> {
        let mut found = Vec::new();
        let mut used = BTreeSet::new();
        for instance in instances {
            for name in starting(inside, &instance.theirs) {
                if let Some(key) = instance.key(name) {
                    used.insert(*name);
                    found.push((instance.rule.part, key, *name));
                }
            }
        }
        if self.others == Others::Kept {
            let others = inside.iter().filter(|name| !used.contains(*name));
            found.extend(others.map(|name| (Part::Whole, (*name).to_owned(), *name)));
        }
        found
    }

    /// What LoRA files call the layers of a network, and what each is of it.
    pub fn targets(&self, keys: &NetworkKeys<'_>) -> Vec<(String, Target)> {
        let width = self.width.iter().find_map(|key| keys.outputs(key));
        let numbers = |start: &str| {
            let keys = keys.0.iter();
            numbers(keys.filter_map(|(key, _)| key.strip_prefix(start)))
        };
        let mut ours = BTreeSet::new();
        let mut found = Vec::new();
        for instance in self.instances(Side::Ours, &numbers) {
            let (name, key) = match instance.rule.kind {
                Kind::Layer => (instance.theirs, format!("{}.weight", instance.ours)),
                Kind::Tree => continue,
                Kind::Value => {
                    let name = instance.theirs.strip_suffix(".weight");
                    (name.unwrap_or(&instance.theirs).to_owned(), instance.ours)
                }
            };
            let part = instance.rule.part.target(&key, width.unwrap_or(0));
            found.extend(part.map(|target| (name, target)));
            ours.insert(key);
        }
        if self.others == Others::Kept {
            let others = keys.layers().filter_map(|path| {
                let key = format!("{path}.weight");
                let target = Target::whole(format!("diffusion_model.{key}"));
                (!ours.contains(&key)).then(|| (path.to_owned(), target))
            });
            found.extend(others);
        }
        found
    }

    /// All rules with the numbers of a network's blocks, which `numbers` knows for what stands before them.
    fn instances(&self, side: Side, numbers: &Numbers<'_>) -> Vec<Instance<'_>> {
        let mut all = Vec::new();
        let made = self.made.iter();
        let made = made.map(|place| (&*place.theirs, &*place.ours, place.rules));
        let places = self.places.iter();
        let places = places.map(|place| (place.theirs, place.ours, place.rules));
        for (theirs, ours, rules) in places.chain(made) {
            for (theirs, ours) in numbered(theirs, ours, side, numbers) {
                for rule in rules {
                    let (theirs, ours) = (
                        format!("{theirs}{}", rule.theirs),
                        format!("{ours}{}", rule.ours),
                    );
                    let names = numbered(&theirs, &ours, side, numbers).into_iter();
                    all.extend(names.map(|(theirs, ours)| Instance { theirs, ours, rule }));
                }
            }
        }
        all
    }
}

/// Whose blocks are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Theirs,
    Ours,
}

/// The numbers, in order, that follow a name.
type Numbers<'a> = dyn Fn(&str) -> Vec<usize> + 'a;

/// The numbers that follow a name, among sorted names.
fn numbers_in<'a>(inside: &'a [&'a str]) -> impl Fn(&str) -> Vec<usize> {
    move |start| {
        let names = starting(inside, start).iter();
        numbers(names.map(|name| &name[start.len()..]))
    }
}

/// The numbers with which names begin.
fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let numbers = names.filter_map(|name| name.split('.').next()?.parse().ok());
    let numbers: BTreeSet<usize> = numbers.collect();
    numbers.into_iter().collect()
}

/// A pair of names with all numbers in its holes.
fn numbered(theirs: &str, ours: &str, side: Side, numbers: &Numbers<'_>) -> Vec<(String, String)> {
    let counted = match side {
        Side::Theirs => theirs,
        Side::Ours => ours,
    };
    let hole = counted.split_once('{').and_then(|(before, rest)| {
        let (name, _) = rest.split_once('}')?;
        Some((before, name))
    });
    let Some((before, name)) = hole else {
        return vec![(theirs.to_owned(), ours.to_owned())];
    };
    let all = numbers(before);
    let chosen = match (name, all.as_slice()) {
        ("last", [.., last]) => std::slice::from_ref(last),
        ("front", [front @ .., _]) => front,
        (_, all) => all,
    };
    let hole = format!("{{{name}}}");
    let filled = chosen.iter().flat_map(|n| {
        let n = n.to_string();
        let names = (theirs.replace(&hole, &n), ours.replace(&hole, &n));
        numbered(&names.0, &names.1, side, numbers)
    });
    filled.collect()
}

impl Part {
    fn origin(self, file: &dyn WeightFile, name: String) -> Origin {
        let shape = || file.info(&name).map(|info| info.shape).unwrap_or_default();
        let size = || shape().first().copied().unwrap_or(0);
        match self {
            Self::Whole | Self::Rows(..) => Origin::Whole(name),
            Self::Transposed => Origin::Transposed(name),
            Self::Flat => Origin::Shaped {
                shape: vec![shape().iter().product()],
                name,
            },
            Self::Squeezed => Origin::Shaped {
                shape: shape().into_iter().skip_while(|n| *n == 1).collect(),
                name,
            },
            Self::Swapped => {
                let count = size() / 2;
                let half = |start: usize| Origin::Rows {
                    name: name.clone(),
                    start,
                    count,
                };
                Origin::Joined(vec![half(count), half(0)])
            }
            Self::Cut(part, parts) => {
                let count = size() / parts;
                Origin::Rows {
                    start: part * count,
                    count,
                    name,
                }
            }
        }
    }

    /// None where no change of theirs is one of ours.
    fn target(self, key: &str, width: usize) -> Option<Target> {
        let whole = Target::whole(format!("diffusion_model.{key}"));
        match self {
            Self::Whole => Some(whole),
            Self::Rows(start, count) => Some(Target {
                slice: Some(Slice {
                    dim: 0,
                    start: start * width,
                    len: count * width,
                }),
                ..whole
            }),
            Self::Swapped => Some(Target {
                reorder: Some(Reorder::SwapHalves),
                ..whole
            }),
            Self::Transposed | Self::Flat | Self::Squeezed | Self::Cut(..) => None,
        }
    }
}

/// The value of which these are the parts; none unless they are all of its rows.
fn joined(mut parts: Vec<(Part, Origin)>, all: Option<usize>) -> Option<Origin> {
    let rows = |part: &Part| match part {
        Part::Rows(start, count) => Some((*start, *count)),
        _ => None,
    };
    // A tensor that is all of ours comes before those that are parts of it.
    if let Some(whole) = parts.iter().position(|(part, _)| rows(part).is_none()) {
        return Some(parts.swap_remove(whole).1);
    }
    parts.sort_by_key(|(part, _)| rows(part));
    let found: usize = parts
        .iter()
        .filter_map(|(part, _)| rows(part))
        .map(|r| r.1)
        .sum();
    let parts = parts.into_iter().map(|(_, origin)| origin).collect();
    (Some(found) == all).then_some(Origin::Joined(parts))
}

/// Sorted names that begin so.
pub fn starting<'a, 'b>(names: &'b [&'a str], start: &str) -> &'b [&'a str] {
    let first = names.partition_point(|name| *name < start);
    let count = names[first..].partition_point(|name| name.starts_with(start));
    &names[first..first + count]
}

/// How many numbered blocks follow this name, among sorted names.
pub fn blocks(names: &[&str], start: &str) -> usize {
    let there = |number: &usize| !starting(names, &format!("{start}{number}.")).is_empty();
    // There cannot be more blocks than names.
    (0..names.len()).take_while(there).count()
}

#[cfg(test)]
pub(crate) mod tests;
