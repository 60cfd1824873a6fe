//! Calls made by hand, and held to their oracles.

use deepinfer_ops::Format;
use deepinfer_oracle::{Call, HostTensor, Value};
use deepinfer_parity::{SplitMix64, run_call};
use deepinfer_plugin_api::op_by_name;
use deepinfer_runtime::{OpenDevice, Runtime, SearchPath, Selection};

/// A call that is being made. Floats are uniform in -2..2, from a seed that is always the same.
pub(crate) struct Draw {
    rng: SplitMix64,
    call: Call,
}

impl Draw {
    fn tensor(&mut self, name: &'static str, tensor: HostTensor) -> &mut Self {
        self.call.set(name, Value::Tensor(tensor));
        self
    }

    fn random(&mut self, format: Format, shape: &[usize]) -> HostTensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| (self.rng.unit() * 4.0 - 2.0) as f32).collect();
        HostTensor::floats(format, shape, &values)
    }

    pub(crate) fn floats(&mut self, name: &'static str, format: Format, shape: &[usize]) -> &mut Self {
        let tensor = self.random(format, shape);
        self.tensor(name, tensor)
    }

    /// As many tensors of this shape.
    pub(crate) fn list_of_floats(
        &mut self,
        name: &'static str,
        format: Format,
        count: usize,
        shape: &[usize],
    ) -> &mut Self {
        let tensors = (0..count).map(|_| self.random(format, shape)).collect();
        self.call.set(name, Value::List(tensors));
        self
    }

    pub(crate) fn ints(&mut self, name: &'static str, shape: &[usize], value: impl Fn(usize) -> i32) -> &mut Self {
        let values: Vec<i32> = (0..shape.iter().product()).map(value).collect();
        self.tensor(name, HostTensor::i32(shape, &values))
    }

    pub(crate) fn longs(&mut self, name: &'static str, shape: &[usize], value: impl Fn(usize) -> i64) -> &mut Self {
        let values: Vec<i64> = (0..shape.iter().product()).map(value).collect();
        self.tensor(name, HostTensor::i64(shape, &values))
    }

    pub(crate) fn bytes(&mut self, name: &'static str, shape: &[usize]) -> &mut Self {
        let bytes = (0..shape.iter().product()).map(|_| self.rng.next() as u8).collect();
        self.tensor(name, HostTensor::u8(shape, bytes))
    }

    /// Not 0 once in four.
    pub(crate) fn mask(&mut self, name: &'static str, len: usize) -> &mut Self {
        let bytes = (0..len).map(|_| u8::from(self.rng.below(4) == 0)).collect();
        self.tensor(name, HostTensor::u8(&[len], bytes))
    }

    pub(crate) fn size(&mut self, name: &'static str, value: usize) -> &mut Self {
        self.call.set(name, Value::U32(value as u32));
        self
    }

    pub(crate) fn integer(&mut self, name: &'static str, value: i32) -> &mut Self {
        self.call.set(name, Value::I32(value));
        self
    }

    pub(crate) fn number(&mut self, name: &'static str, value: f32) -> &mut Self {
        self.call.set(name, Value::F32(value));
        self
    }

    /// An output, poisoned.
    pub(crate) fn out(&mut self, name: &'static str, format: Format, shape: &[usize]) -> &mut Self {
        self.tensor(name, HostTensor::filled(format, shape, 0xA5))
    }
}

/// Makes a call of an op, and holds what the ascend backend writes to the oracle. Where the plugin has no kernels it says so.
#[track_caller]
pub(crate) fn hold(op: &'static str, make: impl FnOnce(&mut Draw)) {
    let Some(device) = device() else { return };
    let info = op_by_name(op).unwrap_or_else(|| panic!("no op {op}"));
    let mut draw = Draw { rng: SplitMix64(u64::from(info.id)), call: Call::new(info) };
    make(&mut draw);
    let call = draw.call;
    let found = run_call(&device, &call).unwrap_or_else(|error| panic!("{call}: {error}"));
    if let Err(disagreement) = call.judge(&found) {
        panic!("{call}: {disagreement}");
    }
}

fn device() -> Option<OpenDevice> {
    let runtime = Runtime::new(SearchPath::from_environment());
    let selected = runtime.select(&Selection::parse("ascend").unwrap()).map_err(|error| error.to_string());
    match selected.and_then(|(backend, device)| backend.open(device).map_err(|error| error.to_string())) {
        Ok(device) if device.info().is_emulated => Some(device),
        Ok(_) => {
            eprintln!("skipped: the ascend backend was not built for the host twin");
            None
        }
        Err(error) if error.contains("was built without its Ascend kernels") => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
