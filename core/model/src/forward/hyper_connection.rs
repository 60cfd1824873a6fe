//! Hyper-connections: the copies of the residual stream around a sublayer.

use deepinfer_ops::args::{HcCollapse, HcExpand, HcMix, Linear, Rstd};
use deepinfer_ops::traits::{HyperConnectionOps, LinearOps, NormOps};
use deepinfer_ops::{Format, OpError, Tensor};

use super::Run;
use crate::weights::HyperConnectionWeights;

/// What one sublayer's projections give.
pub(super) struct Mix {
    /// Collapse weights for the sublayer after the one that they were computed at.
    pub(super) pre: Tensor,
    post: Tensor,
    comb: Tensor,
}

impl Run<'_> {
    /// Mixing coefficients from the stream as it enters a sublayer: one statistic over all copies together.
    pub(super) fn hc_mix(&self, weights: &HyperConnectionWeights, stream: &Tensor) -> Result<Mix, OpError> {
        let config = &self.model.config;
        let (rows, copies) = (self.step.rows, config.hc_mult);
        let flat = stream.reshape(&[rows, copies * config.hidden_size]);
        let f32_tensor = |shape: &[usize]| self.arena.tensor(Format::F32, shape);
        let rstd = f32_tensor(&[rows])?;
        self.device.rstd(&Rstd { x: &flat, eps: config.rms_norm_eps, out: &rstd })?;
        let projected = f32_tensor(&[rows, config.hc_rows()])?;
        self.device.linear(&Linear { x: &flat, weight: &weights.projection, groups: 1, out: &projected })?;
        let (pre, post) = (f32_tensor(&[rows, copies])?, f32_tensor(&[rows, copies])?);
        let comb = f32_tensor(&[rows, copies, copies])?;
        self.device.hc_mix(&HcMix {
            mix: &projected,
            rstd: &rstd,
            base: &weights.base,
            scale: &weights.scale,
            copies: copies as u32,
            iters: config.hc_sinkhorn_iters as u32,
            eps: config.hc_eps,
            pre: &pre,
            post: &post,
            comb: &comb,
        })?;
        Ok(Mix { pre, post, comb })
    }

    /// Input of a sublayer.
    pub(super) fn collapse_and_norm(&self, stream: &Tensor, pre: &Tensor, norm: &Tensor) -> Result<Tensor, OpError> {
        let collapsed = self.activation(&[self.step.rows, self.model.config.hidden_size])?;
        self.device.hc_collapse(&HcCollapse { x: stream, pre, out: &collapsed })?;
        self.rms_norm(&collapsed, norm)
    }

    /// Adds the output of a sublayer to the stream.
    pub(super) fn hc_expand(&self, stream: &Tensor, y: &Tensor, mix: &Mix) -> Result<(), OpError> {
        self.device.hc_expand(&HcExpand { x: stream, y, post: &mix.post, comb: &mix.comb })
    }

    /// Copies collapse weights out of a layer's temporary memory, for the next layer.
    pub(super) fn keep_pre(&self, from: &Tensor, to: &Tensor) -> Result<(), OpError> {
        self.gather_rows(from, &self.step.row_numbers, to)
    }
}
