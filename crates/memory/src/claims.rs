//! Who wants a model to stay or to go. The only place where a policy is written down, and the only function that says
//! which one counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::reason::{NodePlace, Wish};
use crate::{ClaimReport, ContentKey, ModelId, Policy, PolicySource, SetBy, Who};

/// Where weights come from, whatever the file holds now: a loader that reads a changed file is the same claimant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    paths: Vec<PathBuf>,
    component: String,
    options: String,
}

impl Location {
    pub(crate) fn of(key: &ContentKey) -> Self {
        Self {
            paths: key.files.iter().map(|file| file.path.clone()).collect(),
            component: key.component.clone(),
            options: key.options.clone(),
        }
    }

    /// Another part of the same files: a loader of a checkpoint has claims on all of them at once.
    pub(crate) fn is_sibling(&self, other: &Self) -> bool {
        self.paths == other.paths && self.component != other.component
    }

    /// The file as people know it.
    pub(crate) fn file_name(&self) -> String {
        let name = self.paths.first().and_then(|path| path.file_name());
        name.map_or_else(
            || "another model".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        )
    }
}

/// Claims on one model beyond this many push the oldest of the weakest out: whoever makes up a new client id for every
/// prompt must not fill the memory with wishes.
const MOST_CLAIMS: usize = 64;

/// One wish. Of one claimant (client and node) there is one for the same weights.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) client: Arc<str>,
    pub(crate) node: Arc<str>,
    /// The prompt that made it or, for what ends with a prompt, the one that used it last.
    pub(crate) prompt: Arc<str>,
    pub(crate) model: Option<ModelId>,
    pub(crate) policy: Policy,
    pub(crate) source: PolicySource,
    pub(crate) at: SystemTime,
    /// Its time has come and it was carried out. It counts again as soon as its handle is used again: a loader whose
    /// answer is remembered does not run again, but means what it meant.
    pub(crate) asleep: bool,
}

impl Claim {
    pub(crate) fn new(
        who: &Who,
        model: Option<ModelId>,
        policy: Policy,
        source: PolicySource,
    ) -> Self {
        Self {
            client: Arc::clone(&who.client),
            node: Arc::clone(&who.node),
            prompt: Arc::clone(&who.prompt),
            model,
            policy,
            source,
            at: SystemTime::now(),
            asleep: false,
        }
    }

    fn same_claimant(&self, other: &Self) -> bool {
        let api = |claim: &Self| claim.source == PolicySource::Api;
        self.client == other.client && self.node == other.node && api(self) == api(other)
    }

    pub(crate) fn set_by(&self) -> SetBy {
        SetBy {
            source: self.source,
            node: Arc::clone(&self.node),
            client: Arc::clone(&self.client),
        }
    }

    /// As it counts now.
    pub(crate) fn wish(&self) -> Wish {
        Wish {
            policy: self.policy,
            set_by: self.set_by(),
        }
    }

    /// Whether this is the same wish of the same claimant.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.same_claimant(other) && self.policy == other.policy
    }

    /// Whether it belongs to a place in a workflow: a node of a prompt, not a request.
    pub(crate) fn has_place(&self) -> bool {
        self.source != PolicySource::Api && !self.node.is_empty()
    }

    /// Where it was made.
    pub(crate) fn place(&self) -> NodePlace {
        NodePlace {
            node: Arc::clone(&self.node),
            client: Arc::clone(&self.client),
        }
    }

    fn report(&self) -> ClaimReport {
        ClaimReport {
            client: Arc::clone(&self.client),
            node: Arc::clone(&self.node),
            prompt: Arc::clone(&self.prompt),
            policy: self.policy,
            source: self.source,
            at: self.at,
        }
    }
}

/// The claims on one entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(pub(crate) Vec<Claim>);

impl Claims {
    /// A claim replaces the one its claimant had.
    pub(crate) fn set(&mut self, claim: Claim) {
        self.remove_of(&claim);
        self.0.push(claim);
        if self.0.len() > MOST_CLAIMS {
            // Without the one just made.
            let old = &self.0[..self.0.len() - 1];
            let weakest = (0..old.len()).min_by_key(|at| (!old[*at].asleep, old[*at].policy));
            if let Some(at) = weakest {
                self.0.remove(at);
            }
        }
    }

    /// Takes the claim of the same claimant away.
    pub(crate) fn remove_of(&mut self, claim: &Claim) -> Option<Claim> {
        let at = self.0.iter().position(|old| old.same_claimant(claim))?;
        Some(self.0.remove(at))
    }

    /// The same claimant speaks of something else now, in another prompt: what it said here counts no more. Gives the
    /// claim as it was. It sleeps, since a loader whose answer is remembered may mean it again; without a handle nobody
    /// could.
    pub(crate) fn supersede(&mut self, by: &Claim) -> Option<Claim> {
        let at = self
            .0
            .iter()
            .position(|old| !old.asleep && old.prompt != by.prompt && old.same_claimant(by))?;
        let ended = self.0[at].clone();
        if ended.model.is_some() && ended.policy > Policy::Auto {
            self.0[at].asleep = true;
        } else {
            self.0.remove(at);
        }
        Some(ended)
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &Claim> {
        self.0.iter().filter(|claim| !claim.asleep)
    }

    /// **The** policy: the strongest claim, of equal ones the first that was made. Auto where nobody claims anything.
    pub(crate) fn winner(&self) -> Option<&Claim> {
        // `max_by_key` gives the last of equal ones.
        self.0
            .iter()
            .rev()
            .filter(|claim| !claim.asleep)
            .max_by_key(|claim| claim.policy)
    }

    pub(crate) fn policy(&self) -> Policy {
        self.winner().map_or(Policy::Auto, |claim| claim.policy)
    }

    /// The policy with whose it is and why.
    pub(crate) fn effective(&self) -> Wish {
        self.winner().map(Claim::wish).unwrap_or_default()
    }

    /// Eject-after claims that lose against a stronger one.
    pub(crate) fn beaten(&self) -> impl Iterator<Item = &Claim> {
        let policy = self.policy();
        let beaten =
            move |claim: &&Claim| claim.policy == Policy::EjectAfter && policy > Policy::EjectAfter;
        self.active().filter(beaten)
    }

    /// Eject-after claims that end with this prompt. Those of the API end with any prompt that used the model.
    pub(crate) fn ending<'a>(
        &'a self,
        prompt: &'a str,
        touched: bool,
    ) -> impl Iterator<Item = &'a Claim> {
        self.active().filter(move |claim| {
            claim.policy == Policy::EjectAfter
                && (&*claim.prompt == prompt || (touched && claim.source == PolicySource::Api))
        })
    }

    /// Carries out what ends with a prompt: those claims sleep. Gives their handles, and what they were.
    pub(crate) fn end(&mut self, prompt: &str, touched: bool) -> Vec<(ModelId, Wish)> {
        let mut models = Vec::new();
        for claim in &mut self.0 {
            let ends = claim.policy == Policy::EjectAfter
                && (&*claim.prompt == prompt || (touched && claim.source == PolicySource::Api));
            if ends && !claim.asleep {
                claim.asleep = true;
                let was = claim.wish();
                models.extend(claim.model.map(|model| (model, was)));
            }
        }
        self.0
            .retain(|claim| !(claim.asleep && claim.model.is_none()));
        models
    }

    /// Times to live that ran out sleep too.
    pub(crate) fn expire(&mut self) {
        for claim in &mut self.0 {
            claim.asleep |= matches!(claim.policy, Policy::Ttl(_));
        }
        self.0
            .retain(|claim| !(claim.asleep && claim.model.is_none()));
    }

    /// A handle (or one it was made from) is used by a prompt: what sleeps, or belongs to a prompt that is over, counts
    /// again, for this one. Gives the claims that slept.
    pub(crate) fn wake(
        &mut self,
        models: &[ModelId],
        prompt: &Arc<str>,
        runs: impl Fn(&Arc<str>) -> bool,
    ) -> Vec<Claim> {
        let mut woke = Vec::new();
        for claim in &mut self.0 {
            let mine = claim.model.is_some_and(|model| models.contains(&model));
            let over = claim.policy == Policy::EjectAfter && !runs(&claim.prompt);
            if mine && (claim.asleep || over) {
                let slept = std::mem::take(&mut claim.asleep);
                claim.prompt = Arc::clone(prompt);
                if slept {
                    woke.push(claim.clone());
                }
            }
        }
        woke
    }

    /// Without handles there is nobody left that only said the default, and nobody to wake a claim that sleeps.
    pub(crate) fn without_handles(&mut self) {
        self.0
            .retain(|claim| !claim.asleep && claim.policy != Policy::Auto);
    }

    /// Somebody asked for the model to go, claims and all. Handles that eject after their prompt still mean it.
    pub(crate) fn forget(&mut self) {
        self.0
            .retain(|claim| claim.policy == Policy::EjectAfter && claim.model.is_some());
        for claim in &mut self.0 {
            claim.asleep = true;
        }
    }

    pub(crate) fn reports(&self) -> Vec<ClaimReport> {
        self.active().map(Claim::report).collect()
    }
}
