//! Puts a call on a device: uploads it in one of three layouts, calls the op, reads back what it wrote.

use std::collections::BTreeMap;
use std::fmt;

use deepinfer_ops::traits::*;
use deepinfer_ops::{Allocation, Device, Format, OpCall, OpError, Tensor, args};
use deepinfer_oracle::{Call, HostTensor, Outputs, Value};
use deepinfer_plugin_api::Role;

/// How tensors lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// One element after the other.
    Contiguous,
    /// A gap after the last dimension of plain tensors; row-quantised tensors begin in the middle of their memory.
    Strided,
    /// Contiguous, with memory before and behind that belongs to nobody.
    Guarded(Around),
}

/// What lies around guarded tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Around {
    /// For each argument its byte.
    Usual,
    /// The complement of it, around all.
    Other,
    /// The complement of it, around this argument only.
    OtherOf(&'static str),
}

/// Which checks stand before the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// The method of the op trait, with all its checks.
    Trait,
    /// The dispatch alone: values that shapes cannot check reach the kernel.
    Kernel,
}

/// Elements between the rows of a strided tensor.
const GAP: usize = 3;
/// Content of the gaps.
const GAP_BYTE: u8 = 0x5A;
/// Bytes before and behind a guarded tensor; a multiple of every alignment.
const GUARD: usize = 256;

/// Why a call gave no result.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The arguments did not reach the device.
    Upload(OpError),
    /// The op was refused, or reported a fault.
    Op(OpError),
    /// The op wrote into a gap between the rows of this argument.
    Gap(&'static str),
    /// The op wrote outside of this argument.
    Outside(&'static str, Where),
    /// The op wrote this argument, which it may only read.
    Input(&'static str),
}

/// A byte that is not of any tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    /// The first byte before it is 1.
    Before(usize),
    /// The first byte behind it is 1.
    Behind(usize),
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(byte) => write!(f, "byte {byte} before the beginning"),
            Self::Behind(byte) => write!(f, "byte {byte} behind the end"),
        }
    }
}

/// Calls the op and returns its written arguments.
pub(crate) fn run(device: &dyn Device, call: &Call, layout: Layout, route: Route) -> Result<Outputs, RunError> {
    let placed = PlacedCall::new(device, call, layout).map_err(RunError::Upload)?;
    placed.dispatch(device, route).map_err(RunError::Op)?;
    placed.read(device)
}

/// As [`run`]; what the op may only read must be as it was.
pub(crate) fn run_on_constants(device: &dyn Device, call: &Call) -> Result<Outputs, RunError> {
    let placed = PlacedCall::new(device, call, Layout::Contiguous).map_err(RunError::Upload)?;
    placed.dispatch(device, Route::Trait).map_err(RunError::Op)?;
    let found = placed.read(device)?;
    match placed.first_changed(device, |role| role == Role::In).map_err(RunError::Op)? {
        Some(name) => Err(RunError::Input(name)),
        None => Ok(found),
    }
}

/// The arguments of a call, by name.
pub trait Arguments {
    /// The op.
    fn op(&self) -> &'static str;

    /// A tensor that may be absent.
    fn optional(&self, name: &str) -> Option<&Tensor>;

    /// A list of tensors.
    ///
    /// # Panics
    /// If there is none of this name; so do the others.
    fn list(&self, name: &str) -> &[Tensor];

    /// A scalar.
    fn u32(&self, name: &str) -> u32;

    /// A scalar.
    fn f32(&self, name: &str) -> f32;

    /// A scalar.
    fn i32(&self, name: &str) -> i32;

    /// A tensor that is there.
    fn tensor(&self, name: &str) -> &Tensor {
        self.optional(name).unwrap_or_else(|| panic!("{}: {name} is absent", self.op()))
    }
}

/// Makes a call of any op of the catalogue, with the checks that it has.
///
/// # Errors
/// As the op.
///
/// # Panics
/// If an argument lacks.
pub fn dispatch_on(device: &dyn Device, call: &dyn Arguments) -> Result<(), OpError> {
    dispatch(call, device, Route::Trait)
}

/// A call whose arguments are on a device.
pub(crate) struct PlacedCall<'a> {
    call: &'a Call,
    tensors: BTreeMap<&'static str, Placed>,
    lists: BTreeMap<&'static str, Vec<Tensor>>,
}

impl<'a> PlacedCall<'a> {
    /// Uploads the arguments.
    pub(crate) fn new(device: &dyn Device, call: &'a Call, layout: Layout) -> Result<Self, OpError> {
        let mut placed = Self { call, tensors: BTreeMap::new(), lists: BTreeMap::new() };
        for (index, (&name, value)) in call.args.iter().enumerate() {
            match value {
                Value::Tensor(host) => {
                    placed.tensors.insert(name, Placed::new(device, host, layout, guard_byte(index, name, layout))?);
                }
                Value::List(list) => {
                    let views = list
                        .iter()
                        .map(|host| Placed::new(device, host, layout, guard_byte(index, name, layout)))
                        .map(|placed| placed.map(|placed| placed.view));
                    placed.lists.insert(name, views.collect::<Result<_, _>>()?);
                }
                _ => {}
            }
        }
        Ok(placed)
    }

    /// Calls the op.
    pub(crate) fn dispatch(&self, device: &dyn Device, route: Route) -> Result<(), OpError> {
        dispatch(self, device, route)
    }

    /// Hands the typed call to `f`.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&dyn OpCall) -> R) -> R {
        let (mut f, mut result) = (Some(f), None);
        visit(self, &mut |call| result = f.take().map(|f| f(call)));
        result.expect("every op is visited once")
    }

    /// Puts other contents into the tensors; shapes and formats are the same. Only for contiguous tensors, not for lists.
    pub(crate) fn refill(&self, device: &dyn Device, call: &Call) -> Result<(), OpError> {
        for (name, placed) in &self.tensors {
            let host = call.tensor(name);
            device.upload(&placed.view, &host.codes)?;
            if placed.view.scale().is_some() {
                device.upload(&placed.view.scale_as_bytes(), &host.scales)?;
            }
        }
        Ok(())
    }

    /// Waits, and reads what was written. What lies around the tensors must be as it was.
    pub(crate) fn read(&self, device: &dyn Device) -> Result<Outputs, RunError> {
        let mut out = Outputs::new();
        for arg in self.call.op.args.iter().filter(|arg| arg.role != Role::In) {
            if let Some(placed) = self.tensors.get(arg.name) {
                let tensor = placed.read(device, self.call.tensor(arg.name)).map_err(RunError::Op)?;
                out.insert(arg.name, tensor.ok_or(RunError::Gap(arg.name))?);
            }
        }
        for (name, placed) in &self.tensors {
            if let Some(at) = placed.first_touched(device).map_err(RunError::Op)? {
                return Err(RunError::Outside(name, at));
            }
        }
        Ok(out)
    }

    /// Waits, and gives the first argument of such a role that is not as it was uploaded. Only for contiguous tensors.
    pub(crate) fn first_changed(
        &self,
        device: &dyn Device,
        of: impl Fn(Role) -> bool,
    ) -> Result<Option<&'static str>, OpError> {
        for arg in self.call.op.args.iter().filter(|arg| of(arg.role)) {
            let views: (&[Tensor], &[HostTensor]) = match self.call.args.get(arg.name) {
                Some(Value::Tensor(host)) => (std::slice::from_ref(self.tensor(arg.name)), std::slice::from_ref(host)),
                Some(Value::List(hosts)) => (self.list(arg.name), hosts),
                _ => continue,
            };
            for (view, host) in views.0.iter().zip(views.1) {
                let codes = download(device, &as_bytes(view, host.codes.len()))?;
                let scales = view.scale().map(|_| download(device, &view.scale_as_bytes())).transpose()?;
                if codes != host.codes || scales.is_some_and(|scales| scales != host.scales) {
                    return Ok(Some(arg.name));
                }
            }
        }
        Ok(None)
    }
}

impl Arguments for PlacedCall<'_> {
    fn op(&self) -> &'static str {
        self.call.op.name
    }

    fn optional(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name).map(|placed| &placed.view)
    }

    fn list(&self, name: &str) -> &[Tensor] {
        &self.lists[name]
    }

    fn u32(&self, name: &str) -> u32 {
        self.call.size(name) as u32
    }

    fn f32(&self, name: &str) -> f32 {
        self.call.real(name) as f32
    }

    fn i32(&self, name: &str) -> i32 {
        match self.call.value(name) {
            Value::I32(v) => *v,
            _ => panic!("{}: {name} is no i32", self.call.op.name),
        }
    }
}

/// Content of the memory around an argument: another for each, so that what is copied from around one is seen around
/// another.
fn guard_byte(index: usize, name: &str, layout: Layout) -> u8 {
    let usual = 0xC1 ^ (index as u8) << 1;
    match layout {
        Layout::Guarded(Around::Other) => !usual,
        Layout::Guarded(Around::OtherOf(other)) if other == name => !usual,
        _ => usual,
    }
}

/// A tensor on the device.
struct Placed {
    view: Tensor,
    /// All of the memory, as bytes: of the codes, and of the scales.
    memory: (Tensor, Option<Tensor>),
    guards: Vec<Guard>,
}

/// Bytes of an allocation around a tensor.
struct Guard {
    whole: Tensor,
    /// Bytes of the tensor.
    inner: usize,
    byte: u8,
}

impl Guard {
    /// Memory for `inner` bytes, with a guard on both sides.
    fn new(device: &dyn Device, inner: usize, byte: u8) -> Result<(Self, Allocation), OpError> {
        let memory = device.allocate(inner + 2 * GUARD)?;
        let whole = Tensor::plain(&memory, 0, Format::U8, &[memory.bytes]);
        device.fill(&whole, byte)?;
        Ok((Self { whole, inner, byte }, memory))
    }

    /// The touched byte that is closest to the tensor.
    fn first_touched(&self, device: &dyn Device) -> Result<Option<Where>, OpError> {
        let bytes = download(device, &self.whole)?;
        let is_touched = |byte: &u8| *byte != self.byte;
        let behind = bytes[GUARD + self.inner..].iter().position(is_touched).map(|at| Where::Behind(at + 1));
        let before = || bytes[..GUARD].iter().rev().position(is_touched).map(|at| Where::Before(at + 1));
        Ok(behind.or_else(before))
    }
}

impl Placed {
    fn new(device: &dyn Device, host: &HostTensor, layout: Layout, guard: u8) -> Result<Self, OpError> {
        match (layout, host.format.scale()) {
            (Layout::Guarded(_), _) => Self::guarded(device, host, guard),
            (Layout::Strided, None) if host.shape.len() > 1 => Self::strided(device, host),
            (Layout::Strided, Some(scale)) if scale.rows == 1 && host.shape.len() == 2 && host.shape[1] > 0 => {
                let whole = upload(device, &with_row_before(host))?;
                Ok(Self::of(whole.rows(1, host.shape[0]), host.codes.len()))
            }
            _ => Ok(Self::of(upload(device, host)?, host.codes.len())),
        }
    }

    fn of(view: Tensor, bytes: usize) -> Self {
        let scales = view.scale().is_some().then(|| view.scale_as_bytes());
        Self { memory: (as_bytes(&view, bytes), scales), view, guards: Vec::new() }
    }

    fn guarded(device: &dyn Device, host: &HostTensor, byte: u8) -> Result<Self, OpError> {
        let (codes, memory) = Guard::new(device, host.codes.len(), byte)?;
        let mut guards = vec![codes];
        let view = if host.format.scale().is_some() {
            let (scales, scale_memory) = Guard::new(device, host.scales.len(), byte ^ 0xFF)?;
            guards.push(scales);
            let view = Tensor::quantized((&memory, GUARD), (&scale_memory, GUARD), host.format, &host.shape);
            device.upload(&view.scale_as_bytes(), &host.scales)?;
            view
        } else {
            Tensor::plain(&memory, GUARD, host.format, &host.shape)
        };
        device.upload(&view, &host.codes)?;
        let codes = Tensor::plain(&memory, GUARD, Format::U8, &[host.codes.len()]);
        let scales = view.scale().is_some().then(|| view.scale_as_bytes());
        Ok(Self { view, memory: (codes, scales), guards })
    }

    /// What lies around it is as it was, or the first byte that is not.
    fn first_touched(&self, device: &dyn Device) -> Result<Option<Where>, OpError> {
        for guard in &self.guards {
            if let Some(at) = guard.first_touched(device)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn strided(device: &dyn Device, host: &HostTensor) -> Result<Self, OpError> {
        let (rows, columns, size) = row_geometry(host);
        let mut bytes = vec![GAP_BYTE; rows * (columns + GAP) * size];
        for row in 0..rows {
            bytes[row * (columns + GAP) * size..][..columns * size]
                .copy_from_slice(&host.codes[row * columns * size..][..columns * size]);
        }
        let memory = device.allocate(bytes.len())?;
        let whole = Tensor::plain(&memory, 0, host.format, &[rows * (columns + GAP)]);
        device.upload(&whole, &bytes)?;
        let mut strides = vec![1; host.shape.len()];
        let mut stride = columns + GAP;
        for dim in (0..host.shape.len() - 1).rev() {
            strides[dim] = stride;
            stride *= host.shape[dim].max(1);
        }
        let view = whole.with_strides(&host.shape, &strides);
        Ok(Self { view, memory: (as_bytes(&whole, bytes.len()), None), guards: Vec::new() })
    }

    /// The content without gaps; `None` if a gap was written.
    fn read(&self, device: &dyn Device, host: &HostTensor) -> Result<Option<HostTensor>, OpError> {
        let mut out = host.clone();
        let bytes = download(device, &self.memory.0)?;
        if let Some(scales) = &self.memory.1 {
            (out.codes, out.scales) = (bytes, download(device, scales)?);
        } else if bytes.len() == host.codes.len() {
            out.codes = bytes;
        } else {
            let (_, columns, size) = row_geometry(host);
            out.codes.clear();
            for row in bytes.chunks_exact((columns + GAP) * size) {
                let (row, gap) = row.split_at(columns * size);
                if gap.iter().any(|&byte| byte != GAP_BYTE) {
                    return Ok(None);
                }
                out.codes.extend_from_slice(row);
            }
        }
        Ok(Some(out))
    }
}

/// A contiguous tensor on the device.
fn upload(device: &dyn Device, host: &HostTensor) -> Result<Tensor, OpError> {
    let codes = device.allocate(host.codes.len())?;
    let tensor = if host.format.scale().is_some() {
        let scales = device.allocate(host.scales.len())?;
        let tensor = Tensor::quantized((&codes, 0), (&scales, 0), host.format, &host.shape);
        device.upload(&tensor.scale_as_bytes(), &host.scales)?;
        tensor
    } else {
        Tensor::plain(&codes, 0, host.format, &host.shape)
    };
    device.upload(&tensor, &host.codes)?;
    Ok(tensor)
}

/// The bytes of a contiguous tensor, without its scales.
fn download(device: &dyn Device, tensor: &Tensor) -> Result<Vec<u8>, OpError> {
    let mut bytes = vec![0; tensor.bytes()];
    device.download(tensor, &mut bytes)?;
    Ok(bytes)
}

/// Rows, columns and bytes per element of a plain tensor seen as a matrix.
fn row_geometry(host: &HostTensor) -> (usize, usize, usize) {
    let (columns, outer) = host.shape.split_last().expect("a dimension");
    (outer.iter().product(), *columns, host.element_bytes().expect("a plain format"))
}

/// The tensor with a row of other bytes in front.
fn with_row_before(host: &HostTensor) -> HostTensor {
    let mut longer = HostTensor::filled(host.format, &[host.shape[0] + 1, host.shape[1]], GAP_BYTE);
    let (codes, scales) = (longer.codes.len() - host.codes.len(), longer.scales.len() - host.scales.len());
    longer.codes[codes..].copy_from_slice(&host.codes);
    longer.scales[scales..].copy_from_slice(&host.scales);
    longer
}

fn as_bytes(tensor: &Tensor, bytes: usize) -> Tensor {
    Tensor::plain(&tensor.memory(), 0, Format::U8, &[bytes])
}

/// The typed call of each op, arguments by kind.
macro_rules! calls {
    ($($op:ident: $Args:ident { $($arg:ident: $kind:ident),* })*) => {
        /// Ops that can be called.
        pub(crate) const CALLABLE: &[&str] = &[$(stringify!($op)),*];

        fn dispatch(placed: &dyn Arguments, device: &dyn Device, route: Route) -> Result<(), OpError> {
            match placed.op() {
                $(stringify!($op) => {
                    let args = args::$Args { $($arg: placed.$kind(stringify!($arg))),* };
                    match route {
                        Route::Trait => device.$op(&args),
                        Route::Kernel => device.dispatch(&args),
                    }
                })*
                other => panic!("no call of {other}: run `cargo xtask codegen`"),
            }
        }

        fn visit(placed: &dyn Arguments, f: &mut dyn FnMut(&dyn OpCall)) {
            match placed.op() {
                $(stringify!($op) => f(&args::$Args { $($arg: placed.$kind(stringify!($arg))),* }),)*
                other => panic!("no call of {other}: run `cargo xtask codegen`"),
            }
        }
    };
}

// The list itself, an op to a line, is made from the catalogue.
include!("generated/calls.rs");
