//! Parts of a step, as the model announces them to its device.

use std::fmt;

/// The part of a step that the calls after its announcement belong to; see [`Device::scope`](crate::Device::scope).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Number of the layer; `None` outside of the layers.
    pub layer: Option<usize>,
    /// What is computed.
    pub part: Part,
}

/// What a part of a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Token ids of the rows, and what follows from ids alone.
    Tokens,
    /// The first residual stream.
    Embed,
    /// The n-gram memory of a layer.
    Engram,
    /// The attention sublayer, with the hyper-connection around it.
    Attention,
    /// Compressed entries and index keys that a layer publishes, within its attention.
    Compress,
    /// The choice of compressed entries, within the attention of a layer.
    Select,
    /// The mixture of experts, with the hyper-connection around it.
    Moe,
    /// The norm after the last layer.
    FinalNorm,
    /// Logits of the rows that need them.
    Head,
    /// The draw.
    Sample,
}

impl Scope {
    /// A part outside of the layers.
    pub const fn of(part: Part) -> Self {
        Self { layer: None, part }
    }

    /// A part of layer `layer`.
    pub const fn in_layer(layer: usize, part: Part) -> Self {
        Self { layer: Some(layer), part }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer {
            write!(f, "layers.{layer}.")?;
        }
        f.write_str(match self.part {
            Part::Tokens => "tokens",
            Part::Embed => "embed",
            Part::Engram => "engram",
            Part::Attention => "attn",
            Part::Compress => "attn.compress",
            Part::Select => "attn.select",
            Part::Moe => "ffn",
            Part::FinalNorm => "final_norm",
            Part::Head => "head",
            Part::Sample => "sample",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_read_as_the_names_of_modules() {
        assert_eq!(Scope::in_layer(3, Part::Compress).to_string(), "layers.3.attn.compress");
        assert_eq!(Scope::of(Part::Head).to_string(), "head");
    }
}
