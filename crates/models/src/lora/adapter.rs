//! The change of one weight as a file writes it down: which tensors it has, and which shapes they must have.

use fresco_tensor::Stored;

/// The tensors of one adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `up x down`, through `mid` for convolutions in Tucker form.
    Lora {
        up: Stored,
        down: Stored,
        mid: Option<Stored>,
        /// The weight is first padded with zeros to this shape.
        reshape: Option<Vec<usize>>,
    },
    /// The product element by element of two low-rank matrices.
    Loha {
        w1_a: Stored,
        w1_b: Stored,
        w2_a: Stored,
        w2_b: Stored,
        /// Both or none.
        cores: Option<(Stored, Stored)>,
    },
    /// The Kronecker product of two matrices.
    Lokr { w1: Factor, w2: Factor },
    /// One change that depends on the weight and one that does not.
    Glora {
        a1: Stored,
        a2: Stored,
        b1: Stored,
        b2: Stored,
    },
    /// Rotations of blocks of rows.
    Oft { blocks: Stored },
    /// Rotations in several stages, each over other rows.
    Boft {
        blocks: Stored,
        rescale: Option<Stored>,
    },
}

/// A matrix as it is, or as the product of two.
#[derive(Clone, Debug, PartialEq)]
pub enum Factor {
    Whole(Stored),
    Product {
        a: Stored,
        b: Stored,
        core: Option<Stored>,
    },
}

impl Factor {
    /// The rank, where there is one.
    pub(super) fn rank(&self) -> Option<usize> {
        match self {
            Self::Whole(_) => None,
            Self::Product { b, .. } => b.shape().first().copied(),
        }
    }

    fn shape(&self) -> Result<Vec<usize>, String> {
        match self {
            Self::Whole(w) => Ok(w.shape().to_vec()),
            Self::Product { a, b, core: None } => {
                let (rows, inner) = matrix("the first factor", a)?;
                let (also, columns) = matrix("the second factor", b)?;
                same("the factors' ranks", inner, also)?;
                Ok(vec![rows, columns])
            }
            Self::Product {
                a,
                b,
                core: Some(core),
            } => tucker(a, b, core),
        }
    }
}

/// An adapter with what all kinds have.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub kind: Kind,
    pub alpha: Option<f64>,
    /// The length that rows or columns of the result are to have.
    pub dora_scale: Option<Stored>,
}

/// Sizes of a matrix whose later dimensions count as one.
pub(super) fn matrix(what: &str, t: &Stored) -> Result<(usize, usize), String> {
    match t.shape() {
        [rows, rest @ ..] if !rest.is_empty() => Ok((*rows, rest.iter().product())),
        other => Err(format!("{what} has shape {other:?}, which is not a matrix")),
    }
}

fn same(what: &str, a: usize, b: usize) -> Result<(), String> {
    if a == b {
        return Ok(());
    }
    Err(format!("{what} do not agree: {a} and {b}"))
}

fn dims4(what: &str, t: &Stored) -> Result<[usize; 4], String> {
    <[usize; 4]>::try_from(t.shape())
        .map_err(|_| format!("{what} has shape {:?} instead of four sizes", t.shape()))
}

fn plain_matrix(what: &str, t: &Stored) -> Result<(usize, usize), String> {
    match *t.shape() {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(format!(
            "{what} has shape {:?}, which is not a matrix",
            t.shape()
        )),
    }
}

/// Shape of `core (i,j,k,l), b (j,r), a (i,p) -> (p,r,k,l)`.
fn tucker(a: &Stored, b: &Stored, core: &Stored) -> Result<Vec<usize>, String> {
    let [i, j, k, l] = dims4("the core", core)?;
    let (b_rows, r) = plain_matrix("the second factor", b)?;
    let (a_rows, p) = plain_matrix("the first factor", a)?;
    same("the core and the second factor", j, b_rows)?;
    same("the core and the first factor", i, a_rows)?;
    Ok(vec![p, r, k, l])
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s))
}

fn fits(shape: &[usize], weight: &[usize]) -> Result<(), String> {
    if count(shape).is_some_and(|n| Some(n) == count(weight)) {
        return Ok(());
    }
    Err(format!(
        "a change of shape {shape:?} for a weight of shape {weight:?}"
    ))
}

/// Which way the matrices of a GLoRA are stored, and its rank.
pub(super) fn glora_layout(
    [a1, a2, b1, b2]: [&Stored; 4],
    weight: &[usize],
) -> Result<(bool, usize), String> {
    let (a1_rows, a1_columns) = matrix("a1", a1)?;
    let (a2_rows, a2_columns) = matrix("a2", a2)?;
    let (b1_rows, b1_columns) = matrix("b1", b1)?;
    let (b2_rows, b2_columns) = matrix("b2", b2)?;
    let old = b2_columns == b1_rows && b1_rows == a1_rows && a1_rows == a2_columns;
    let new = b2_rows == b1_columns && b1_columns == a1_columns && a1_columns == a2_rows;
    let square = weight.len() > 1 && weight[0] == weight[1] && a2_rows == weight[0];
    if new && !(old && square) {
        Ok((false, a2_rows))
    } else if old {
        Ok((true, a1_rows))
    } else {
        Err("the four matrices have no common rank".to_owned())
    }
}

impl Adapter {
    /// What the kind is called in reports.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Lora { .. } => "lora",
            Kind::Loha { .. } => "loha",
            Kind::Lokr { .. } => "lokr",
            Kind::Glora { .. } => "glora",
            Kind::Oft { .. } => "oft",
            Kind::Boft { .. } => "boft",
        }
    }

    /// All tensors with what they are.
    pub fn tensors(&self) -> Vec<&Stored> {
        fn factor<'a>(f: &'a Factor, all: &mut Vec<&'a Stored>) {
            match f {
                Factor::Whole(w) => all.push(w),
                Factor::Product { a, b, core } => {
                    all.extend([a, b]);
                    all.extend(core);
                }
            }
        }
        let mut all = Vec::new();
        match &self.kind {
            Kind::Lora { up, down, mid, .. } => {
                all.extend([up, down]);
                all.extend(mid);
            }
            Kind::Loha {
                w1_a,
                w1_b,
                w2_a,
                w2_b,
                cores,
            } => {
                all.extend([w1_a, w1_b, w2_a, w2_b]);
                all.extend(cores.iter().flat_map(|(a, b)| [a, b]));
            }
            Kind::Lokr { w1, w2 } => {
                factor(w1, &mut all);
                factor(w2, &mut all);
            }
            Kind::Glora { a1, a2, b1, b2 } => all.extend([a1, a2, b1, b2]),
            Kind::Oft { blocks } => all.push(blocks),
            Kind::Boft { blocks, rescale } => {
                all.push(blocks);
                all.extend(rescale);
            }
        }
        all.extend(&self.dora_scale);
        all
    }

    /// The shape that a weight has after the change, or why the change does not fit it.
    pub fn changed_shape(&self, weight: &[usize]) -> Result<Vec<usize>, String> {
        if weight.is_empty() || weight.contains(&0) {
            return Err(format!("a weight of shape {weight:?} cannot be changed"));
        }
        let weight = match &self.kind {
            Kind::Lora { reshape, .. } => grown(weight, reshape.as_deref())?,
            _ => weight.to_vec(),
        };
        match &self.kind {
            Kind::Lora { up, down, mid, .. } => fits_lora([up, down], mid.as_ref(), &weight)?,
            Kind::Loha {
                w1_a,
                w1_b,
                w2_a,
                w2_b,
                cores,
            } => fits_loha([w1_a, w1_b, w2_a, w2_b], cores.as_ref(), &weight)?,
            Kind::Lokr { w1, w2 } => fits_lokr(w1, w2, &weight)?,
            Kind::Glora { a1, a2, b1, b2 } => fits_glora([a1, a2, b1, b2], &weight)?,
            Kind::Oft { blocks } => fits_oft(blocks, &weight)?,
            Kind::Boft { blocks, rescale } => fits_boft(blocks, rescale.as_ref(), &weight)?,
        }
        if let Some(dora) = &self.dora_scale {
            fits_dora(dora, &weight)?;
        }
        Ok(weight)
    }
}

/// A weight padded with zeros to the shape that a LoRA wants.
fn grown(weight: &[usize], wanted: Option<&[usize]>) -> Result<Vec<usize>, String> {
    let Some(wanted) = wanted else {
        return Ok(weight.to_vec());
    };
    let grows = wanted.len() == weight.len() && wanted.iter().zip(weight).all(|(w, own)| w >= own);
    if grows {
        return Ok(wanted.to_vec());
    }
    Err(format!(
        "a weight of shape {weight:?} cannot grow to {wanted:?}"
    ))
}

fn fits_lora(
    [up, down]: [&Stored; 2],
    mid: Option<&Stored>,
    weight: &[usize],
) -> Result<(), String> {
    let (rows, inner) = matrix("up", up)?;
    let (rank, mut columns) = matrix("down", down)?;
    match mid {
        None => same("the ranks of up and down", inner, rank)?,
        Some(mid) => {
            let [first, second, k, l] = dims4("mid", mid)?;
            same("down and mid", rank, second)?;
            same("up and mid", inner, first)?;
            columns = columns.saturating_mul(k.saturating_mul(l));
        }
    }
    fits(&[rows, columns], weight)
}

fn fits_loha(
    [w1_a, w1_b, w2_a, w2_b]: [&Stored; 4],
    cores: Option<&(Stored, Stored)>,
    weight: &[usize],
) -> Result<(), String> {
    let side = |a: &Stored, b: &Stored, core: Option<&Stored>| {
        Factor::Product {
            a: a.clone(),
            b: b.clone(),
            core: core.cloned(),
        }
        .shape()
    };
    let one = side(w1_a, w1_b, cores.map(|c| &c.0))?;
    let two = side(w2_a, w2_b, cores.map(|c| &c.1))?;
    if one != two {
        return Err(format!("the two products differ: {one:?} and {two:?}"));
    }
    fits(&one, weight)
}

fn fits_lokr(w1: &Factor, w2: &Factor, weight: &[usize]) -> Result<(), String> {
    let (one, two) = (w1.shape()?, w2.shape()?);
    let one_rank = one.len() + if two.len() == 4 { 2 } else { 0 };
    if one.len() != 2 || one_rank != two.len() {
        return Err(format!("no Kronecker product of {one:?} and {two:?}"));
    }
    let mut all = one;
    all.extend(two);
    fits(&all, weight)
}

fn fits_glora([a1, a2, b1, b2]: [&Stored; 4], weight: &[usize]) -> Result<(), String> {
    let (old, _) = glora_layout([a1, a2, b1, b2], weight)?;
    let input: usize = weight[1..].iter().product();
    let (b_left, b_right) = if old { (b2, b1) } else { (b1, b2) };
    let (rows, _) = matrix("b", b_left)?;
    let (_, columns) = matrix("b", b_right)?;
    fits(&[rows, columns], weight)?;
    let (a_left, a_right) = if old { (a2, a1) } else { (a1, a2) };
    // The old layout multiplies the whole row, the new one the input dimension alone.
    let side = if old {
        input
    } else {
        weight.get(1).copied().unwrap_or(1)
    };
    same("a and the weight", matrix("a", a_left)?.0, side)?;
    same("a and the weight", matrix("a", a_right)?.1, side)
}

fn fits_oft(blocks: &Stored, weight: &[usize]) -> Result<(), String> {
    let &[n, b, also] = blocks.shape() else {
        return Err(format!("blocks of shape {:?}", blocks.shape()));
    };
    same("the sides of a block", b, also)?;
    same("the blocks and the rows", n.saturating_mul(b), weight[0])
}

fn fits_boft(blocks: &Stored, rescale: Option<&Stored>, weight: &[usize]) -> Result<(), String> {
    let [stages, n, b, also] = dims4("blocks", blocks)?;
    same("the sides of a block", b, also)?;
    same("the blocks and the rows", n.saturating_mul(b), weight[0])?;
    let widest = stages
        .checked_sub(1)
        .and_then(|s| 1usize.checked_shl(u32::try_from(s).ok()?))
        .and_then(|g| g.checked_mul(b));
    let divides = widest.is_none_or(|w| w > 0 && weight[0].is_multiple_of(w));
    if b % 2 != 0 || (stages > 0 && (widest.is_none() || !divides)) {
        return Err(format!(
            "{stages} stages of blocks of {b} do not fit {} rows",
            weight[0]
        ));
    }
    if let Some(rescale) = rescale {
        let len = count(rescale.shape()).unwrap_or(usize::MAX);
        if len != 1 && len != weight[0] {
            return Err(format!("a rescale of shape {:?}", rescale.shape()));
        }
    }
    Ok(())
}

fn fits_dora(dora: &Stored, weight: &[usize]) -> Result<(), String> {
    let len = count(dora.shape()).unwrap_or(usize::MAX);
    let by_output = dora.shape().first() == Some(&weight[0]) && len == weight[0];
    let by_input = weight.len() > 1 && len == weight[1];
    if by_output || by_input {
        return Ok(());
    }
    Err(format!(
        "a DoRA scale of shape {:?} for a weight of shape {weight:?}",
        dora.shape()
    ))
}
