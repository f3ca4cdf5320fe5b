//! Whole lists: order, duplicates, overview, grouping by size.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value, map};
use fresco_tensor::{Generator, Tensor};
use indexmap::IndexMap;

use super::Picture;
use crate::types::{Cond, Conditioning, Image, Latent, tensor};

/// The value of an input that arrives as a list but means one thing.
fn single<T: Copy>(name: &str, list: &[T]) -> Result<T, NodeError> {
    list.first()
        .copied()
        .ok_or_else(|| NodeError::failed("IndexError", format!("list index out of range: {name}")))
}

/// Brings a list of pictures into a random order.
#[derive(Node)]
#[node(id = "ShuffleDataset", v3, module = "comfy_extras.nodes_dataset", display = "Shuffle Image Dataset",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images").list()), experimental, input_is_list)]
pub(super) struct ShuffleDataset {
    images: Vec<Image>,
    /// The same number gives the same order.
    #[input(default = 0, min = 0, max = 18446744073709551615u64)]
    seed: Vec<u64>,
}

impl Node for ShuffleDataset {
    fn run(self, _: &Cx) -> NodeResult {
        let mut random = Generator::numpy(single("seed", &self.seed)?);
        let shuffled: Vec<Image> = random
            .numpy_permutation(self.images.len() as u32)
            .into_iter()
            .map(|i| self.images[i].clone())
            .collect();
        Ok(NodeOutput::one(shuffled))
    }
}

/// Brings pictures and their texts into the same random order.
#[derive(Node)]
#[node(id = "ShuffleImageTextDataset", v3, module = "comfy_extras.nodes_dataset",
       display = "Shuffle Image-Text Dataset", category = "dataset/image",
       outputs(Output::new("IMAGE").named("images").list(), Output::new("STRING").named("texts").list()),
       experimental, input_is_list)]
pub(super) struct ShuffleImageTextDataset {
    images: Vec<Image>,
    texts: Vec<Arc<str>>,
    /// The same number gives the same order.
    #[input(default = 0, min = 0, max = 18446744073709551615u64)]
    seed: Vec<u64>,
}

impl Node for ShuffleImageTextDataset {
    fn run(self, _: &Cx) -> NodeResult {
        if self.texts.len() < self.images.len() {
            return Err(NodeError::failed("IndexError", "list index out of range"));
        }
        let mut random = Generator::numpy(single("seed", &self.seed)?);
        let order = random.numpy_permutation(self.images.len() as u32);
        let images: Vec<Image> = order.iter().map(|i| self.images[*i].clone()).collect();
        let texts: Vec<&Arc<str>> = order.iter().map(|i| &self.texts[*i]).collect();
        Ok(NodeOutput::slots(vec![images.into(), texts.into()]))
    }
}

/// Drops pictures that look like an earlier one of the list.
#[derive(Node)]
#[node(id = "ImageDeduplication", v3, module = "comfy_extras.nodes_dataset", display = "Image Deduplication",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images").list()), experimental, input_is_list)]
pub(super) struct ImageDeduplication {
    images: Vec<Image>,
    /// From 0 (everything is alike) to 1 (only equal pictures are).
    #[input(default = 0.95, min = 0.0, max = 1.0)]
    similarity_threshold: Vec<f64>,
}

impl Node for ImageDeduplication {
    fn run(self, cx: &Cx) -> NodeResult {
        let threshold = single("similarity_threshold", &self.similarity_threshold)?;
        let mut marks: Vec<u64> = Vec::new();
        let mut kept = Vec::new();
        for image in self.images {
            cx.check_interrupt()?;
            let mark = average_hash(&image.0)?;
            let seen = marks.iter().any(|m| {
                let alike = 1.0 - f64::from((m ^ mark).count_ones()) / 64.0;
                alike >= threshold
            });
            if !seen {
                marks.push(mark);
                kept.push(image);
            }
        }
        Ok(NodeOutput::one(kept))
    }
}

/// One bit for each of 8 x 8 places: brighter than the mean or not.
fn average_hash(image: &Tensor) -> Result<u64, NodeError> {
    let grey = Picture::only(image)?.resize(8, 8)?.grey()?;
    let mean = grey.iter().map(|v| u32::from(*v)).sum::<u32>() as f64 / 64.0;
    Ok(grey
        .iter()
        .fold(0, |bits, v| bits << 1 | u64::from(f64::from(*v) > mean)))
}

/// Puts all pictures of a list into the cells of one large picture.
#[derive(Node)]
#[node(id = "ImageGrid", v3, module = "comfy_extras.nodes_dataset", display = "Image Grid",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images")), experimental, input_is_list)]
pub(super) struct ImageGrid {
    images: Vec<Image>,
    /// Pictures in a row.
    #[input(default = 4, min = 1, max = 20)]
    columns: Vec<usize>,
    /// Width of a cell in pixels.
    #[input(default = 256, min = 32, max = 2048)]
    cell_width: Vec<usize>,
    /// Height of a cell in pixels.
    #[input(default = 256, min = 32, max = 2048)]
    cell_height: Vec<usize>,
    /// Pixels between cells.
    #[input(default = 4, min = 0, max = 50)]
    padding: Vec<usize>,
}

impl Node for ImageGrid {
    fn run(self, cx: &Cx) -> NodeResult {
        let columns = single("columns", &self.columns)?;
        let (w, h) = (
            single("cell_width", &self.cell_width)?,
            single("cell_height", &self.cell_height)?,
        );
        let gap = single("padding", &self.padding)?;
        let sizes = [columns, w, h];
        if self.images.is_empty()
            || sizes.contains(&0)
            || sizes.iter().any(|s| *s > 1 << 16)
            || gap > 1 << 16
        {
            return Err(NodeError::value_error(
                "Cannot create grid from empty image list",
            ));
        }
        let rows = self.images.len().div_ceil(columns);
        let side = |count: usize, cell: usize| count * cell + (count - 1) * gap;
        let mut grid = Tensor::zeros([1, side(rows, h), side(columns, w), 3])?;
        for (i, image) in self.images.iter().enumerate() {
            cx.check_interrupt()?;
            let cell = Picture::only(&image.0)?.resize(w, h)?.tensor()?;
            let cell = cell.narrow(3, 0, 3)?;
            let (row, column) = (i / columns, i % columns);
            grid.paste(&[0, row * (h + gap), column * (w + gap), 0], &cell)?;
        }
        Ok(NodeOutput::one(Image(grid)))
    }
}

/// Joins lists of pictures into one.
#[derive(Node)]
#[node(id = "MergeImageLists", v3, module = "comfy_extras.nodes_dataset", display = "Merge Image Lists",
       category = "dataset/image", outputs(Output::new("IMAGE").named("images").list()), experimental, input_is_list)]
pub(super) struct MergeImageLists {
    images: Vec<Image>,
}

impl Node for MergeImageLists {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.images))
    }
}

/// Groups latents of equal size into batches, and their conditioning with them.
#[derive(Node)]
#[node(id = "ResolutionBucket", v3, module = "comfy_extras.nodes_dataset", display = "Resolution Bucket",
       category = "dataset", outputs(Output::new("LATENT").named("latents").list(),
       Output::new("CONDITIONING").named("conditioning").list()), experimental, input_is_list)]
pub(super) struct ResolutionBucket {
    /// The latents to sort by size.
    latents: Vec<Latent>,
    /// The prompts, one for each latent.
    conditioning: Vec<Conditioning>,
}

impl Node for ResolutionBucket {
    fn run(self, _: &Cx) -> NodeResult {
        if self.latents.len() != self.conditioning.len() {
            return Err(NodeError::value_error(format!(
                "Number of latents ({}) does not match number of conditions ({}).",
                self.latents.len(),
                self.conditioning.len()
            )));
        }
        let mut buckets: IndexMap<Vec<usize>, (Vec<Tensor>, Vec<Cond>)> = IndexMap::new();
        for (latent, conds) in self.latents.iter().zip(&self.conditioning) {
            let samples = latent.samples()?;
            let size = samples.shape()[samples.rank().saturating_sub(2)..].to_vec();
            for i in 0..samples.dim(0)? {
                let cond = conds.0.get(i).ok_or_else(|| {
                    NodeError::failed(
                        "IndexError",
                        "list index out of range: a latent has no condition",
                    )
                })?;
                let (tensors, list) = buckets.entry(size.clone()).or_default();
                tensors.push(samples.narrow(0, i, 1)?);
                list.push(cond.clone());
            }
        }
        let mut latents: Vec<Value> = Vec::new();
        let mut conditioning = Vec::new();
        for (tensors, conds) in buckets.into_values() {
            let all: Vec<&Tensor> = tensors.iter().collect();
            latents.push(map! {"samples" => tensor(Tensor::cat(&all, 0)?)}.into());
            conditioning.push(Conditioning(conds));
        }
        Ok(NodeOutput::slots(vec![latents.into(), conditioning.into()]))
    }
}
