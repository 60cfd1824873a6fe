//! Where values are rounded: the flags that separate rounding from bugs.

use deepinfer_ops::{CacheFormat, Format};

use crate::cache_format::CacheFormats;
use crate::config::ModelConfig;

/// Rounding points of the forward pass. Stored weights are used as they are under every setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numerics {
    /// Residual stream and activations: F32 or BF16.
    pub stream: Format,
    /// Inputs of quantised linears are rounded to FP8 (groups of 32).
    pub fp8_inputs: bool,
    /// Window entries, compressed entries, index keys and index queries are rounded to their stored formats.
    pub stored_caches: bool,
    /// Attention probabilities are rounded to BF16 before the value product.
    pub bf16_probs: bool,
    /// The input of the grouped output projection is rounded to FP8, as the original engine does.
    pub wo_a_fp8: bool,
    /// Expert activations are quantised straight from F32, without rounding to the stream's dtype first.
    pub fused_act_quant: bool,
}

impl Numerics {
    /// F32, nothing rounded.
    pub const EXACT: Numerics = Numerics {
        stream: Format::F32,
        fp8_inputs: false,
        stored_caches: false,
        bf16_probs: false,
        wo_a_fp8: false,
        fused_act_quant: false,
    };
    /// F32, caches and index vectors in their stored formats.
    pub const CACHE: Numerics = Numerics { stored_caches: true, ..Self::EXACT };
    /// The deployed numerics: BF16, FP8 linear inputs, stored caches.
    pub const DEPLOY: Numerics =
        Numerics { stream: Format::Bf16, fp8_inputs: true, stored_caches: true, bf16_probs: true, ..Self::EXACT };

    /// The preset of this name: `exact`, `cache` or `deploy`.
    pub fn preset(name: &str) -> Option<Numerics> {
        match name {
            "exact" => Some(Self::EXACT),
            "cache" => Some(Self::CACHE),
            "deploy" => Some(Self::DEPLOY),
            _ => None,
        }
    }

    /// Formats of the caches.
    pub fn cache_formats(&self, config: &ModelConfig) -> CacheFormats {
        if self.stored_caches { CacheFormats::deployed(config) } else { CacheFormats::UNROUNDED }
    }

    /// Layout of a dense buffer of rows in the stream's dtype.
    pub(crate) fn dense_format(&self) -> CacheFormat {
        if self.stream == Format::Bf16 { CacheFormat::Bf16 } else { CacheFormat::F32 }
    }
}
