//! Tensor names folded into patterns: `layers.{0..39}.attn.wq_a.weight` stands for 40 tensors.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::checkpoint::TensorSpec;

/// Tensors of equal shape and type whose names differ only in the layer and expert numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorFamily {
    /// The names: `{a..b}` for a range of layers, `{a,b}` for a list, `{e}` for all experts of a layer.
    pub pattern: String,
    /// How many tensors there are.
    pub count: u64,
    /// Stored element type.
    pub dtype: String,
    /// Stored shape.
    pub shape: Vec<u64>,
}

/// Folds `specs` into families, in the order of their first members.
pub(super) fn fold(specs: &[TensorSpec]) -> Vec<TensorFamily> {
    let mut families: Vec<(Stem<'_>, Family<'_>)> = Vec::new();
    let mut place: HashMap<(Stem<'_>, &[u64], String), usize> = HashMap::new();
    for spec in specs {
        let (stem, layer) = Stem::of(&spec.name);
        let dtype = spec.storage.dtype().to_string();
        let index = *place.entry((stem, spec.shape.as_slice(), dtype.clone())).or_insert_with(|| {
            families.push((stem, Family { layers: BTreeSet::new(), count: 0, dtype, shape: &spec.shape }));
            families.len() - 1
        });
        let family = &mut families[index].1;
        family.layers.extend(layer);
        family.count += 1;
    }
    let fold = |(stem, family): (Stem<'_>, Family<'_>)| TensorFamily {
        pattern: stem.pattern(&family.layers),
        count: family.count,
        dtype: family.dtype,
        shape: family.shape.to_vec(),
    };
    families.into_iter().map(fold).collect()
}

struct Family<'a> {
    layers: BTreeSet<u32>,
    count: u64,
    dtype: String,
    shape: &'a [u64],
}

/// A tensor name without its layer and expert numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Stem<'a> {
    /// The name up to the layer number, or all of it.
    before_layer: &'a str,
    /// What follows the layer number, up to the expert number or the end.
    after_layer: &'a str,
    /// What follows the expert number; `None` without one.
    after_expert: Option<&'a str>,
}

impl<'a> Stem<'a> {
    fn of(name: &'a str) -> (Self, Option<u32>) {
        let Some((before_layer, layer, after)) = split_at_number(name) else {
            return (Self { before_layer: name, after_layer: "", after_expert: None }, None);
        };
        let (after_layer, after_expert) = match split_at_number(after) {
            Some((before_expert, _, after_expert)) => (before_expert, Some(after_expert)),
            None => (after, None),
        };
        (Self { before_layer, after_layer, after_expert }, Some(layer))
    }

    fn pattern(&self, layers: &BTreeSet<u32>) -> String {
        let expert = self.after_expert.map(|after| format!("{{e}}{after}")).unwrap_or_default();
        format!("{}{}{}{expert}", self.before_layer, shown(layers), self.after_layer)
    }
}

/// Splits a dotted name around its first part that is a number; the dots stay with the outer pieces.
fn split_at_number(name: &str) -> Option<(&str, u32, &str)> {
    let mut begin = 0;
    for part in name.split('.') {
        let end = begin + part.len();
        if let Ok(number) = part.parse() {
            return Some((&name[..begin], number, &name[end..]));
        }
        begin = end + 1;
    }
    None
}

/// `7`, `{2,8}` or `{0..39}`; nothing for names without a layer.
fn shown(layers: &BTreeSet<u32>) -> String {
    match (layers.first(), layers.last()) {
        (Some(first), Some(last)) if first == last => first.to_string(),
        (Some(first), Some(last)) if layers.len() > 2 && (last - first) as usize == layers.len() - 1 => {
            format!("{{{first}..{last}}}")
        }
        (None, _) | (_, None) => String::new(),
        _ => {
            let list: Vec<String> = layers.iter().map(u32::to_string).collect();
            format!("{{{}}}", list.join(","))
        }
    }
}
