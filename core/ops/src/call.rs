//! From typed arguments to the C struct of a call.
//!
//! This is on the path of every op, so that nothing here allocates once it is warm, and the checks are inlined.

use std::cell::RefCell;
use std::ffi::c_void;

use deepinfer_plugin_api::abi::{
    DI_QO_MULTIPLY, DI_QS_BLOCK, DI_SL_ROW_MAJOR, DiOpHeader, DiQuant, DiTensor, DiTensorList,
};
use deepinfer_plugin_api::{ArgError, OpInfo, ShapedList};

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

    /// Checks the arguments, also that all of them lie at `place`, and hands the op's reflection row and the C struct to
    /// `f`. The struct has room for `args_size` bytes; it and all it points to live until `f` returns, which may fill in
    /// the flags and the workspace of its head.
    ///
    /// # Errors
    /// As [`OpCall::check`], or an argument lies elsewhere; then `f` was not called.
    fn with_raw(&self, place: Place, f: &mut dyn FnMut(&'static OpInfo, *mut DiOpHeader)) -> Result<(), ArgError>;

    /// Visits the tensor arguments that are present, with their names; a list visits each of its tensors.
    fn tensors(&self, f: &mut dyn FnMut(&'static str, &Tensor));
}

/// A device as tensors name it. An op runs where all its arguments lie: an address of another device would be
/// dereferenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
}

impl Place {
    /// Whether a tensor, and its scales if it has some, lie here.
    #[inline]
    pub fn has(self, tensor: &Tensor) -> bool {
        tensor.is_at(self) && tensor.scale.as_deref().is_none_or(|scale| scale.is_at(self))
    }

    /// The sentence about the first argument of a call that does not lie here.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse(self, call: &dyn OpCall) -> ArgError {
        let mut found = None;
        call.tensors(&mut |arg, tensor| {
            if found.is_none() && !self.has(tensor) {
                found = Some(self.misplaced(call.info().name, arg, tensor));
            }
        });
        found.expect("an argument lies elsewhere")
    }

    /// The sentence about an argument that does not lie here.
    #[cold]
    pub fn misplaced(self, op: &'static str, arg: &str, tensor: &Tensor) -> ArgError {
        let place = |t: &Tensor| Place { device_type: t.device_type, device_id: t.device_id };
        let (what, at) = match &tensor.scale {
            Some(scale) if place(tensor) == self => ("has its scales", place(scale)),
            _ => ("lies", place(tensor)),
        };
        let problem = format!(
            "{what} on device {} of type {}, but the op runs on device {} of type {}; copy it there first",
            at.device_id, at.device_type, self.device_id, self.device_type
        );
        ArgError { op, arg: arg.to_owned(), problem }
    }
}

impl Tensor {
    /// Hands its descriptor to `f`, for calls that no checked call can make. It lives, with all it points to, until `f`
    /// returns.
    pub fn with_raw<R>(&self, f: impl FnOnce(&DiTensor) -> R) -> R {
        let (mut slot, mut linked) = (ABSENT, Linked::default());
        linked.link(&mut slot, self, Place { device_type: self.device_type, device_id: self.device_id });
        f(&slot)
    }

    /// Whether it lies at `place`, whatever its scales do.
    #[inline]
    fn is_at(&self, place: Place) -> bool {
        (self.device_type == place.device_type) & (self.device_id == place.device_id)
    }
}

/// The head of a call without workspace.
#[inline]
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

/// An optional tensor that is not there, and what every descriptor starts from.
pub(crate) const ABSENT: DiTensor = DiTensor {
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

/// The records that a quantised `DiTensor` points to: the scales and what they mean. It must not move between `link` and
/// the end of the call. Plain tensors leave it empty.
#[derive(Default)]
pub(crate) struct Linked(Option<(DiTensor, DiQuant)>);

impl Linked {
    /// Describes `tensor` in `slot`, which is absent before; says whether it lies at `place`.
    #[inline]
    pub(crate) fn link(&mut self, slot: &mut DiTensor, tensor: &Tensor, place: Place) -> bool {
        describe(slot, tensor);
        let is_here = tensor.is_at(place);
        match &tensor.scale {
            None => is_here,
            Some(scale) => {
                slot.quant = self.record(tensor, scale);
                is_here & scale.is_at(place)
            }
        }
    }

    /// As [`Linked::link`]; what is absent lies everywhere.
    #[inline]
    pub(crate) fn link_optional(&mut self, slot: &mut DiTensor, tensor: Option<&Tensor>, place: Place) -> bool {
        tensor.is_none_or(|t| self.link(slot, t, place))
    }

    #[inline(never)]
    fn record(&mut self, tensor: &Tensor, scale: &Tensor) -> *const DiQuant {
        let mut block = [1; 4];
        if let Some(info) = tensor.format.and_then(|f| f.scale()) {
            block[tensor.rank - 2] = info.rows as i32;
            block[tensor.rank - 1] = info.columns as i32;
        }
        let quant = DiQuant {
            struct_size: size_of::<DiQuant>() as u32,
            scheme: DI_QS_BLOCK,
            block,
            scale_layout: DI_SL_ROW_MAJOR,
            scale_op: DI_QO_MULTIPLY,
            scale: std::ptr::null(),
            global_scale: std::ptr::null(),
            zero_point: std::ptr::null(),
        };
        let (slot, quant) = self.0.insert((ABSENT, quant));
        describe(slot, scale);
        quant.scale = &raw const *slot;
        &raw const *quant
    }
}

/// Descriptors of a list, and what they point to. The vectors come from a pool of the thread, to which they return: a list
/// of experts is long and passed in every layer.
pub(crate) struct LinkedList {
    tensors: Vec<DiTensor>,
    linked: Vec<Linked>,
    is_here: bool,
}

thread_local! {
    static POOL: RefCell<Vec<LinkedVectors>> = const { RefCell::new(Vec::new()) };
}

type LinkedVectors = (Vec<DiTensor>, Vec<Linked>);

impl LinkedList {
    pub(crate) fn link(list: &[Tensor], place: Place) -> Self {
        let (mut tensors, mut linked) = POOL.with_borrow_mut(Vec::pop).unwrap_or_default();
        linked.clear();
        linked.resize_with(list.len(), Linked::default);
        tensors.clear();
        tensors.resize(list.len(), ABSENT);
        let slots = tensors.iter_mut().zip(&mut linked).zip(list);
        let is_here = slots.fold(true, |here, ((slot, linked), tensor)| here & linked.link(slot, tensor, place));
        Self { tensors, linked, is_here }
    }

    /// Whether all of them lie at the place.
    pub(crate) fn is_here(&self) -> bool {
        self.is_here
    }

    pub(crate) fn raw(&self) -> DiTensorList {
        DiTensorList { ptr: self.tensors.as_ptr(), len: self.tensors.len() as u64 }
    }
}

impl Drop for LinkedList {
    fn drop(&mut self) {
        let vectors = (std::mem::take(&mut self.tensors), std::mem::take(&mut self.linked));
        // A thread that ends has no pool any more.
        let _ = POOL.try_with(|pool| pool.borrow_mut().push(vectors));
    }
}

/// Fills in what is not the same for every tensor without scales.
#[inline]
fn describe(slot: &mut DiTensor, tensor: &Tensor) {
    slot.data = std::ptr::with_exposed_provenance_mut::<c_void>(tensor.address);
    slot.device_type = tensor.device_type;
    slot.device_id = tensor.device_id;
    slot.ndim = tensor.rank as i32;
    slot.code = tensor.code;
    slot.bits = tensor.bits;
    slot.shape = tensor.shape.as_ptr().cast_mut();
    slot.strides = tensor.strides.as_ptr().cast_mut();
    slot.nbytes = tensor.bytes as u64;
}

/// A slice of tensors as the check sees it.
pub(crate) struct TensorSlice<'a>(pub(crate) &'a [Tensor]);

impl ShapedList for TensorSlice<'_> {
    type Item = Tensor;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> &Tensor {
        &self.0[index]
    }
}
