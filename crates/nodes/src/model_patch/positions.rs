//! Where networks think tokens are.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
use fresco_models::transformer::RopeScale;

use crate::sampling::Model;
use crate::sampling::model::ModelAddition;

/// Moves tokens apart or together for models that know where tokens are by turned pairs of channels.
#[derive(Node)]
#[node(
    id = "ScaleROPE",
    v3,
    module = "comfy_extras.nodes_rope",
    category = "advanced/model_patches",
    experimental,
    outputs("MODEL")
)]
pub(super) struct ScaleRope {
    model: Model,
    /// Factor of the distance between columns; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.1)]
    scale_x: f64,
    /// Columns by which tokens move.
    #[input(default = 0.0, min = -256.0, max = 256.0, step = 0.1)]
    shift_x: f64,
    /// Factor of the distance between rows; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.1)]
    scale_y: f64,
    /// Rows by which tokens move.
    #[input(default = 0.0, min = -256.0, max = 256.0, step = 0.1)]
    shift_y: f64,
    /// Factor of the distance between frames; 1 changes nothing.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.1)]
    scale_t: f64,
    /// Frames by which tokens move.
    #[input(default = 0.0, min = -256.0, max = 256.0, step = 0.1)]
    shift_t: f64,
}

impl Node for ScaleRope {
    fn run(self, _: &Cx) -> NodeResult {
        let mut model = self.model;
        model.additions.push(Arc::new(Moved(RopeScale {
            scale: [self.scale_t, self.scale_y, self.scale_x],
            shift: [self.shift_t, self.shift_y, self.shift_x],
        })));
        Ok(NodeOutput::one(model))
    }
}

struct Moved(RopeScale);

impl ModelAddition for Moved {
    fn handle(&self) -> Option<&Handle> {
        None
    }

    fn for_run(
        &self,
        _: &Model,
        _: &[usize],
        _: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        Ok(Arc::new(self.0))
    }
}
