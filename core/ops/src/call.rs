//! From typed arguments to the C struct of a call.

use std::ffi::c_void;

use deepinfer_plugin_api::abi::{DI_QO_MULTIPLY, DI_QS_BLOCK, DI_SL_ROW_MAJOR, DiOpHeader, DiQuant, DiTensor};
use deepinfer_plugin_api::{ArgError, OpInfo, Shaped, ShapedList};

use crate::tensor::Tensor;

/// A call of one op with its arguments; implemented by the generated structs.
pub trait OpCall {
    /// Reflection row of the op.
    fn info(&self) -> &'static OpInfo;

    /// Checks formats, ranks and extents.
    ///
    /// # Errors
    /// Names the argument, what it has and what it needs.
    fn check(&self) -> Result<(), ArgError>;

    /// Hands the C struct to `f`; it and all it points to live until `f` returns.
    fn with_raw(&self, f: &mut dyn FnMut(*const DiOpHeader));

    /// Visits the tensor arguments that are present, with their names; a list visits each of its tensors.
    fn tensors(&self, f: &mut dyn FnMut(&'static str, &Tensor));
}

/// The head of a call without workspace.
pub(crate) fn header(info: &OpInfo) -> DiOpHeader {
    DiOpHeader {
        struct_size: info.args_size as u32,
        op_id: info.id,
        op_version: info.version,
        flags: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        ext: std::ptr::null(),
    }
}

const ABSENT: DiTensor = DiTensor {
    data: std::ptr::null_mut(),
    device_type: 0,
    device_id: 0,
    ndim: 0,
    code: 0,
    bits: 0,
    lanes: 1,
    shape: std::ptr::null_mut(),
    strides: std::ptr::null_mut(),
    byte_offset: 0,
    quant: std::ptr::null(),
    layout: 0,
    flags: 0,
    nbytes: 0,
};

/// The records that a quantised `DiTensor` points to. It must not move between `link` and the end of the call.
pub(crate) struct Linked {
    scale: DiTensor,
    quant: DiQuant,
}

impl Default for Linked {
    fn default() -> Self {
        let quant = DiQuant {
            struct_size: size_of::<DiQuant>() as u32,
            scheme: DI_QS_BLOCK,
            block: [1; 4],
            scale_layout: DI_SL_ROW_MAJOR,
            scale_op: DI_QO_MULTIPLY,
            scale: std::ptr::null(),
            global_scale: std::ptr::null(),
            zero_point: std::ptr::null(),
        };
        Self { scale: ABSENT, quant }
    }
}

impl Linked {
    pub(crate) fn link(&mut self, tensor: &Tensor) -> DiTensor {
        let mut raw = descriptor(tensor);
        if let (Some(scale), Some(info)) = (&tensor.scale, tensor.format.and_then(|f| f.scale())) {
            self.scale = descriptor(scale);
            let rank = tensor.rank;
            self.quant.block[rank - 2] = info.rows as i32;
            self.quant.block[rank - 1] = info.columns as i32;
            self.quant.scale = &raw const self.scale;
            raw.quant = &raw const self.quant;
        }
        raw
    }

    pub(crate) fn link_optional(&mut self, tensor: Option<&Tensor>) -> DiTensor {
        tensor.map_or(ABSENT, |t| self.link(t))
    }
}

/// Descriptors of a list; `linked` holds what they point to.
pub(crate) fn link_list(linked: &mut Vec<Linked>, tensors: &[Tensor]) -> Vec<DiTensor> {
    linked.resize_with(tensors.len(), Linked::default);
    linked.iter_mut().zip(tensors).map(|(l, t)| l.link(t)).collect()
}

fn descriptor(tensor: &Tensor) -> DiTensor {
    DiTensor {
        data: std::ptr::with_exposed_provenance_mut::<c_void>(tensor.address),
        device_type: tensor.device_type,
        device_id: tensor.device_id,
        ndim: tensor.rank as i32,
        code: tensor.code,
        bits: tensor.bits,
        lanes: 1,
        shape: tensor.shape.as_ptr().cast_mut(),
        strides: tensor.strides.as_ptr().cast_mut(),
        byte_offset: 0,
        quant: std::ptr::null(),
        layout: 0,
        flags: 0,
        nbytes: tensor.bytes as u64,
    }
}

/// A slice of tensors as the check sees it.
pub(crate) struct TensorSlice<'a>(pub(crate) &'a [Tensor]);

impl ShapedList for TensorSlice<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> &dyn Shaped {
        &self.0[index]
    }
}
