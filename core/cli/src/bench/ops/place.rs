//! Arguments on a device, in as many sets as it takes that a set has left the cache before it is used again.

use std::collections::BTreeMap;

use deepinfer_ops::{Allocation, Device, Format, OpError, Tensor};
use deepinfer_parity::{Arguments, SplitMix64, dispatch_on};

use super::case::{Arg, Call, Case, Content, Spec};
use super::content;

/// Most sets: each is a call of its own in what is recorded.
const MOST_SETS: usize = 512;
/// Alignment of tensors.
const ALIGN: usize = 256;

/// Sets of arguments of a case.
pub(super) struct Sets {
    /// The calls of each set.
    sets: Vec<Vec<PlacedCall>>,
}

impl Sets {
    /// Places as many sets as it takes that `rotate` bytes are moved between two uses of one.
    ///
    /// # Errors
    /// The device has not enough memory, or reports a fault.
    pub(super) fn place(device: &dyn Device, case: &Case, rotate: usize) -> Result<Self, OpError> {
        let count = (rotate as f64 / case.bytes.max(1.0)).ceil() as usize + 1;
        let count = if rotate == 0 { 1 } else { count.min(MOST_SETS) };
        let mut rng = SplitMix64(0x5EED);
        let of_calls = case.calls.iter().map(|call| place(device, call, count, &mut rng));
        let of_calls = of_calls.collect::<Result<Vec<_>, _>>()?;
        let mut sets: Vec<Vec<PlacedCall>> = (0..count).map(|_| Vec::new()).collect();
        for calls in of_calls {
            sets.iter_mut().zip(calls).for_each(|(set, call)| set.push(call));
        }
        Ok(Self { sets })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Makes the calls of a set.
    ///
    /// # Errors
    /// As the ops.
    pub(super) fn call(&self, device: &dyn Device, number: usize) -> Result<(), OpError> {
        self.sets[number % self.sets.len()].iter().try_for_each(|call| dispatch_on(device, call))
    }
}

/// A call whose arguments are on a device.
#[derive(Clone)]
struct PlacedCall {
    op: &'static str,
    tensors: BTreeMap<&'static str, Tensor>,
    lists: BTreeMap<&'static str, Vec<Tensor>>,
    scalars: BTreeMap<&'static str, f64>,
}

impl Arguments for PlacedCall {
    fn op(&self) -> &'static str {
        self.op
    }

    fn optional(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    fn list(&self, name: &str) -> &[Tensor] {
        &self.lists[name]
    }

    fn u32(&self, name: &str) -> u32 {
        self.scalars[name] as u32
    }

    fn f32(&self, name: &str) -> f32 {
        self.scalars[name] as f32
    }

    fn i32(&self, name: &str) -> i32 {
        self.scalars[name] as i32
    }
}

/// Bytes of a tensor on the device, with its scales behind it, up to where the next one may begin.
fn room(spec: &Spec) -> usize {
    let (codes, scales) = spec.bytes();
    codes.next_multiple_of(ALIGN) + scales.next_multiple_of(ALIGN)
}

fn tensor(memory: &Allocation, at: usize, spec: &Spec) -> Tensor {
    let scales = at + spec.bytes().0.next_multiple_of(ALIGN);
    match spec.format.scale() {
        Some(_) => Tensor::quantized((memory, at), (memory, scales), spec.format, &spec.shape),
        None => Tensor::plain(memory, at, spec.format, &spec.shape),
    }
}

/// Places `count` sets of the arguments of a call.
fn place(device: &dyn Device, call: &Call, count: usize, rng: &mut SplitMix64) -> Result<Vec<PlacedCall>, OpError> {
    let own = |arg: &Arg| match arg {
        Arg::Tensor(spec) if !spec.is_shared => room(spec),
        Arg::List(spec, len) => room(spec) * len,
        _ => 0,
    };
    let stride: usize = call.args.iter().map(|(_, arg)| own(arg)).sum();
    let memory = device.allocate((stride * count).max(ALIGN))?;
    let scalars = call.args.iter().filter_map(|(name, arg)| match arg {
        Arg::U32(value) => Some((*name, f64::from(*value))),
        Arg::F32(value) => Some((*name, f64::from(*value))),
        Arg::Tensor(_) | Arg::List(..) => None,
    });
    let (tensors, lists) = (BTreeMap::new(), BTreeMap::new());
    let mut calls = vec![PlacedCall { op: call.op, tensors, lists, scalars: scalars.collect() }; count];

    let mut at = 0;
    for (name, arg) in &call.args {
        match arg {
            Arg::Tensor(spec) if spec.is_shared => {
                let memory = device.allocate(room(spec).max(ALIGN))?;
                let tensor = tensor(&memory, 0, spec);
                fill(device, &tensor, spec, rng)?;
                for call in &mut calls {
                    call.tensors.insert(name, tensor.clone());
                }
            }
            Arg::Tensor(spec) => {
                fill(device, &tensor(&memory, at, spec), spec, rng)?;
                for (set, call) in calls.iter_mut().enumerate() {
                    call.tensors.insert(name, tensor(&memory, set * stride + at, spec));
                }
                at += room(spec);
            }
            Arg::List(spec, len) => {
                fill(device, &tensor(&memory, at, spec), spec, rng)?;
                repeat(device, &memory, at, room(spec), room(spec) * len)?;
                for (set, call) in calls.iter_mut().enumerate() {
                    let place = |item: usize| tensor(&memory, set * stride + at + item * room(spec), spec);
                    call.lists.insert(name, (0..*len).map(place).collect());
                }
                at += room(spec) * len;
            }
            Arg::U32(_) | Arg::F32(_) => {}
        }
    }
    repeat(device, &memory, 0, stride, stride * count)?;
    // Each set reads other parts of what they share.
    if call.args.iter().any(|(_, arg)| matches!(arg, Arg::Tensor(spec) if spec.is_shared)) {
        for call_of_set in calls.iter().skip(1) {
            for (name, arg) in &call.args {
                if let Arg::Tensor(spec @ Spec { content: Content::Integers(of), is_shared: false, .. }) = arg {
                    let bytes = content::integers(spec.format, spec.shape.iter().product(), of, rng);
                    device.upload(&call_of_set.tensors[name], &bytes)?;
                }
            }
        }
    }
    Ok(calls)
}

/// Puts content into a tensor.
fn fill(device: &dyn Device, tensor: &Tensor, spec: &Spec, rng: &mut SplitMix64) -> Result<(), OpError> {
    let (codes, scales) = content::blocks(spec, rng);
    let put = |tensor: &Tensor, block: &[u8]| {
        device.upload(tensor, block)?;
        repeat(device, &tensor.memory(), 0, block.len(), tensor.bytes())
    };
    put(tensor, &codes)?;
    if tensor.scale().is_some() { put(&tensor.scale_as_bytes(), &scales) } else { Ok(()) }
}

/// Repeats the first `block` bytes from `start` on until there are `total`.
pub(super) fn repeat(
    device: &dyn Device,
    memory: &Allocation,
    start: usize,
    block: usize,
    total: usize,
) -> Result<(), OpError> {
    let bytes = |at: usize, len: usize| Tensor::plain(memory, start + at, Format::U8, &[len]);
    let mut done = block;
    while done > 0 && done < total {
        let len = done.min(total - done);
        device.copy(&bytes(done, len), &bytes(0, len))?;
        done += len;
    }
    Ok(())
}
