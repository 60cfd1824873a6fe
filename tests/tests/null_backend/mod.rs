//! A backend whose ops do nothing, and one valid call of each of sixteen ops: what remains is the cost of the boundary.

use deepinfer_ops::args::*;
use deepinfer_ops::{Device, Format, OpCall, Tensor};
use deepinfer_runtime::{OpenDevice, load};
use tempfile::TempDir;

use crate::c_plugin::plugin;

/// The opened device and the folder of its library. `None`, with a line that says so, when there is no C compiler.
pub(crate) fn open() -> Option<(TempDir, OpenDevice)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // One counter and a return remain of a call; they must not be those of an unoptimised build.
    let path = plugin(folder.path(), "null.c", "libdeepinfer_null.so", &["-O2"])?;
    let backend = load(&path, "").unwrap_or_else(|e| panic!("{e}"));
    let device = backend.open(0).unwrap_or_else(|e| panic!("{e}"));
    Some((folder, device))
}

/// Tensors that live as long as the process, so that calls may be kept beside the device.
struct Tensors<'a>(&'a OpenDevice);

impl Tensors<'_> {
    fn of(&self, format: Format, shape: &[usize]) -> &'static Tensor {
        let codes = self.0.allocate(Tensor::bytes_of(format, shape)).expect("memory");
        let tensor = match Tensor::scale_shape(format, shape) {
            None => Tensor::plain(&codes, 0, format, shape),
            Some(grid) => {
                let scales = self.0.allocate(grid.iter().product()).expect("memory");
                Tensor::quantized((&codes, 0), (&scales, 0), format, shape)
            }
        };
        Box::leak(Box::new(tensor))
    }

    fn f32(&self, shape: &[usize]) -> &'static Tensor {
        self.of(Format::F32, shape)
    }

    fn bf16(&self, shape: &[usize]) -> &'static Tensor {
        self.of(Format::Bf16, shape)
    }

    fn i32(&self, shape: &[usize]) -> &'static Tensor {
        self.of(Format::I32, shape)
    }
}

/// A call of four plain tensors.
pub(crate) fn four_tensors(device: &OpenDevice) -> HcExpand<'static> {
    let t = Tensors(device);
    HcExpand { x: t.bf16(&[2, 4, 64]), y: t.bf16(&[2, 64]), post: t.f32(&[2, 4]), comb: t.f32(&[2, 4, 4]) }
}

/// A call that goes through a plan.
pub(crate) fn planned(device: &OpenDevice) -> Rstd<'static> {
    let t = Tensors(device);
    Rstd { x: t.bf16(&[2, 64]), eps: 1e-6, out: t.f32(&[2]) }
}

/// One call of each of sixteen ops that `null.c` implements directly: three to seven tensors, plain, quantised,
/// absent and in lists.
pub(crate) fn sixteen(device: &OpenDevice) -> Vec<Box<dyn OpCall>> {
    let t = Tensors(device);
    let experts: Vec<Tensor> = (0..4).map(|_| t.of(Format::Fp4Row32, &[32, 64]).clone()).collect();
    let (rows, hidden) = (t.bf16(&[2, 64]), t.bf16(&[2, 64]));
    vec![
        Box::new(Gather { table: t.f32(&[8, 64]), index: t.i32(&[2]), repeat: 3, out: t.f32(&[2, 3, 64]) }),
        Box::new(RmsNorm { x: rows, weight: t.bf16(&[64]), eps: 1e-6, out: hidden }),
        Box::new(Linear {
            x: t.of(Format::Fp8Row32, &[2, 64]),
            weight: t.of(Format::Fp8Tile32, &[32, 64]),
            groups: 1,
            out: t.bf16(&[2, 32]),
        }),
        Box::new(GroupedLinear {
            x: t.of(Format::Fp8Row32, &[6, 64]),
            weight: Box::leak(experts.into_boxed_slice()),
            expert_start: t.i32(&[5]),
            out: t.bf16(&[6, 32]),
        }),
        Box::new(Quantize { x: rows, out: t.of(Format::Fp8Row32, &[2, 64]) }),
        Box::new(EngramGate {
            x: t.bf16(&[2, 4, 64]),
            kv: t.bf16(&[2, 320]),
            q_weight: t.bf16(&[4, 64]),
            k_weight: t.bf16(&[4, 64]),
            image_mask: None,
            eps: 1e-6,
        }),
        Box::new(Rope { x: t.bf16(&[2, 4, 64]), positions: t.i32(&[2]), freqs: t.f32(&[16]), inverse: 0 }),
        Box::new(HcCollapse { x: t.bf16(&[2, 4, 64]), pre: t.f32(&[2, 4]), out: hidden }),
        Box::new(four_tensors(device)),
        Box::new(SwigluQuantize {
            gate: rows,
            up: hidden,
            row_weight: Some(t.f32(&[2])),
            limit: 7.0,
            mid: 0,
            out: t.of(Format::Fp8Row32, &[2, 64]),
        }),
        Box::new(MoeGate {
            logits: t.f32(&[2, 8]),
            bias: t.f32(&[8]),
            bias_vl: None,
            image_mask: None,
            scoring: 0,
            normalize: 1,
            route_scale: 1.5,
            experts: t.i32(&[2, 2]),
            weights: t.f32(&[2, 2]),
        }),
        Box::new(MoeDispatch {
            x: rows,
            experts: t.i32(&[2, 2]),
            weights: t.f32(&[2, 2]),
            out: t.bf16(&[4, 64]),
            row_weight: t.f32(&[4]),
            expert_start: t.i32(&[9]),
            row_of: t.i32(&[2, 2]),
        }),
        Box::new(MoeCombine { y: t.bf16(&[4, 64]), row_of: t.i32(&[2, 2]), shared: Some(rows), out: hidden }),
        Box::new(EngramGather { table: t.bf16(&[9, 16]), rows: t.i32(&[2, 4]), out: rows }),
        Box::new(FusedSample {
            logits: t.f32(&[2, 99]),
            inv_temperature: t.f32(&[2]),
            seed: t.of(Format::I64, &[2]),
            position: t.i32(&[2]),
            token: t.i32(&[2]),
            child: None,
            min_p_log: None,
            top_k: None,
            top_p: None,
        }),
        Box::new(ConvertKvIndex {
            positions: t.i32(&[2, 7]),
            row_request: t.i32(&[2]),
            block_table: t.i32(&[1, 3]),
            entries_per_page: 128,
            slots: t.i32(&[2, 7]),
        }),
    ]
}
