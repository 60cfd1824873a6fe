//! Bundles: what is written is read again to the bit, and nothing that is not one is taken for one.

use deepinfer_oracle::{Bundle, BundleError, Call, Found, HostTensor, Outputs, Value};
use deepinfer_plugin_api::{Format, op_by_name};
use proptest::prelude::*;

/// A call with a list, several formats, odd FP4 rows, scales and an output.
fn grouped() -> Bundle {
    let mut call = Call::new(op_by_name("grouped_linear").expect("an op of the catalogue"));
    let values: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
    call.set("x", Value::Tensor(HostTensor::floats(Format::Fp8Row32, &[1, 32], &values[..32])));
    call.set("expert_start", Value::Tensor(HostTensor::i32(&[3], &[0, 1, 1])));
    let weights = [Format::Fp4Row32, Format::Fp8Tile32].map(|format| HostTensor::floats(format, &[2, 32], &values));
    call.set("weight", Value::List(weights.to_vec()));
    call.set("out", Value::Tensor(HostTensor::filled(Format::Bf16, &[1, 2], 0xFF)));
    let outputs = Outputs::from([("out", HostTensor::floats(Format::Bf16, &[1, 2], &[1.0, f32::NAN]))]);
    Bundle {
        call,
        case: Some("grouped_linear/value/3".to_owned()),
        seed: Some(u64::MAX),
        problem: Some("the result is not that of the oracle".to_owned()),
        found: Some(Found { backend: "liar 1.0".to_owned(), outputs }),
    }
}

/// A call with numbers and an absent tensor.
fn swiglu(limit: f32) -> Bundle {
    let mut call = Call::new(op_by_name("swiglu_quantize").expect("an op of the catalogue"));
    for name in ["gate", "up"] {
        call.set(name, Value::Tensor(HostTensor::floats(Format::F32, &[0, 7], &[])));
    }
    call.set("row_weight", Value::Absent);
    call.set("limit", Value::F32(limit));
    call.set("mid", Value::U32(1));
    call.set("out", Value::Tensor(HostTensor::filled(Format::F32, &[0, 7], 0)));
    Bundle::new(call)
}

fn read(bundle: &Bundle) -> Bundle {
    Bundle::from_bytes(&bundle.to_bytes().expect("a call that is well formed")).expect("what was just written")
}

#[track_caller]
fn refused(bytes: &[u8], part: &str) {
    let error = Bundle::from_bytes(bytes).err().expect("no bundle").to_string();
    assert!(error.contains(part), "{error}");
}

/// The file with a text in its metadata replaced; the length of the header is set anew.
fn with(bytes: &[u8], old: &str, new: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).expect("JSON");
    // JSON within JSON: its quotes are escaped.
    let [old, new] = [old, new].map(|text| text.replace('"', "\\\""));
    assert!(header.contains(&old), "{old} is not in {header}");
    let header = header.replacen(&old, &new, 1);
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + length..]].concat()
}

#[test]
fn what_is_written_is_read() {
    let (wrote, read) = (grouped(), read(&grouped()));
    assert!(read.call.args == wrote.call.args && read.call.op.id == wrote.call.op.id);
    assert_eq!((read.case, read.seed, read.problem), (wrote.case, wrote.seed, wrote.problem));
    let (read, wrote) = (read.found.expect("outputs"), wrote.found.expect("outputs"));
    assert!(read.outputs == wrote.outputs && read.backend == wrote.backend);
}

#[test]
fn numbers_come_back_to_the_bit() {
    for limit in [0.1, -0.0, f32::MIN_POSITIVE / 3.0, f32::MAX, f32::NEG_INFINITY] {
        let read = read(&swiglu(limit));
        assert_eq!((read.call.real("limit") as f32).to_bits(), limit.to_bits());
        assert!(read.call.optional("row_weight").is_none() && read.found.is_none());
    }
    assert!(read(&swiglu(f32::NAN)).call.real("limit").is_nan());
}

#[test]
fn a_malformed_call_is_not_written() {
    let mut bundle = swiglu(1.0);
    bundle.call.set("up", Value::Tensor(HostTensor::floats(Format::F32, &[0, 8], &[])));
    let error = bundle.to_bytes().expect_err("other columns");
    assert!(matches!(error, BundleError::Malformed(_)), "{error}");
}

#[test]
fn a_file_that_is_no_bundle_says_why() {
    refused(b"", "cannot be read as safetensors");
    refused(&[&2u64.to_le_bytes()[..], b"{}"].concat(), "has no deepinfer_bundle");
    let bytes = grouped().to_bytes().expect("a call that is well formed");
    for (old, new, part) in [
        (r#""version":1,"op""#, r#""version":2,"op""#, "version 2 of the layout"),
        (r#""name":"grouped_linear""#, r#""name":"linear""#, "the catalogue has linear (id 4"),
        (r#""name":"grouped_linear""#, r#""name":"grouped""#, "the catalogue has grouped_linear"),
        (r#""shape":[1,32]"#, r#""shape":[1,64]"#, "of 64 by its description"),
        (r#""shape":[1,32]"#, r#""shape":[32]"#, "has 2 to 4 dimensions"),
        (r#""shape":[1,32]"#, r#""shape":[4294967296,4294967296]"#, "which no memory holds"),
        (r#""shape":[1,32]"#, r#""shape":[0,9223372036854775808]"#, "which no memory holds"),
        (r#""format":"FP8_ROW32""#, r#""format":"FP8_ROW16""#, "unknown format"),
        (r#""format":"FP8_ROW32""#, r#""format":"BF16""#, "call.x is F8_E4M3"),
        (r#""outputs":["out"]"#, r#""outputs":["x"]"#, "x is no output"),
        (r#""outputs":["out"]"#, r#""outputs":[]"#, "no argument names it"),
        (r#""out":{"tensor""#, r#""ouT":{"tensor""#, "ouT is no argument"),
        (r#""version":1,"op""#, r#""version":1,"more":1,"op""#, "unknown field"),
    ] {
        refused(&with(&bytes, old, new), part);
    }
    let bytes = swiglu(1.0).to_bytes().expect("a call that is well formed");
    refused(&with(&bytes, r#""mid":{"u32":1}"#, r#""mid":{"i32":1}"#), "mid is of another kind than U32");
    refused(&with(&bytes, r#""mid":{"u32":1}"#, r#""mid":"absent""#), "mid is absent");
    refused(&with(&bytes, r#","mid":{"u32":1}"#, ""), "mid is missing");
    refused(&with(&bytes, r#""limit":{"f32":"1"}"#, r#""limit":{"f32":"one"}"#), "no number");
    refused(&with(&bytes, r#""shape":[0,7]"#, r#""shape":[7,0]"#), "call.gate is F32[0, 7]");
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Bundle::from_bytes(&bytes).is_err());
    }

    #[test]
    fn a_cut_file_is_refused(share in 0.0..1.0f64) {
        let bytes = grouped().to_bytes().expect("a call that is well formed");
        let end = (share * bytes.len() as f64) as usize;
        prop_assert!(Bundle::from_bytes(&bytes[..end]).is_err());
    }

    /// A changed byte may lie in a tensor; then it is another call, which can be judged without a panic, too.
    #[test]
    fn a_changed_byte_is_refused_or_another_call(share in 0.0..1.0f64, bits in 1..=255u8) {
        let mut bytes = grouped().to_bytes().expect("a call that is well formed");
        let at = (share * bytes.len() as f64) as usize;
        bytes[at] ^= bits;
        if let Ok(bundle) = Bundle::from_bytes(&bytes) {
            let _ = bundle.call.judge(&bundle.found.expect("outputs, or no bundle").outputs);
        }
    }
}
