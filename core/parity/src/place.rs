//! Runs a call on a device: uploads it in one of two layouts, calls the op, reads back what it wrote.

use std::collections::BTreeMap;

use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Format, OpError, Tensor, args};
use deepinfer_oracle::{Call, HostTensor, Value};
use deepinfer_plugin_api::Role;

/// How tensors lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// One element after the other.
    Contiguous,
    /// A gap after the last dimension of plain tensors; row-quantised tensors begin in the middle of their memory.
    Strided,
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

/// Written arguments by name.
pub(crate) type Written = BTreeMap<&'static str, HostTensor>;

/// Why a call gave no result.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The arguments did not reach the device.
    Upload(OpError),
    /// The op was refused, or reported a fault.
    Op(OpError),
    /// The op wrote into a gap between the rows of this argument.
    Gap(&'static str),
}

/// Calls the op and returns its written arguments.
pub(crate) fn run(device: &dyn Device, call: &Call, layout: Layout, route: Route) -> Result<Written, RunError> {
    let mut bound = Bound { call, tensors: BTreeMap::new(), lists: BTreeMap::new() };
    for (&name, value) in &call.args {
        match value {
            Value::Tensor(host) => {
                bound.tensors.insert(name, Placed::new(device, host, layout).map_err(RunError::Upload)?);
            }
            Value::List(list) => {
                let views = list.iter().map(|host| Placed::new(device, host, layout).map(|placed| placed.view));
                bound.lists.insert(name, views.collect::<Result<_, _>>().map_err(RunError::Upload)?);
            }
            _ => {}
        }
    }
    dispatch(&bound, device, route).map_err(RunError::Op)?;
    let written = call.op.args.iter().filter(|arg| arg.role != Role::In);
    let mut out = Written::new();
    for arg in written {
        if let Some(placed) = bound.tensors.get(arg.name) {
            let tensor = placed.read(device, call.tensor(arg.name)).map_err(RunError::Op)?;
            out.insert(arg.name, tensor.ok_or(RunError::Gap(arg.name))?);
        }
    }
    Ok(out)
}

/// A tensor on the device.
struct Placed {
    view: Tensor,
    /// All of the memory, as bytes: of the codes, and of the scales.
    memory: (Tensor, Option<Tensor>),
}

impl Placed {
    fn new(device: &dyn Device, host: &HostTensor, layout: Layout) -> Result<Self, OpError> {
        match (layout, host.format.scale()) {
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
        Self { memory: (as_bytes(&view, bytes), scales), view }
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
        Ok(Self { view: whole.with_strides(&host.shape, &strides), memory: (as_bytes(&whole, bytes.len()), None) })
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

/// Arguments on the device, by name.
struct Bound<'a> {
    call: &'a Call,
    tensors: BTreeMap<&'static str, Placed>,
    lists: BTreeMap<&'static str, Vec<Tensor>>,
}

impl Bound<'_> {
    fn tensor(&self, name: &str) -> &Tensor {
        self.optional(name).unwrap_or_else(|| panic!("{}: {name} is absent", self.call.op.name))
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

/// The typed call of each op, arguments by kind.
macro_rules! calls {
    ($($op:ident: $Args:ident { $($arg:ident: $kind:ident),* })*) => {
        /// Ops that can be called.
        pub(crate) const CALLABLE: &[&str] = &[$(stringify!($op)),*];

        fn dispatch(bound: &Bound<'_>, device: &dyn Device, route: Route) -> Result<(), OpError> {
            match bound.call.op.name {
                $(stringify!($op) => {
                    let args = args::$Args { $($arg: bound.$kind(stringify!($arg))),* };
                    match route {
                        Route::Trait => device.$op(&args),
                        Route::Kernel => device.dispatch(&args),
                    }
                })*
                other => panic!("no call of {other}: run `cargo xtask codegen`"),
            }
        }
    };
}

// The list itself, an op to a line, is made from the catalogue.
include!("generated/calls.rs");
