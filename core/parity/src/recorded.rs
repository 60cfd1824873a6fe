//! Recorded work: a command list that is launched again, on other contents, gives the bits of the calls.

use deepinfer_ops::{Format, OpError};
use deepinfer_oracle::{Call, Value};
use deepinfer_plugin_api::Role;
use deepinfer_runtime::OpenDevice;

use crate::generate::{Rows, poisoned};
use crate::place::{Layout, PlacedCall, Route, RunError};
use crate::run::{Problem, accepted, problem_of, same_bits};

/// Records a call and launches it three times: on its own contents, on others, and on its own again.
pub(crate) fn replay_gives_the_same(device: &OpenDevice, rows: Rows, call: &Call) -> Result<(), Problem> {
    let contents = [call.clone(), other_contents(call, rows)].map(|call| poisoned(&call, 0xA5));
    let direct =
        [accepted(device, &contents[0], Layout::Contiguous)?, accepted(device, &contents[1], Layout::Contiguous)?];
    let placed = PlacedCall::new(device, &contents[0], Layout::Contiguous)
        .map_err(|error| problem_of(RunError::Upload(error), call, ""))?;
    let refused = |how: &'static str| move |error: OpError| problem_of(RunError::Op(error), call, how);
    let list = device.record(|| placed.dispatch(device, Route::Trait)).map_err(refused("in a command list "))?;
    for round in [0, 1, 0] {
        placed.refill(device, &contents[round]).map_err(refused("between two launches "))?;
        device.launch(&list).map_err(refused("when its command list was launched "))?;
        let found = placed.read(device).map_err(|error| problem_of(error, call, "after a launch "))?;
        let how = if list.is_captured() { "as a graph of the backend" } else { "one after the other" };
        same_bits(&format!("when the call is recorded and replayed, {how}"), &found, &direct[round])
            .map_err(|problem| problem.of(&contents[round], Some(&found)))?;
    }
    Ok(())
}

/// A call of the same shapes on other contents: its rows in another order, where they do not depend on each other, and the
/// elements of its plain floats moved on by one.
fn other_contents(call: &Call, rows: Rows) -> Call {
    let mut other = match rows {
        Rows::Any(symbol) => {
            let count = call.extent(symbol);
            let rotated: Vec<usize> = (0..count).map(|row| (row + 1) % count).collect();
            call.select(symbol, &rotated)
        }
        Rows::Ascending(_) | Rows::OfExperts | Rows::Dependent => call.clone(),
    };
    for arg in call.op.args.iter().filter(|arg| arg.role != Role::Out) {
        if let Some(Value::Tensor(tensor)) = other.args.get_mut(arg.name)
            && matches!(tensor.format, Format::F32 | Format::Bf16)
            && !tensor.is_empty()
        {
            let bytes = tensor.element_bytes().expect("a plain format");
            tensor.codes.rotate_left(bytes);
        }
    }
    other
}
