//! The networks of a run, each with the conditions that it follows.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, NodeError};
use fresco_models::ModelError;
use fresco_models::denoise::hooks::Check;
use fresco_models::denoise::{
    Encode, EncodeArgs, Guidance, Guider, Lists, ModelConds, Setting, prepare,
};

use super::driver::SampledNetwork;
use super::{Guided, Start, Steps, failure};
use crate::sampling::conds::Reader;
use crate::sampling::{BaseModel, Model};

/// One network of a run with the conditions that it follows.
pub(super) struct Side<'a> {
    model: &'a Model,
    base: &'a dyn BaseModel,
    pub(super) network: SampledNetwork<'a>,
    pub(super) lists: Lists,
    guidance: Guidance,
    /// What acts inside the network from beside it.
    beside: Vec<Arc<dyn Any + Send + Sync>>,
}

impl<'a> Side<'a> {
    /// The network that the whole run is about.
    pub(super) fn of_run(
        guided: &'a Guided,
        start: &'a Start,
        steps: &Steps<'_>,
        setting: &Setting<'_>,
        cx: &Cx,
    ) -> Result<Self, NodeError> {
        let (model, base) = (&guided.model, &*start.ready.network);
        let first = steps.sigmas[0];
        let mut reader = Reader::for_run(model, first, start.in_use.clone(), cx);
        let mut lists = Lists::new();
        for (name, list) in &guided.lists {
            if list.0.is_empty() {
                return Err(NodeError::value_error(format!(
                    "the {name} conditioning is empty: there is no prompt to sample with"
                )));
            }
            lists.push(((*name).into(), reader.read(list)?));
        }
        for cond in lists.iter_mut().flat_map(|(_, list)| list) {
            cond.seed = steps.seed;
        }
        Ok(Self {
            model,
            base,
            network: SampledNetwork::new(base, &guided.model.sampling, start.in_use.as_deref()),
            lists: prepared(lists, base, setting)?,
            guidance: guided.guidance,
            beside: start.beside.clone(),
        })
    }

    /// The network for the negative prompt, where there is one of its own, and the strength of guidance away from it.
    pub(super) fn negative(
        guided: &'a Guided,
        start: &'a Start,
        steps: &Steps<'_>,
        setting: &Setting<'_>,
        cx: &Cx,
    ) -> Result<Option<(Self, f64)>, NodeError> {
        let (Some(ready), Some(other)) = (&start.negative, guided.negative.as_deref()) else {
            return Ok(None);
        };
        let (model, base) = (&other.model, &*ready.network);
        let first = steps.sigmas[0];
        let mut reader = Reader::for_run(model, first, start.in_use.clone(), cx);
        let lists = vec![("negative".into(), reader.read(&other.conditioning)?)];
        let mut lists = prepared(lists, base, setting)?;
        // Alone in its guider, it is what that one follows.
        for (name, _) in &mut lists {
            *name = "positive".into();
        }
        let Guidance::Cfg { cfg } = guided.guidance else {
            return Err(NodeError::value_error(
                "two models are guided by one strength",
            ));
        };
        let shape = start.noise.shape();
        let additions = model.additions.iter();
        let beside = additions.map(|one| one.for_run(model, shape, cx));
        let side = Self {
            model,
            base,
            // Both are sampled as the first one is.
            network: SampledNetwork::new(base, &guided.model.sampling, start.in_use.as_deref()),
            lists,
            guidance: Guidance::Cfg { cfg: 1.0 },
            beside: beside.collect::<Result<Vec<_>, _>>()?,
        };
        Ok(Some((side, cfg)))
    }

    /// Makes what of a condition goes into the network.
    pub(super) fn encoder(&self) -> impl Fn(&EncodeArgs<'_>) -> EncodedConds + use<'a> {
        let base = self.base;
        move |args| base.extra_conds(args)
    }

    /// Joins this network's predictions, with all that acts inside of it.
    pub(super) fn guider(
        &'a self,
        start: &Start,
        steps: &Steps<'_>,
        setting: Setting<'a>,
        encode: &'a Encode<'a>,
        cx: &Cx,
    ) -> Guider<'a> {
        let patches = &self.model.patches;
        let (network, lists) = (&self.network, &self.lists);
        let mut guider = Guider::new(network, lists, self.guidance, patches, setting, encode);
        let hooks = guider.hooks_mut();
        hooks.check = Some(stop_when_interrupted(cx));
        hooks.beside.extend(self.beside.iter().cloned());
        hooks.seed = steps.seed;
        hooks.schedule = steps.sigmas.into();
        hooks.parts.clone_from(&start.parts);
        guider
    }
}

type EncodedConds = Result<ModelConds, ModelError>;

fn prepared(lists: Lists, base: &dyn BaseModel, setting: &Setting<'_>) -> Result<Lists, NodeError> {
    prepare(lists, setting, &|args: &EncodeArgs<'_>| {
        base.extra_conds(args)
    })
    .map_err(failure)
}

/// Ends a pass between two blocks when the prompt was interrupted.
fn stop_when_interrupted(cx: &Cx) -> Check {
    let services = cx.services.clone();
    Arc::new(move || {
        if services.interrupted() {
            Err(ModelError::Cancelled)
        } else {
            Ok(())
        }
    })
}
