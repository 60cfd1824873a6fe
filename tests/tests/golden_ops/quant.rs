//! Number formats: what ops write and read, bit for bit.

use deepinfer_ops::traits::*;
use deepinfer_ops::{CacheFormat, Format, args};
use deepinfer_tests::{Golden, assert_close};

use crate::Bench;

/// Rows of one value each, followed by a filler that decides their scale and zeros.
fn rows_with(values: &[f32], filler: f32) -> Vec<f32> {
    values
        .iter()
        .flat_map(|&v| {
            let mut row = [0.0; 32];
            (row[0], row[1]) = (v, filler);
            row
        })
        .collect()
}

/// The value of each FP8 code under a scale byte, through the op that dequantises table rows.
fn decode_fp8(bench: &Bench, codes: &[u8], scales: &[u8]) -> Vec<f32> {
    let rows = scales.len();
    let table = bench.tensors.quantized(Format::Fp8Row32, &[rows, 32], codes, scales);
    let (numbers, out) = ((0..rows as i32).collect::<Vec<_>>(), bench.empty(&[rows, 32]));
    let rows = bench.tensors.i32(&[rows, 1], &numbers);
    bench.device.engram_gather(&args::EngramGather { table: &table, rows: &rows, out: &out }).expect("engram_gather");
    bench.floats(&out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[test]
fn codes_and_scale_bytes_decode() {
    let (bench, golden) = (Bench::new(), Golden::open("quant"));
    let found = decode_fp8(&bench, &golden.u8("e4m3.code").0, &[127; 8]);
    assert_eq!(bits(&found), bits(&golden.f32("e4m3.value").0), "E4M3 codes");

    let bytes = golden.u8("e8m0.byte").0;
    let ones = vec![0x38; bytes.len() * 32];
    let found: Vec<f32> = decode_fp8(&bench, &ones, &bytes).chunks(32).map(|row| row[0]).collect();
    assert_eq!(bits(&found), bits(&golden.f32("e8m0.value").0), "UE8M0 bytes");
}

#[test]
fn single_values_round_to_their_codes() {
    let (bench, golden) = (Bench::new(), Golden::open("quant"));
    // A filler of the largest magnitude fixes the scale at 1; larger values would change it.
    let (values, wanted) = (golden.f32("e4m3.in").0, golden.u8("e4m3.byte").0);
    let kept: Vec<usize> = (0..values.len()).filter(|&i| values[i].abs() <= 448.0).collect();
    assert!(kept.len() > 300);
    let chosen: Vec<f32> = kept.iter().map(|&i| values[i]).collect();
    let out = bench.quantize(&bench.tensors.f32(&[kept.len(), 32], &rows_with(&chosen, 448.0)), Format::Fp8Row32);
    let found: Vec<u8> = bench.tensors.bytes(&out).chunks(32).map(|row| row[0]).collect();
    assert_eq!(found, kept.iter().map(|&i| wanted[i]).collect::<Vec<_>>(), "E4M3");

    let values = golden.f32("e2m1.in").0;
    let x = bench.tensors.f32(&[values.len(), 32], &rows_with(&values, 6.0));
    let out = bench.quantize(&x, Format::Fp4Row32);
    let found: Vec<u8> = bench.tensors.bytes(&out).chunks(16).map(|row| row[0] & 15).collect();
    assert_eq!(found, golden.u8("e2m1.code").0, "E2M1");
    let cache = bench.store(&x, CacheFormat::Fp4Row32, 4);
    let found = bench.read(&cache, CacheFormat::Fp4Row32, 4, values.len(), 32);
    let found: Vec<f32> = found.chunks(32).map(|row| row[0]).collect();
    assert_eq!(bits(&found), bits(&golden.f32("e2m1.value").0), "E2M1 values");
}

#[test]
fn scales_follow_the_largest_magnitude() {
    let (bench, golden) = (Bench::new(), Golden::open("quant"));
    let values = golden.f32("scale.amax").0;
    let x = bench.tensors.f32(&[values.len(), 32], &rows_with(&values, 0.0));
    for (format, name) in [(Format::Fp8Row32, "scale.fp8_byte"), (Format::Fp4Row32, "scale.fp4_byte")] {
        let out = bench.quantize(&x, format);
        assert_eq!(bench.tensors.bytes(&out.scale_as_bytes()), golden.u8(name).0, "{name}");
    }
}

#[test]
fn groups_quantise_and_read_back() {
    let (bench, golden) = (Bench::new(), Golden::open("quant"));
    let x = bench.matrix(&golden, "group.in");
    for (format, codes, scales) in [
        (Format::Fp8Row32, "group.fp8_byte", "group.fp8_scale"),
        (Format::Fp4Row32, "group.fp4_packed", "group.fp4_scale"),
        (Format::Fp4Row16, "group.kv4_packed", "group.kv4_scale"),
    ] {
        let out = bench.quantize(&x, format);
        assert_eq!(bench.tensors.bytes(&out), golden.u8(codes).0, "{codes}");
        assert_eq!(bench.tensors.bytes(&out.scale_as_bytes()), golden.u8(scales).0, "{scales}");
    }
    for (format, name) in [
        (CacheFormat::Fp8, "group.fp8_deq"),
        (CacheFormat::Fp4Row32, "group.fp4_deq"),
        (CacheFormat::Fp4Row16, "group.kv4_deq"),
    ] {
        let (wanted, shape) = golden.f32(name);
        let cache = bench.store(&x, format, 4);
        assert_eq!(bits(&bench.read(&cache, format, 4, shape[0], shape[1])), bits(&wanted), "{name}");
    }
}

#[test]
fn tile_weights_decode_and_multiply() {
    let (bench, golden) = (Bench::new(), Golden::open("quant"));
    let (wanted, shape) = golden.f32("block.deq");
    let (codes, scales) = (golden.u8("block.byte").0, golden.u8("block.scale").0);
    let weight = bench.tensors.quantized(Format::Fp8Tile32, &shape, &codes, &scales);

    // Rows of the identity pick the columns of the weight.
    let k = shape[1];
    let identity: Vec<f32> = (0..k * k).map(|i| f32::from(i / k == i % k)).collect();
    let columns = bench.floats(&bench.linear(&bench.tensors.f32(&[k, k], &identity), &weight));
    let rows: Vec<f32> = (0..wanted.len()).map(|i| columns[i % k * shape[0] + i / k]).collect();
    assert_eq!(rows, wanted, "block.deq");

    let x = bench.quantize(&bench.matrix(&golden, "gemm.in"), Format::Fp8Row32);
    let out = bench.floats(&bench.linear(&x, &weight));
    // Relative to the largest result of a row: single ones may cancel.
    let wanted = golden.f32("gemm.out_f32").0;
    for (t, (found, wanted)) in out.chunks(shape[0]).zip(wanted.chunks(shape[0])).enumerate() {
        let largest = wanted.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert_close(&format!("gemm row {t}"), found, wanted, 1e-5 * largest, 0.0);
    }
}
