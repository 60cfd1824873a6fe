//! Mixture of experts: a router, the chosen experts of every row, and one expert that all rows share.

use deepinfer_ops::args::{GroupedLinear, MoeCombine, MoeDispatch, MoeGate, SwigluQuantize};
use deepinfer_ops::traits::{LinearOps, MoeOps};
use deepinfer_ops::{Format, OpError, Tensor};

use super::Run;
use crate::config::ScoringFunc;
use crate::weights::MoeWeights;

impl Run<'_> {
    pub(super) fn moe(&self, weights: &MoeWeights, x: &Tensor) -> Result<Tensor, OpError> {
        let config = &self.model.config;
        let (rows, width, inner) = (self.step.rows, config.hidden_size, config.moe_intermediate_size);
        let (experts, chosen) = (config.n_routed_experts, config.num_experts_per_tok);
        let ints = |shape: &[usize]| self.arena.tensor(Format::I32, shape);
        let floats = |shape: &[usize]| self.arena.tensor(Format::F32, shape);

        let logits = self.linear_plain(x, &weights.gate, Format::F32)?;
        let (expert_ids, expert_weights) = (ints(&[rows, chosen])?, floats(&[rows, chosen])?);
        self.device.moe_gate(&MoeGate {
            logits: &logits,
            bias: &weights.bias,
            bias_vl: weights.bias_vl.as_ref(),
            image_mask: self.step.image_mask.as_ref().filter(|_| weights.bias_vl.is_some()),
            scoring: match config.scoring_func {
                ScoringFunc::SqrtSoftplus => 0,
                ScoringFunc::Sigmoid => 1,
                ScoringFunc::Softmax => 2,
            },
            normalize: u32::from(config.norm_topk_prob),
            route_scale: config.routed_scaling_factor,
            experts: &expert_ids,
            weights: &expert_weights,
        })?;

        let x = self.linear_input(x)?;
        let pairs = rows * chosen;
        let by_expert = self.arena.tensor(x.format().unwrap_or(Format::F32), &[pairs, width])?;
        let (row_weight, expert_start) = (floats(&[pairs])?, ints(&[experts + 1])?);
        let row_of = ints(&[rows, chosen])?;
        self.device.moe_dispatch(&MoeDispatch {
            x: &x,
            experts: &expert_ids,
            weights: &expert_weights,
            out: &by_expert,
            row_weight: &row_weight,
            expert_start: &expert_start,
            row_of: &row_of,
        })?;
        let grouped = |x: &Tensor, weight: &[Tensor], out: usize| {
            let out = self.activation(&[pairs, out])?;
            self.device.grouped_linear(&GroupedLinear { x, expert_start: &expert_start, weight, out: &out })?;
            Ok::<_, OpError>(out)
        };
        let gate = grouped(&by_expert, &weights.w1, inner)?;
        let up = grouped(&by_expert, &weights.w3, inner)?;
        // The route weight multiplies before the down projection, hence before its input is rounded.
        let hidden = self.swiglu(&gate, &up, Some(&row_weight))?;
        let y = grouped(&hidden, &weights.w2, width)?;

        let stream = self.model.numerics.stream;
        let gate = self.linear_plain(&x, &weights.shared_w1, stream)?;
        let up = self.linear_plain(&x, &weights.shared_w3, stream)?;
        let hidden = self.swiglu(&gate, &up, None)?;
        let shared = self.linear_plain(&hidden, &weights.shared_w2, stream)?;

        let out = self.activation(&[rows, width])?;
        self.device.moe_combine(&MoeCombine { y: &y, row_of: &row_of, shared: Some(&shared), out: &out })?;
        Ok(out)
    }

    fn swiglu(&self, gate: &Tensor, up: &Tensor, row_weight: Option<&Tensor>) -> Result<Tensor, OpError> {
        let numerics = &self.model.numerics;
        let format = if numerics.fp8_inputs { Format::Fp8Row32 } else { numerics.stream };
        let out = self.arena.tensor(format, &[gate.dim(0), gate.dim(1)])?;
        let rounds = numerics.stream == Format::Bf16 && !numerics.fused_act_quant;
        self.device.swiglu_quantize(&SwigluQuantize {
            gate,
            up,
            row_weight,
            limit: self.model.config.swiglu_limit,
            mid: u32::from(rounds),
            out: &out,
        })?;
        Ok(out)
    }
}
