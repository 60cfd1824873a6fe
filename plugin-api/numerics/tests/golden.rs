//! Bit equality with the golden file of number formats, which the PyTorch reference of the model wrote.

use std::path::Path;

use deepinfer_numerics::{Fp4Scale, block, e2m1, e4m3, group, pack, scale, ue8m0};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

struct Golden(Vec<u8>);

impl Golden {
    fn open() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden/quant.safetensors");
        Self(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn tensor(&self, name: &str, dtype: Dtype) -> TensorView<'_> {
        let tensor = SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        tensor
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensor(name, Dtype::U8).data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let data = self.tensor(name, Dtype::F32).data().as_chunks::<4>().0.to_vec();
        data.into_iter().map(f32::from_le_bytes).collect()
    }

    fn matrix(&self, name: &str) -> (Vec<f32>, usize, usize) {
        let shape = self.tensor(name, Dtype::F32).shape().to_vec();
        (self.floats(name), shape[0], shape[1])
    }
}

/// Equal bit for bit, except that any NaN equals any other: the file's producer does not define their payloads.
fn assert_same(name: &str, ours: &[f32], golden: &[f32]) {
    assert_eq!(ours.len(), golden.len(), "{name}");
    for (i, (ours, golden)) in ours.iter().zip(golden).enumerate() {
        let same = ours.to_bits() == golden.to_bits() || ours.is_nan() && golden.is_nan();
        assert!(same, "{name}[{i}]: {ours:e} instead of {golden:e}");
    }
}

fn map<T: Copy, U>(x: &[T], f: impl Fn(T) -> U) -> Vec<U> {
    x.iter().map(|&x| f(x)).collect()
}

#[test]
fn e4m3_values_and_rounding() {
    let golden = Golden::open();
    assert_same("e4m3.value", &map(&golden.bytes("e4m3.code"), e4m3::decode), &golden.floats("e4m3.value"));
    assert_eq!(map(&golden.floats("e4m3.in"), e4m3::encode), golden.bytes("e4m3.byte"));
}

#[test]
fn e2m1_values_and_rounding() {
    let golden = Golden::open();
    let codes = map(&golden.floats("e2m1.in"), e2m1::encode);
    assert_eq!(codes, golden.bytes("e2m1.code"));
    assert_same("e2m1.value", &map(&codes, e2m1::decode), &golden.floats("e2m1.value"));
}

#[test]
fn ue8m0_values() {
    let golden = Golden::open();
    let (bytes, values) = (golden.bytes("e8m0.byte"), golden.floats("e8m0.value"));
    assert_same("e8m0.value", &map(&bytes, ue8m0::decode), &values);
    assert_eq!(map(&values, ue8m0::encode_pow2), bytes);
}

#[test]
fn scale_rules() {
    let golden = Golden::open();
    let amax = golden.floats("scale.amax");
    assert_eq!(map(&amax, scale::fp8), golden.bytes("scale.fp8_byte"));
    assert_eq!(map(&amax, scale::fp4_ue8m0), golden.bytes("scale.fp4_byte"));
}

#[test]
fn fp8_groups() {
    let golden = Golden::open();
    let x = golden.floats("group.in");
    let (mut codes, mut scales, mut out) = (vec![0; x.len()], vec![0; x.len() / 32], vec![0.0; x.len()]);
    group::quantize_fp8(&x, &mut codes, &mut scales);
    group::dequantize_fp8(&codes, &scales, &mut out);
    assert_eq!(scales, golden.bytes("group.fp8_scale"));
    assert_eq!(codes, golden.bytes("group.fp8_byte"));
    assert_same("group.fp8_deq", &out, &golden.floats("group.fp8_deq"));
}

fn check_fp4(kind: Fp4Scale, name: &str) {
    let golden = Golden::open();
    let x = golden.floats("group.in");
    let (mut packed, mut scales) = (vec![0; x.len() / 2], vec![0; x.len() / kind.group()]);
    let mut out = vec![0.0; x.len()];
    group::quantize_fp4(&x, &mut packed, &mut scales, kind);
    group::dequantize_fp4(&packed, &scales, &mut out, kind);
    assert_eq!(scales, golden.bytes(&format!("group.{name}_scale")));
    assert_eq!(packed, golden.bytes(&format!("group.{name}_packed")));
    assert_same(name, &out, &golden.floats(&format!("group.{name}_deq")));

    let mut codes = vec![0; x.len()];
    pack::unpack(&packed, &mut codes);
    let values: Vec<f32> =
        codes.iter().zip(0..).map(|(&c, i)| e2m1::decode(c) * kind.decode(scales[i / kind.group()])).collect();
    assert_same(name, &values, &out);
}

#[test]
fn fp4_groups_with_a_ue8m0_scale() {
    check_fp4(Fp4Scale::Ue8m0, "fp4");
}

/// The file was made with a division by 6 in the scale rule, ours multiplies by f32(1/6). The inputs are bfloat16 values, for
/// which the two forms always give the same byte (a unit test of the scale rules shows it).
#[test]
fn fp4_groups_with_an_e4m3_scale() {
    check_fp4(Fp4Scale::E4m3, "kv4");
}

#[test]
fn fp8_tiles_with_partial_edges() {
    let golden = Golden::open();
    let (w, rows, cols) = golden.matrix("block.in");
    let (mut codes, mut scales) = (vec![0; w.len()], vec![0; block::scale_count(rows, cols)]);
    let mut out = vec![0.0; w.len()];
    block::quantize_fp8_tiles(&w, rows, cols, &mut codes, &mut scales);
    block::dequantize_fp8_tiles(&codes, &scales, rows, cols, &mut out);
    assert_eq!(scales, golden.bytes("block.scale"));
    assert_eq!(codes, golden.bytes("block.byte"));
    assert_same("block.deq", &out, &golden.floats("block.deq"));
}

/// FP8 input times FP8 tile weight, both dequantised. The order of the sum is free, so the bound is 1e-5 of the sum of
/// the magnitudes of the products.
#[test]
fn product_of_dequantised_matrices() {
    let golden = Golden::open();
    let (x, rows, inner) = golden.matrix("gemm.in");
    let (expected, _, outputs) = golden.matrix("gemm.out_f32");
    let (mut codes, mut scales, mut a) = (vec![0; x.len()], vec![0; x.len() / 32], vec![0.0; x.len()]);
    group::quantize_fp8(&x, &mut codes, &mut scales);
    group::dequantize_fp8(&codes, &scales, &mut a);
    let mut w = vec![0.0; outputs * inner];
    block::dequantize_fp8_tiles(&golden.bytes("block.byte"), &golden.bytes("block.scale"), outputs, inner, &mut w);

    for (row, (a, expected)) in a.chunks_exact(inner).zip(expected.chunks_exact(outputs)).enumerate() {
        for (output, (w, &expected)) in w.chunks_exact(inner).zip(expected).enumerate() {
            let products = a.iter().zip(w).map(|(&a, &w)| f64::from(a) * f64::from(w));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let error = (sum - f64::from(expected)).abs();
            assert!(error <= 1e-5 * size, "[{row}, {output}]: {sum} instead of {expected}");
        }
    }
    assert_eq!(rows * outputs, expected.len());
}
