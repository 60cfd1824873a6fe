//! The op once more, by its oracle on host values.

use std::panic::{AssertUnwindSafe, catch_unwind};

use deepinfer_oracle::{self as oracle, Disagreement, HostTensor, OracleError, Outputs, oracle_of_id};
use deepinfer_plugin_api::reflection::Kind as ArgKind;
use deepinfer_plugin_api::{OpInfo, Role};

use crate::call::{Call, Tensor, Value};
use crate::check::Broken;
use crate::finding::Rule;
use crate::lane::Image;

/// Whether calls of the op can be shadowed at all.
pub(crate) fn has_oracle(op: &OpInfo) -> bool {
    oracle_of_id(op.id).is_some()
}

/// The call as host values, with what memory held; `None` if a tensor has a form that host values cannot have.
pub(crate) fn host_call(call: &Call, memory: &Image) -> Option<oracle::Call> {
    let mut out = oracle::Call::new(call.op);
    for (arg, value) in call.op.args.iter().zip(&call.values) {
        let value = match value {
            Value::Tensor(tensor) => oracle::Value::Tensor(host_tensor(tensor, memory)?),
            Value::List(list) => {
                oracle::Value::List(list.iter().map(|tensor| host_tensor(tensor, memory)).collect::<Option<_>>()?)
            }
            Value::Absent => oracle::Value::Absent,
            Value::Number(bits) => match arg.kind {
                ArgKind::I32 => oracle::Value::I32(*bits as i32),
                ArgKind::F32 => oracle::Value::F32(f32::from_bits(*bits)),
                _ => oracle::Value::U32(*bits),
            },
            Value::Broken(_) => return None,
        };
        out.set(arg.name, value);
    }
    Some(out)
}

/// The written tensors, with what memory holds now.
pub(crate) fn found(call: &Call, memory: &Image) -> Option<Outputs> {
    let written = call.op.args.iter().zip(&call.values).filter(|(arg, _)| arg.role != Role::In);
    let tensors = written.filter_map(|(arg, value)| match value {
        Value::Tensor(tensor) => Some(host_tensor(tensor, memory).map(|host| (arg.name, host))),
        _ => None,
    });
    tensors.collect()
}

fn host_tensor(tensor: &Tensor, memory: &Image) -> Option<HostTensor> {
    let shape = tensor.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect::<Option<Vec<usize>>>()?;
    let scales = tensor.scale.as_ref().map_or(Some(Vec::new()), |scale| gather(scale, memory))?;
    Some(HostTensor { format: tensor.format?, shape, codes: gather(tensor, memory)?, scales })
}

/// The elements without gaps.
fn gather(tensor: &Tensor, memory: &Image) -> Option<Vec<u8>> {
    let bytes = memory.get(&tensor.span())?;
    let mut out = Vec::new();
    for row in tensor.rows()? {
        out.extend_from_slice(&bytes[row.start as usize..row.end as usize]);
    }
    Some(out)
}

/// Holds what was found to the op's contract; `None` if the oracle cannot judge this call.
pub(crate) fn judge(call: &oracle::Call, found: &Outputs) -> Option<Result<(), Broken>> {
    // An oracle that fails is no fault of the backend.
    let judged = catch_unwind(AssertUnwindSafe(|| call.judge(found))).ok()?;
    let Err(disagreement) = judged else { return Some(Ok(())) };
    Some(Err(match disagreement {
        Disagreement::Beyond(mismatch) => Broken::new(Rule::Value, &mismatch.argument, mismatch.to_string()),
        Disagreement::Oracle(OracleError::Values { reason, .. }) => Broken::new(
            Rule::Accepted,
            "",
            format!("the arguments break a rule of the op, but were not refused: {reason}"),
        ),
        Disagreement::Oracle(_) => return None,
        Disagreement::Shape { argument, .. } => Broken::new(Rule::Value, argument, disagreement.to_string()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::tests::tensor;
    use crate::check::tests::call;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn rows_with_gaps_become_host_values_and_are_judged() {
        let (mut call, ..) = call();
        call.values[0] = Value::Tensor(tensor(0x1000, &[2, 2], &[3, 1]));
        call.values[1] = Value::Tensor(tensor(0x2000, &[2], &[1]));
        call.values[3] = Value::Tensor(tensor(0x3000, &[2, 2], &[2, 1]));
        let image = |out: &[f32]| {
            Image::of(vec![
                (0x1000..0x1014, f32s(&[3.0, 4.0, 99.0, 5.0, 12.0])),
                (0x2000..0x2008, f32s(&[1.0, 2.0])),
                (0x3000..0x3010, f32s(out)),
            ])
        };
        let before = host_call(&call, &image(&[0.0; 4])).unwrap();
        assert_eq!(before.tensor("x").values(), [3.0, 4.0, 5.0, 12.0]);
        let norm = |a: f32, b: f32| ((a * a + b * b) / 2.0).sqrt();
        let mut right = [3.0 / norm(3.0, 4.0), 8.0 / norm(3.0, 4.0), 5.0 / norm(5.0, 12.0), 24.0 / norm(5.0, 12.0)];
        judge(&before, &found(&call, &image(&right)).unwrap()).unwrap().unwrap();
        right[2] *= 1.001;
        let broken = judge(&before, &found(&call, &image(&right)).unwrap()).unwrap().unwrap_err();
        assert!(broken.rule == Rule::Value && broken.problem.starts_with("out[1, 0] is "), "{broken:?}");
    }
}
