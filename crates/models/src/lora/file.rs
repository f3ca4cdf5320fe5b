//! A LoRA file, and what of it belongs to a model.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fresco_tensor::{Stored, WeightError, WeightFile, open_weights};
use indexmap::IndexMap;

use super::adapter::{Adapter, Factor, Kind};
use super::convert::convert;
use super::names::NameMap;
use crate::patch::{Change, Patch, Target};

/// Why a LoRA cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoraProblem {
    #[error("cannot read a LoRA")]
    Weights(#[source] Box<WeightError>),
    #[error("{file}: {name:?} is there, but its counterpart {missing:?} is not")]
    Incomplete {
        file: String,
        name: String,
        missing: String,
    },
    #[error("{file}: {name:?} holds values that are not numbers or not finite")]
    NotFinite { file: String, name: String },
    #[error("{file}: {name:?} cannot be used: {reason}")]
    Unusable {
        file: String,
        name: String,
        reason: String,
    },
}

impl From<WeightError> for LoraProblem {
    fn from(error: WeightError) -> Self {
        Self::Weights(Box::new(error))
    }
}

/// Where a tensor of the file is, under the name it has after conversion.
#[derive(Clone, Debug)]
pub(crate) enum LoraTensor {
    Named(String),
    Made(Stored),
}

/// An open file; its tensors are read when a model asks for them, or kept. Clones share what is kept.
#[derive(Clone)]
pub struct LoraFile {
    file: Arc<dyn WeightFile>,
    tensors: Arc<BTreeMap<String, LoraTensor>>,
    identity: u64,
    /// All tensors of the file by their names there.
    kept: Arc<Mutex<Option<BTreeMap<String, Stored>>>>,
}

impl LoraFile {
    pub fn open(path: &Path) -> Result<Self, LoraProblem> {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        // A file that cannot be asked is refused by the next line.
        let asked = path.to_path_buf();
        let about = fresco_tensor::on_reader_thread(move || std::fs::metadata(asked));
        if let Ok(Ok(about)) = about {
            about.len().hash(&mut hasher);
            about.modified().ok().hash(&mut hasher);
        }
        Self::new(open_weights(path)?, hasher.finish())
    }

    /// A file that is open already. Files of equal content must have equal identities, others different ones.
    pub fn new(file: Arc<dyn WeightFile>, identity: u64) -> Result<Self, LoraProblem> {
        let names = file.names().into_iter();
        let tensors = names.map(|n| (n.clone(), LoraTensor::Named(n))).collect();
        let tensors = convert(tensors, &*file);
        Ok(Self {
            file,
            tensors: Arc::new(tensors),
            identity,
            kept: Arc::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Option<BTreeMap<String, Stored>>> {
        // It is all there or not at all.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all tensors take.
    pub fn bytes(&self) -> u64 {
        let infos = self.file.names().into_iter();
        let infos = infos.filter_map(|name| self.file.info(&name));
        infos
            .filter_map(|info| info.dtype.bytes_for(info.shape.iter().product()))
            .map(|bytes| bytes as u64)
            .sum()
    }

    /// Reads all tensors into memory, if they are not there, and says how many bytes that was.
    pub fn keep(&self) -> Result<u64, LoraProblem> {
        if self.is_kept() {
            return Ok(0);
        }
        let mut all = BTreeMap::new();
        for name in self.file.names() {
            let value = self.file.read(&name)?;
            all.insert(name, value);
        }
        let bytes = all.values().map(|value| value.bytes().len() as u64).sum();
        *self.kept() = Some(all);
        Ok(bytes)
    }

    pub fn is_kept(&self) -> bool {
        self.kept().is_some()
    }

    /// Drops the kept tensors; what patches have of them stays with those.
    pub fn forget(&self) {
        let kept = self.kept().take();
        // Freed outside the lock.
        drop(kept);
    }

    /// A tensor by its name in the file.
    fn stored(&self, own: &str) -> Result<Stored, LoraProblem> {
        let kept = self.kept().as_ref().and_then(|all| all.get(own).cloned());
        match kept {
            Some(value) => Ok(value),
            None => Ok(self.file.read(own)?),
        }
    }

    /// What the file says about itself.
    pub fn metadata(&self) -> &[(String, String)] {
        self.file.metadata()
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Names of all tensors, converted to the form that name maps know.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether any name begins so.
    fn has_start(&self, start: &str) -> bool {
        let mut after = self
            .tensors
            .range::<str, _>((Bound::Included(start), Bound::Unbounded));
        after
            .next()
            .is_some_and(|(name, _)| name.starts_with(start))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self.tensors.get(name)? {
            LoraTensor::Named(own) => self.file.info(own).map(|info| info.shape),
            LoraTensor::Made(value) => Some(value.shape().to_vec()),
        }
    }

    fn file_name(&self) -> String {
        self.path().display().to_string()
    }

    /// A tensor, every value of which is a number.
    fn read(&self, name: &str) -> Result<Option<Stored>, LoraProblem> {
        let value = match self.tensors.get(name) {
            None => return Ok(None),
            Some(LoraTensor::Made(value)) => value.clone(),
            Some(LoraTensor::Named(own)) => self.stored(own)?,
        };
        let plain = value.to_f32().map_err(|e| self.unusable(name, &e))?;
        if plain.data().iter().any(|v| !v.is_finite()) {
            return Err(LoraProblem::NotFinite {
                file: self.file_name(),
                name: name.to_owned(),
            });
        }
        Ok(Some(value))
    }

    fn unusable(&self, name: &str, reason: &dyn std::fmt::Display) -> LoraProblem {
        LoraProblem::Unusable {
            file: self.file_name(),
            name: name.to_owned(),
            reason: reason.to_string(),
        }
    }

    fn scalar(&self, name: &str) -> Result<Option<f64>, LoraProblem> {
        let Some(value) = self.read(name)? else {
            return Ok(None);
        };
        let plain = value.to_f32().map_err(|e| self.unusable(name, &e))?;
        match plain.data() {
            [value] => Ok(Some(f64::from(*value))),
            _ => Err(self.unusable(
                name,
                &format!("shape {:?} is not one number", plain.shape()),
            )),
        }
    }
}

/// Reads the parts of one base name and remembers which names it took.
struct Reader<'a> {
    file: &'a LoraFile,
    base: &'a str,
    used: &'a mut BTreeSet<String>,
}

impl Reader<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.base)
    }

    fn has(&self, suffix: &str) -> bool {
        self.file.has(&self.name(suffix))
    }

    fn optional(&mut self, suffix: &str) -> Result<Option<Stored>, LoraProblem> {
        let name = self.name(suffix);
        let found = self.file.read(&name)?;
        if found.is_some() {
            self.used.insert(name);
        }
        Ok(found)
    }

    /// A part that must be there because `because` is.
    fn required(&mut self, suffix: &str, because: &str) -> Result<Stored, LoraProblem> {
        self.optional(suffix)?
            .ok_or_else(|| LoraProblem::Incomplete {
                file: self.file.file_name(),
                name: self.name(because),
                missing: self.name(suffix),
            })
    }

    fn lora(&mut self) -> Result<Option<Kind>, LoraProblem> {
        /// Spellings of the two matrices, the first that is there counts.
        const PAIRS: [(&str, &str); 8] = [
            (".lora_up.weight", ".lora_down.weight"),
            ("_lora.up.weight", "_lora.down.weight"),
            (".lora_B.weight", ".lora_A.weight"),
            (".lora.up.weight", ".lora.down.weight"),
            (".lora_B", ".lora_A"),
            (
                ".lora_linear_layer.up.weight",
                ".lora_linear_layer.down.weight",
            ),
            (".lora_B.default.weight", ".lora_A.default.weight"),
            (".up.weight", ".down.weight"),
        ];
        let Some((index, (up, down))) = PAIRS.into_iter().enumerate().find(|(_, p)| self.has(p.0))
        else {
            return Ok(None);
        };
        let mid = if index == 0 {
            self.optional(".lora_mid.weight")?
        } else {
            None
        };
        let reshape = match self.optional(".reshape_weight")? {
            None => None,
            Some(value) => {
                let name = self.name(".reshape_weight");
                let sizes = value.to_f32().map_err(|e| self.file.unusable(&name, &e))?;
                let sane = sizes
                    .data()
                    .iter()
                    .all(|v| *v >= 1.0 && *v <= 1e7 && v.fract() == 0.0);
                if !sane {
                    return Err(self.file.unusable(&name, &"it is not a list of sizes"));
                }
                Some(sizes.data().iter().map(|v| *v as usize).collect())
            }
        };
        Ok(Some(Kind::Lora {
            up: self.required(up, down)?,
            down: self.required(down, up)?,
            mid,
            reshape,
        }))
    }

    fn loha(&mut self) -> Result<Option<Kind>, LoraProblem> {
        let first = ".hada_w1_a";
        if !self.has(first) {
            return Ok(None);
        }
        let cores = match self.optional(".hada_t1")? {
            None => None,
            Some(t1) => Some((t1, self.required(".hada_t2", ".hada_t1")?)),
        };
        Ok(Some(Kind::Loha {
            w1_a: self.required(first, first)?,
            w1_b: self.required(".hada_w1_b", first)?,
            w2_a: self.required(".hada_w2_a", first)?,
            w2_b: self.required(".hada_w2_b", first)?,
            cores,
        }))
    }

    fn lokr(&mut self) -> Result<Option<Kind>, LoraProblem> {
        let parts = [".lokr_w1", ".lokr_w2", ".lokr_w1_a", ".lokr_w2_a"];
        let Some(first) = parts.into_iter().find(|p| self.has(p)) else {
            return Ok(None);
        };
        let mut factor = |whole: &str, core: Option<&str>| -> Result<Factor, LoraProblem> {
            if let Some(value) = self.optional(whole)? {
                return Ok(Factor::Whole(value));
            }
            let core = core.map_or(Ok(None), |name| self.optional(name))?;
            Ok(Factor::Product {
                a: self.required(&format!("{whole}_a"), first)?,
                b: self.required(&format!("{whole}_b"), first)?,
                core,
            })
        };
        Ok(Some(Kind::Lokr {
            w1: factor(".lokr_w1", None)?,
            w2: factor(".lokr_w2", Some(".lokr_t2"))?,
        }))
    }

    fn glora(&mut self) -> Result<Option<Kind>, LoraProblem> {
        let first = ".a1.weight";
        if !self.has(first) {
            return Ok(None);
        }
        Ok(Some(Kind::Glora {
            a1: self.required(first, first)?,
            a2: self.required(".a2.weight", first)?,
            b1: self.required(".b1.weight", first)?,
            b2: self.required(".b2.weight", first)?,
        }))
    }

    fn rotation(&mut self) -> Result<Option<Kind>, LoraProblem> {
        let first = ".oft_blocks";
        let rank = self.file.shape(&self.name(first)).map(|s| s.len());
        match rank {
            Some(3) => {
                // Stored with some files, never used.
                self.optional(".rescale")?;
                Ok(Some(Kind::Oft {
                    blocks: self.required(first, first)?,
                }))
            }
            Some(4) => Ok(Some(Kind::Boft {
                blocks: self.required(first, first)?,
                rescale: self.optional(".rescale")?,
            })),
            _ => Ok(None),
        }
    }

    /// The adapter of this name. Of several kinds the last counts.
    fn adapter(&mut self) -> Result<Option<Adapter>, LoraProblem> {
        let alpha_name = self.name(".alpha");
        let alpha = self.file.scalar(&alpha_name)?;
        if alpha.is_some() {
            self.used.insert(alpha_name);
        }
        let dora_scale = self.optional(".dora_scale")?;
        let found = [
            self.lora()?,
            self.loha()?,
            self.lokr()?,
            self.glora()?,
            self.rotation()?,
        ];
        let kind = found.into_iter().flatten().next_back();
        Ok(kind.map(|kind| Adapter {
            kind,
            alpha,
            dora_scale,
        }))
    }
}

/// What a model takes from a file.
#[derive(Default)]
pub struct Loaded {
    /// The change of each target and the number of names it is made of.
    changes: IndexMap<Target, (Change, u64)>,
    /// Names in the file that no weight of the model is called.
    pub unused: Vec<String>,
    /// Names that were used.
    pub used: usize,
}

impl Loaded {
    /// What would change, in the order of the name map.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.changes.keys()
    }

    /// The patches of a strength for the keys a model has.
    pub fn patches(&self, strength: f64, has: impl Fn(&str) -> bool) -> Vec<(String, Patch)> {
        let ours = self.changes.iter().filter(|(target, _)| has(&target.key));
        ours.map(|(target, (change, source))| {
            let patch = Patch {
                strength,
                slice: target.slice,
                reorder: target.reorder,
                change: change.clone(),
                source: *source,
                ..Patch::scaled(1.0)
            };
            (target.key.clone(), patch)
        })
        .collect()
    }
}

/// Everything in a file that the names lead to.
pub fn load(file: &LoraFile, names: &NameMap) -> Result<Loaded, LoraProblem> {
    let mut loaded = Loaded::default();
    let mut used = BTreeSet::new();
    // Most files use one spelling of many, so names without any tensor are passed over at once.
    for (base, target) in names.iter() {
        if !file.has_start(base) {
            continue;
        }
        let mut reader = Reader {
            file,
            base,
            used: &mut used,
        };
        let mut found = Vec::new();
        if let Some(adapter) = reader.adapter()? {
            found.push((target.clone(), Change::Adapter(Arc::new(adapter))));
        }
        let diff = |value| Change::Diff { value, pad: false };
        if let Some(value) = reader.optional(".w_norm")? {
            found.push((target.clone(), diff(value)));
            if let Some(bias) = target.bias()
                && let Some(value) = reader.optional(".b_norm")?
            {
                found.push((bias, diff(value)));
            }
        }
        if let Some(value) = reader.optional(".diff")? {
            found.push((target.clone(), diff(value)));
        }
        if let Some(bias) = target.bias()
            && let Some(value) = reader.optional(".diff_b")?
        {
            found.push((bias, diff(value)));
        }
        if let Some(value) = reader.optional(".set_weight")? {
            found.push((target.clone(), Change::Set(value)));
        }
        for (index, (target, change)) in found.into_iter().enumerate() {
            let mut hasher = DefaultHasher::new();
            (file.identity, base, index).hash(&mut hasher);
            loaded.changes.insert(target, (change, hasher.finish()));
        }
    }
    loaded.used = used.len();
    loaded.unused = file
        .names()
        .filter(|name| !used.contains(*name))
        .map(str::to_owned)
        .collect();
    Ok(loaded)
}
