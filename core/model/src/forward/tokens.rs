//! Tokens that only the device knows: from the sampler of one step to the rows of the next.

use std::rc::Rc;

use deepinfer_ops::args::Gather;
use deepinfer_ops::traits::CopyOps;
use deepinfer_ops::{Arena, Device, Format, OpError, Tensor};

use crate::step::LateTokens;

/// All token ids in order. A gather from it gives 0 for what is none: no op has to take an id that does not exist.
#[derive(Clone)]
pub(super) struct Vocabulary {
    ids: Tensor,
}

impl Vocabulary {
    pub(super) fn new(device: &Rc<dyn Device>, size: usize) -> Result<Self, OpError> {
        let bytes: Vec<u8> = (0..size as u32).flat_map(u32::to_le_bytes).collect();
        let ids = Tensor::plain(&device.allocate(bytes.len())?, 0, Format::I32, &[size, 1]);
        device.upload(&ids, &bytes)?;
        Ok(Self { ids })
    }

    /// Token ids of all rows, `[T]`: those of the host, and those of `drawn` where the step says so.
    pub(super) fn resolve(
        &self,
        device: &dyn Device,
        arena: &Arena,
        late: &LateTokens,
        drawn: &Tensor,
    ) -> Result<Tensor, OpError> {
        let rows = late.index.dim(0);
        let room = late.table.rows(rows, drawn.dim(0)).reshape(&[drawn.dim(0)]);
        device.copy(&room, drawn)?;
        let gather = |table: &Tensor, index: &Tensor| {
            let out = arena.tensor(Format::I32, &[rows])?;
            device.gather(&Gather { table, index, repeat: 1, out: &out.reshape(&[rows, 1, 1]) })?;
            Ok(out)
        };
        let given = gather(&late.table, &late.index)?;
        gather(&self.ids, &given)
    }
}
