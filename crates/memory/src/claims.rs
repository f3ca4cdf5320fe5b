//! Who wants a model to stay or to go. The only place where a policy is written down, and the only function that says
//! which one counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::{ClaimReport, ContentKey, ModelId, Policy, PolicySource, Who};

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
}

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

    /// `keep of node 4`.
    pub(crate) fn describe(&self) -> String {
        let by = match (self.source, &*self.node) {
            (PolicySource::Api, _) => "set by the API".to_owned(),
            (_, "") => "set without a node".to_owned(),
            (source, node) => format!("set by node {node} ({})", source.name()),
        };
        format!("{} {by}", self.policy)
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
pub(crate) struct Claims(Vec<Claim>);

impl Claims {
    /// A claim replaces the one its claimant had.
    pub(crate) fn set(&mut self, claim: Claim) {
        self.remove_of(&claim);
        self.0.push(claim);
    }

    /// Takes the claim of the same claimant away.
    pub(crate) fn remove_of(&mut self, claim: &Claim) {
        self.0.retain(|old| !old.same_claimant(claim));
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

    pub(crate) fn policy(&self) -> (Policy, PolicySource) {
        self.winner()
            .map_or((Policy::Auto, PolicySource::Default), |claim| {
                (claim.policy, claim.source)
            })
    }

    /// Why the policy is what it is.
    pub(crate) fn why(&self) -> String {
        self.winner().map_or_else(
            || "auto: stays until its place is needed".to_owned(),
            Claim::describe,
        )
    }

    /// Eject-after claims that lose against a stronger one.
    pub(crate) fn beaten(&self) -> Vec<&Claim> {
        let (policy, _) = self.policy();
        let beaten =
            |claim: &&Claim| claim.policy == Policy::EjectAfter && policy > Policy::EjectAfter;
        self.active().filter(beaten).collect()
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

    /// Carries out what ends with a prompt: those claims sleep. Gives their handles.
    pub(crate) fn end(&mut self, prompt: &str, touched: bool) -> Vec<ModelId> {
        let mut models = Vec::new();
        for claim in &mut self.0 {
            let ends = claim.policy == Policy::EjectAfter
                && (&*claim.prompt == prompt || (touched && claim.source == PolicySource::Api));
            if ends && !claim.asleep {
                claim.asleep = true;
                models.extend(claim.model);
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
    /// again, for this one. Whether something woke.
    pub(crate) fn wake(
        &mut self,
        models: &[ModelId],
        prompt: &Arc<str>,
        runs: impl Fn(&Arc<str>) -> bool,
    ) -> bool {
        let mut woke = false;
        for claim in &mut self.0 {
            let mine = claim.model.is_some_and(|model| models.contains(&model));
            let over = claim.policy == Policy::EjectAfter && !runs(&claim.prompt);
            if mine && (claim.asleep || over) {
                woke |= claim.asleep;
                claim.asleep = false;
                claim.prompt = Arc::clone(prompt);
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
