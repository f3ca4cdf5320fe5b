//! A file with tensors that are made of others of it: layers that were trained apart and are used as one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fresco_tensor::{Dtype, Stored, Tensor, TensorError, WeightError, WeightFile, WeightInfo};

use super::keys::UpscaleKeys;

type Make = Box<dyn Fn(&dyn WeightFile) -> Result<Tensor, WeightError> + Send + Sync>;

/// How a tensor is made.
pub(super) struct Recipe {
    shape: Vec<usize>,
    make: Make,
}

pub(super) struct MadeFile {
    file: Arc<dyn WeightFile>,
    made: BTreeMap<String, Recipe>,
}

impl MadeFile {
    pub(super) fn new(file: Arc<dyn WeightFile>, recipes: Vec<(String, Recipe)>) -> Self {
        Self {
            file,
            made: recipes.into_iter().collect(),
        }
    }
}

impl WeightFile for MadeFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.file.names();
        names.extend(self.made.keys().cloned());
        names.sort();
        names
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        match self.made.get(name) {
            Some(recipe) => Some(WeightInfo {
                dtype: Dtype::F32,
                shape: recipe.shape.clone(),
            }),
            None => self.file.info(name),
        }
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        match self.made.get(name) {
            Some(recipe) => Ok(Stored::from(&(recipe.make)(&*self.file)?)),
            None => self.file.read(name),
        }
    }

    fn metadata(&self) -> &[(String, String)] {
        self.file.metadata()
    }
}

/// A tensor of the file as f32.
fn tensor(file: &dyn WeightFile, name: &str) -> Result<Tensor, WeightError> {
    file.read(name)?.to_f32().map_err(|e| unfit(file, name, e))
}

fn unfit(file: &dyn WeightFile, name: &str, source: TensorError) -> WeightError {
    WeightError::Tensor {
        path: file.path().to_path_buf(),
        name: name.to_owned(),
        source,
    }
}

fn unlike(found: &[usize], wanted: &[usize]) -> TensorError {
    TensorError::Invalid {
        op: "weight",
        reason: format!("shapes {found:?} and {wanted:?} do not fit together"),
    }
}

/// A batch norm as what it multiplies each channel with and what it adds.
#[derive(Clone)]
struct BatchNorm([String; 4]);

const EPS: f32 = 1e-5;

impl BatchNorm {
    fn of(keys: &UpscaleKeys, name: &str) -> Self {
        let parts = ["weight", "bias", "running_mean", "running_var"];
        Self(parts.map(|part| keys.whole(&format!("{name}.{part}"))))
    }

    fn read(&self, file: &dyn WeightFile) -> Result<(Vec<f32>, Vec<f32>), WeightError> {
        let [weight, bias, mean, var] = &self.0;
        let read = |name: &String| Ok::<_, WeightError>(tensor(file, name)?.into_vec());
        let (weight, bias) = (read(weight)?, read(bias)?);
        let (mean, var) = (read(mean)?, read(var)?);
        let factors = weight.iter().zip(&var).map(|(w, v)| w / (v + EPS).sqrt());
        let factors: Vec<f32> = factors.collect();
        let add = bias.iter().zip(&mean).zip(&factors);
        let add = add
            .map(|((bias, mean), factor)| bias - mean * factor)
            .collect();
        Ok((factors, add))
    }
}

/// The weight and the bias of a layer with the batch norm behind it, under the layer's own name.
pub(super) fn with_norm(
    keys: &UpscaleKeys,
    layer: &str,
    norm: &str,
    shape: Vec<usize>,
) -> [(String, Recipe); 2] {
    let names = ["weight", "bias"].map(|part| keys.whole(&format!("{layer}.{part}")));
    let norm = BatchNorm::of(keys, norm);
    let rows = shape.first().copied().unwrap_or(0);
    let [weight_name, bias_name] = names;
    let (for_weight, for_bias) = (norm.clone(), norm);
    let weight = Recipe {
        shape,
        make: Box::new(move |file| {
            let (factors, _) = for_weight.read(file)?;
            let weight = tensor(file, &weight_name)?;
            let row = weight.len() / factors.len().max(1);
            Ok(weight.map_indexed(|i, v| v * factors.get(i / row.max(1)).copied().unwrap_or(0.0)))
        }),
    };
    let bias = Recipe {
        shape: vec![rows],
        make: Box::new(move |file| {
            let (factors, add) = for_bias.read(file)?;
            let bias = tensor(file, &bias_name)?;
            let pairs = factors.iter().zip(&add);
            let pairs: Vec<_> = pairs.collect();
            Ok(bias.map_indexed(|i, v| pairs.get(i).map_or(0.0, |(f, a)| v * **f + **a)))
        }),
    };
    [
        (format!("{layer}.weight"), weight),
        (format!("{layer}.bias"), bias),
    ]
}

/// The kernels (c, 1, side, side) of a depthwise convolution as (side * side + 1, c), the last row the bias, with the batch
/// norm behind it if there is one. The key ends with `taps`.
pub(super) fn taps(
    keys: &UpscaleKeys,
    layer: &str,
    norm: Option<&str>,
    (channels, side): (usize, usize),
) -> (String, Recipe) {
    let weight = keys.whole(&format!("{layer}.weight"));
    let bias = format!("{layer}.bias");
    let bias = keys.has(&bias).then(|| keys.whole(&bias));
    let norm = norm.map(|norm| BatchNorm::of(keys, norm));
    let count = side * side;
    let make = move |file: &dyn WeightFile| {
        let kernels = tensor(file, &weight)?;
        let bias = bias.as_ref().map(|name| tensor(file, name)).transpose()?;
        let norm = norm.as_ref().map(|norm| norm.read(file)).transpose()?;
        if kernels.len() != channels * count {
            let source = unlike(kernels.shape(), &[channels, 1, side, side]);
            return Err(unfit(file, &weight, source));
        }
        let made = Tensor::from_fn([count + 1, channels], |i| {
            let (tap, c) = (i / channels, i % channels);
            let factor = norm.as_ref().map_or(1.0, |(factors, _)| factors[c]);
            if tap < count {
                return kernels.data()[c * count + tap] * factor;
            }
            let bias = bias.as_ref().map_or(0.0, |bias| bias.data()[c]);
            bias * factor + norm.as_ref().map_or(0.0, |(_, add)| add[c])
        });
        made.map_err(|e| unfit(file, &weight, e))
    };
    let recipe = Recipe {
        shape: vec![count + 1, channels],
        make: Box::new(make),
    };
    (format!("{layer}.taps"), recipe)
}

/// Three convolutions in a row (1x1, 3x3, 1x1) and a 1x1 beside them as one 3x3: weight and bias under the layer's name.
pub(super) fn merged(
    keys: &UpscaleKeys,
    layer: &str,
    out: usize,
    input: usize,
) -> [(String, Recipe); 2] {
    let parts = ["conv.0", "conv.1", "conv.2", "sk"];
    let names = |part: &str| {
        let end = |end: &str| keys.whole(&format!("{layer}.{part}.{end}"));
        [end("weight"), end("bias")]
    };
    let all = Arc::new(parts.map(names));
    let again = Arc::clone(&all);
    let weight = Recipe {
        shape: vec![out, input, 3, 3],
        make: Box::new(move |file| {
            let (weight, _) = merge(file, &all, out, input)?;
            Tensor::from_vec([out, input, 3, 3], weight).map_err(|e| unfit(file, &all[0][0], e))
        }),
    };
    let bias = Recipe {
        shape: vec![out],
        make: Box::new(move |file| {
            let (_, bias) = merge(file, &again, out, input)?;
            Ok(Tensor::from_slice(&bias))
        }),
    };
    [
        (format!("{layer}.weight"), weight),
        (format!("{layer}.bias"), bias),
    ]
}

fn merge(
    file: &dyn WeightFile,
    names: &[[String; 2]; 4],
    out: usize,
    input: usize,
) -> Result<(Vec<f32>, Vec<f32>), WeightError> {
    let read = |i: usize, j: usize| Ok::<_, WeightError>(tensor(file, &names[i][j])?.into_vec());
    let (first, first_bias) = (read(0, 0)?, read(0, 1)?);
    let (second, second_bias) = (read(1, 0)?, read(1, 1)?);
    let (third, third_bias) = (read(2, 0)?, read(2, 1)?);
    let (beside, beside_bias) = (read(3, 0)?, read(3, 1)?);
    let (a, b) = (first_bias.len(), second_bias.len());
    let lengths = first.len() == a * input
        && second.len() == b * a * 9
        && third.len() == out * b
        && beside.len() == out * input
        && (third_bias.len(), beside_bias.len()) == (out, out);
    if !lengths {
        let source = unlike(&[out, input], &[a, b]);
        return Err(unfit(file, &names[0][0], source));
    }
    // (b, input, 9): the second after the first.
    let mut inner = vec![0.0f64; b * input * 9];
    let mut inner_bias = vec![0.0f64; b];
    for (row, bias) in inner_bias.iter_mut().enumerate() {
        *bias = f64::from(second_bias[row]);
        for middle in 0..a {
            for tap in 0..9 {
                let w = f64::from(second[(row * a + middle) * 9 + tap]);
                *bias += w * f64::from(first_bias[middle]);
                for column in 0..input {
                    inner[(row * input + column) * 9 + tap] +=
                        w * f64::from(first[middle * input + column]);
                }
            }
        }
    }
    let mut weight = vec![0.0f32; out * input * 9];
    let mut bias = vec![0.0f32; out];
    for row in 0..out {
        let mut sums = vec![0.0f64; input * 9];
        let mut all = f64::from(third_bias[row]) + f64::from(beside_bias[row]);
        for middle in 0..b {
            let w = f64::from(third[row * b + middle]);
            all += w * inner_bias[middle];
            let from = &inner[middle * input * 9..][..input * 9];
            for (sum, v) in sums.iter_mut().zip(from) {
                *sum += w * v;
            }
        }
        for column in 0..input {
            // The middle of the kernel.
            sums[column * 9 + 4] += f64::from(beside[row * input + column]);
        }
        bias[row] = all as f32;
        for (to, sum) in weight[row * input * 9..].iter_mut().zip(&sums) {
            *to = *sum as f32;
        }
    }
    Ok((weight, bias))
}
