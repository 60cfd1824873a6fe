//! The form of a call without its content, which is what `supports` and `plan` are shown.
//!
//! A plan is used again for every call of the same signature, wherever its tensors lie. An implementation that looked at an
//! address, or read a value, would decide for one call what others must live with: here there is none to look at.

#![allow(unsafe_code)]

use deepinfer_plugin_api::abi::{DiOpHeader, DiQuant, DiTensor, DiTensorList};
use deepinfer_plugin_api::{Kind, OpInfo};

/// A copy of an argument struct, with all that it points to but the content of tensors: `data` is null everywhere.
/// Shapes and strides are those of the call, which must outlive it.
pub(crate) struct Prototype {
    /// The struct, as words so that it is aligned.
    words: Vec<u64>,
    lists: Vec<Vec<DiTensor>>,
    #[expect(clippy::vec_box, reason = "tensors point to the records, which must not move when the list grows")]
    quants: Vec<Box<Quant>>,
}

/// How a tensor is quantised, and the descriptor of its scales.
struct Quant {
    quant: DiQuant,
    scale: DiTensor,
}

impl Prototype {
    /// The form of a call.
    ///
    /// # Safety
    /// `args` is a complete argument struct of `info`, made by this core.
    pub(crate) unsafe fn of(info: &OpInfo, args: *const DiOpHeader) -> Self {
        let words = vec![0; info.args_size.div_ceil(size_of::<u64>())];
        let mut out = Self { words, lists: Vec::new(), quants: Vec::new() };
        let to = out.words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words have room for the struct; every offset lies in it and has the type that its kind says; lists have
        // as many tensors as they say.
        unsafe {
            std::ptr::copy_nonoverlapping(args.cast::<u8>(), to, info.args_size);
            for arg in info.args {
                match arg.kind {
                    Kind::Tensor => out.empty(&mut *to.add(arg.offset).cast::<DiTensor>()),
                    Kind::TensorList => {
                        let list = &mut *to.add(arg.offset).cast::<DiTensorList>();
                        if list.len > 0 {
                            let mut tensors = std::slice::from_raw_parts(list.ptr, list.len as usize).to_vec();
                            tensors.iter_mut().for_each(|tensor| out.empty(tensor));
                            list.ptr = tensors.as_ptr();
                            out.lists.push(tensors);
                        }
                    }
                    Kind::U32 | Kind::I32 | Kind::F32 => {}
                }
            }
        }
        out
    }

    /// Takes the content from a tensor, and from its scales in a copy of their own.
    ///
    /// # Safety
    /// `tensor.quant` is null, or complete with its scales, which have none of their own.
    unsafe fn empty(&mut self, tensor: &mut DiTensor) {
        tensor.data = std::ptr::null_mut();
        if tensor.quant.is_null() {
            return;
        }
        // SAFETY: the same contract.
        let (quant, scale) = unsafe { (*tensor.quant, *(*tensor.quant).scale) };
        let scale = DiTensor { data: std::ptr::null_mut(), ..scale };
        let mut held = Box::new(Quant { quant, scale });
        held.quant.scale = &raw const held.scale;
        tensor.quant = &raw const held.quant;
        self.quants.push(held);
    }

    /// The argument struct. It lives as long as this does.
    pub(crate) fn args(&self) -> *const DiOpHeader {
        self.words.as_ptr().cast()
    }
}
