//! Arguments of a call whose structs have any size.

use std::ffi::c_void;
use std::mem::zeroed;

use deepinfer_plugin_api::abi::{DI_QS_BLOCK, DiOpHeader, DiQuant, DiTensor, DiTensorList};
use deepinfer_plugin_api::{Kind, OpInfo};

use crate::edge::AtEdge;

/// An argument struct whose records of quantisation lie at edges.
pub(crate) struct Arguments {
    words: Vec<u64>,
    /// The copied lists, and the records that the descriptors point to.
    _lists: Vec<Vec<DiTensor>>,
    quants: Vec<AtEdge>,
}

impl Arguments {
    /// Copies arguments; their records of quantisation get `quant_size` bytes.
    ///
    /// # Safety
    /// `args` are complete and valid arguments of `info`.
    pub(crate) unsafe fn copy(info: &OpInfo, args: *const DiOpHeader, quant_size: usize) -> Self {
        let mut words = vec![0u64; info.args_size.div_ceil(8)];
        let (mut lists, mut quants) = (Vec::new(), Vec::new());
        // SAFETY: the caller's contract; reflection says where the descriptors lie.
        unsafe {
            let copy = words.as_mut_ptr().cast::<u8>();
            copy.copy_from_nonoverlapping(args.cast(), info.args_size);
            let mut displace = |tensor: *mut DiTensor| {
                if let Some(quant) = (*tensor).quant.as_ref() {
                    let quant = AtEdge::of(quant, quant_size);
                    (*tensor).quant = quant.at();
                    quants.push(quant);
                }
            };
            for arg in info.args {
                match arg.kind {
                    Kind::Tensor => displace(copy.add(arg.offset).cast()),
                    Kind::TensorList => {
                        let list = copy.add(arg.offset).cast::<DiTensorList>();
                        let mut tensors: Vec<DiTensor> =
                            (0..(*list).len as usize).map(|i| (*list).ptr.add(i).read()).collect();
                        tensors.iter_mut().for_each(|tensor| displace(&raw mut *tensor));
                        (*list).ptr = tensors.as_ptr();
                        lists.push(tensors);
                    }
                    Kind::U32 | Kind::I32 | Kind::F32 => {}
                }
            }
        }
        Self { words, _lists: lists, quants }
    }

    /// Gives the first tensor of two or more dimensions without a record of quantisation one whose scales are the tensor
    /// itself.
    pub(crate) fn quantise(&mut self, info: &OpInfo, size: usize) {
        for arg in info.args.iter().filter(|arg| arg.kind == Kind::Tensor) {
            // SAFETY: reflection says that a descriptor lies there.
            let tensor = unsafe { &mut *self.words.as_mut_ptr().byte_add(arg.offset).cast::<DiTensor>() };
            if tensor.ndim >= 2 && tensor.quant.is_null() {
                // SAFETY: numbers and pointers: zeros are valid.
                let mut quant: DiQuant = unsafe { zeroed() };
                (quant.scheme, quant.block, quant.scale) = (DI_QS_BLOCK, [1, 32, 0, 0], &raw const *tensor);
                let quant = AtEdge::of(&quant, size);
                tensor.quant = quant.at();
                self.quants.push(quant);
                return;
            }
        }
    }

    /// Sets the workspace of the head.
    pub(crate) fn set_workspace(&mut self, memory: *mut c_void, bytes: u64) {
        // SAFETY: every argument struct begins with its head.
        let head = unsafe { &mut *self.words.as_mut_ptr().cast::<DiOpHeader>() };
        (head.workspace, head.workspace_bytes) = (memory, bytes);
    }

    /// The first `size` bytes, where memory ends.
    pub(crate) fn at_edge(&self, size: usize) -> AtEdge {
        // SAFETY: the words are bytes, too.
        let bytes = unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.words.len() * 8) };
        AtEdge::new(bytes, size)
    }
}
