//! What is checked of a call before it reaches the backend, and of one that comes back. No op is known here; what holds for
//! an op is in its reflection row.

use deepinfer_plugin_api::{Role, reflection::Kind as ArgKind};

use crate::call::{Call, Named, Tensor, Value};
use crate::finding::Rule;
use crate::handles::Handle;
use crate::ranges::Ranges;
use crate::world::World;

/// A broken rule: argument (or empty) and the end of a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) rule: Rule,
    pub(crate) argument: String,
    pub(crate) problem: String,
}

impl Broken {
    pub(crate) fn new(rule: Rule, argument: &str, problem: impl Into<String>) -> Self {
        Self { rule, argument: argument.to_owned(), problem: problem.into() }
    }
}

/// The descriptors of a call: that they can be followed, and the catalogue's formats, ranks and extents. Addresses may be
/// anything, as in the prototype of a plan.
pub(crate) fn descriptors(call: &Call) -> Result<(), Broken> {
    for (arg, value) in call.op.args.iter().zip(&call.values) {
        match value {
            Value::Broken(problem) => return Err(Broken::new(Rule::Struct, arg.name, problem.as_str())),
            Value::Absent if !arg.optional => {
                return Err(Broken::new(Rule::Shape, arg.name, "is absent, but the op needs it"));
            }
            _ => {}
        }
        debug_assert!(
            matches!(value, Value::Number(_)) == matches!(arg.kind, ArgKind::U32 | ArgKind::I32 | ArgKind::F32)
        );
    }
    for Named { name, tensor, .. } in call.tensors() {
        if tensor.lanes != 1 {
            return Err(Broken::new(Rule::Struct, &name, format!("has {} lanes instead of 1", tensor.lanes)));
        }
        tensor.reach().map_err(|problem| Broken::new(Rule::Shape, &name, problem))?;
    }
    // Rows of vendors have no formats and shapes.
    if call.op.args.iter().all(|arg| arg.formats == 0) {
        return Ok(());
    }
    let arguments = call.arguments().map_err(|problem| Broken::new(Rule::Shape, "", problem))?;
    (call.op.extents)(&arguments).map_err(|e| Broken::new(Rule::Shape, &e.arg, e.problem))?;
    call.tensors().iter().try_for_each(scales)
}

/// The scales of a tensor are one byte for each block.
fn scales(named: &Named<'_>) -> Result<(), Broken> {
    let (Some(format), Some(scale)) = (named.tensor.format, &named.tensor.scale) else { return Ok(()) };
    let shape: Vec<usize> = named.tensor.shape.iter().map(|&extent| extent as usize).collect();
    let wanted = format.scale_grid(&shape).unwrap_or_default();
    let is_grid = scale.shape.len() == wanted.len() && scale.shape.iter().zip(&wanted).all(|(&a, &b)| a as usize == b);
    if is_grid && scale.bits == 8 {
        return scale
            .reach()
            .map(drop)
            .map_err(|problem| Broken::new(Rule::Shape, &format!("scales of {}", named.name), problem));
    }
    let problem = format!("have shape {:?} of {} bits, but {wanted:?} of 8 are needed", scale.shape, scale.bits);
    Err(Broken::new(Rule::Shape, &format!("scales of {}", named.name), problem))
}

/// Where the tensors of a call lie: within `nbytes`, in live memory of `device`, whose number in tensors is `id`; written
/// ones not marked read-only, and apart from everything else. Gives the buffers that the call uses.
pub(crate) fn placement(call: &Call, world: &World, device: Handle, id: (i32, i32)) -> Result<Vec<Handle>, Broken> {
    let tensors = call.tensors();
    let mut uses = Vec::new();
    for Named { name, role, tensor } in &tensors {
        for (part, tensor) in tensor.parts().enumerate() {
            let name = if part == 0 { name.clone() } else { format!("scales of {name}") };
            uses.extend(one_placement(&name, *role, tensor, world, device, id)?);
        }
    }
    if !call.workspace.is_empty() {
        let place = world.place(Some(device), &call.workspace);
        uses.push(place.map_err(|problem| Broken::new(Rule::Memory, "workspace", problem))?);
    }
    overlaps(call, &tensors)?;
    Ok(uses)
}

fn one_placement(
    name: &str,
    role: Role,
    tensor: &Tensor,
    world: &World,
    device: Handle,
    id: (i32, i32),
) -> Result<Option<Handle>, Broken> {
    if tensor.device != id {
        let (found, wanted) = (tensor.device, id);
        return Err(Broken::new(
            Rule::Memory,
            name,
            format!(
                "says device {} of type {}, but the stream is of device {} of type {}",
                found.1, found.0, wanted.1, wanted.0
            ),
        ));
    }
    let reach = tensor.reach().map_err(|problem| Broken::new(Rule::Shape, name, problem))?;
    if reach > tensor.nbytes {
        let problem = format!(
            "needs {reach} bytes for shape {:?} and strides {:?}, but nbytes is {}",
            tensor.shape, tensor.strides, tensor.nbytes
        );
        return Err(Broken::new(Rule::Nbytes, name, problem));
    }
    if role != Role::In && tensor.is_read_only {
        return Err(Broken::new(Rule::ReadOnly, name, "is written by the op, but is marked as read-only"));
    }
    if tensor.nbytes == 0 {
        return Ok(None);
    }
    let Some(end) = tensor.address.checked_add(tensor.nbytes) else {
        return Err(Broken::new(
            Rule::Nbytes,
            name,
            format!("has {} nbytes, beyond the end of all addresses", tensor.nbytes),
        ));
    };
    let place = world.place(Some(device), &(tensor.address..end));
    place.map(Some).map_err(|problem| Broken::new(Rule::Memory, name, problem))
}

/// A written argument shares no element with any other, nor with the workspace.
fn overlaps(call: &Call, tensors: &[Named<'_>]) -> Result<(), Broken> {
    let all: Vec<(&Named<'_>, &Tensor)> =
        tensors.iter().flat_map(|named| named.tensor.parts().map(move |part| (named, part))).collect();
    for (i, (named, tensor)) in all.iter().enumerate() {
        let span = tensor.span();
        if !call.workspace.is_empty() && meet(&span, &call.workspace) {
            return Err(Broken::new(Rule::Overlap, &named.name, "overlaps the workspace"));
        }
        if named.role == Role::In {
            continue;
        }
        for (j, (other, other_tensor)) in all.iter().enumerate() {
            // Of two written ones, once.
            if i == j || (other.role != Role::In && j < i) || !meet(&span, &other_tensor.span()) {
                continue;
            }
            // Rows of one may lie in the gaps of the other.
            if let Some(address) = tensor.addresses().first_common(&other_tensor.addresses()) {
                let problem = format!("is written and overlaps {} at {address:#x}", other.name);
                return Err(Broken::new(Rule::Overlap, &named.name, problem));
            }
        }
    }
    Ok(())
}

fn meet(a: &std::ops::Range<u64>, b: &std::ops::Range<u64>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// The workspace is as large and as aligned as the plan asked for.
pub(crate) fn workspace(call: &Call, bytes: u64, align: u64) -> Result<(), Broken> {
    let found = call.workspace.end - call.workspace.start;
    if found < bytes {
        return Err(Broken::new(
            Rule::Workspace,
            "workspace",
            format!("has {found} bytes, but the plan asked for {bytes}"),
        ));
    }
    if bytes > 0 && !call.workspace.start.is_multiple_of(align.max(1)) {
        let at = call.workspace.start;
        return Err(Broken::new(
            Rule::Workspace,
            "workspace",
            format!("is at {at:#x}, but the plan asked for a multiple of {align}"),
        ));
    }
    Ok(())
}

/// The addresses of everything that the call writes.
pub(crate) fn written(call: &Call) -> Ranges {
    let tensors = call.tensors();
    let parts = tensors.iter().filter(|named| named.role != Role::In).flat_map(|named| named.tensor.parts());
    Ranges::of(parts.flat_map(|part| part.addresses().iter().cloned().collect::<Vec<_>>()).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use deepinfer_plugin_api::op_by_name;

    use super::*;
    use crate::call::tests::tensor;
    use crate::world::Device;

    /// `rms_norm` on 2 x 4 values, at 0x1000, 0x2000 and 0x3000, with 0x100 bytes allocated at each.
    pub(crate) fn call() -> (Call, World, Handle) {
        let op = op_by_name("rms_norm").unwrap();
        let values = vec![
            Value::Tensor(tensor(0x1000, &[2, 4], &[4, 1])),
            Value::Tensor(tensor(0x2000, &[4], &[1])),
            Value::Number(0),
            Value::Tensor(tensor(0x3000, &[2, 4], &[4, 1])),
        ];
        let mut world = World::default();
        let device = world.open_device(Device { next: 1, id: (1, 0), own_stream: 0 });
        for start in [0x1000, 0x2000, 0x3000] {
            world.allocate(1, device, start..start + 0x100, start..start + 0x100);
        }
        (Call { op, flags: 0, workspace: 0..0, values }, world, device)
    }

    fn change(call: &mut Call, index: usize, change: impl FnOnce(&mut Tensor)) {
        let Value::Tensor(tensor) = &mut call.values[index] else { panic!("argument {index} is no tensor") };
        change(tensor);
    }

    fn problem(wrong: impl FnOnce(&mut Call)) -> (Rule, String) {
        let (mut call, world, device) = call();
        wrong(&mut call);
        let broken = descriptors(&call).and_then(|()| placement(&call, &world, device, (1, 0)).map(drop));
        let Broken { rule, argument, problem } = broken.expect_err("a wrong call");
        (rule, format!("{argument} {problem}"))
    }

    #[test]
    fn a_right_call_uses_its_buffers() {
        let (call, world, device) = call();
        descriptors(&call).unwrap();
        let uses = placement(&call, &world, device, (1, 0)).unwrap();
        assert_eq!(uses.iter().map(|handle| handle.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(written(&call).iter().cloned().collect::<Vec<_>>(), [0x3000..0x3020]);
    }

    #[test]
    fn each_wrong_call_has_its_sentence() {
        let at = |index: usize, edit: fn(&mut Tensor)| problem(move |call| change(call, index, edit));
        assert_eq!(
            problem(|c| c.values[1] = Value::Absent),
            (Rule::Shape, "weight is absent, but the op needs it".into())
        );
        assert_eq!(
            problem(|c| c.values[0] = Value::Broken("has 9 dimensions; at most 4 are possible".into())),
            (Rule::Struct, "x has 9 dimensions; at most 4 are possible".into())
        );
        assert_eq!(at(1, |t| t.shape = vec![5]).0, Rule::Shape);
        assert_eq!(at(0, |t| t.format = None).1, " x is of no format of the catalogue");
        assert_eq!(at(0, |t| t.lanes = 2), (Rule::Struct, "x has 2 lanes instead of 1".into()));
        assert_eq!(at(0, |t| t.device = (1, 3)).0, Rule::Memory);
        assert_eq!(
            at(0, |t| t.nbytes = 31),
            (Rule::Nbytes, "x needs 32 bytes for shape [2, 4] and strides [4, 1], but nbytes is 31".into())
        );
        assert_eq!(at(0, |t| t.nbytes = 0x101), (Rule::Memory, "x ends 1 bytes behind buffer #1 of 256 bytes".into()));
        assert_eq!(
            at(3, |t| t.address = 0x5000),
            (Rule::Memory, "out lies at 0x5000, which is in no allocation".into())
        );
        assert_eq!(at(3, |t| t.is_read_only = true).0, Rule::ReadOnly);
        assert_eq!(
            at(3, |t| t.address = 0x101c - 0x10),
            (Rule::Overlap, "out is written and overlaps x at 0x100c".into())
        );
        let (rule, text) = problem(|c| c.workspace = 0x1010..0x1020);
        assert_eq!((rule, text.as_str()), (Rule::Overlap, "x overlaps the workspace"));
    }

    #[test]
    fn an_output_may_lie_in_the_gaps_of_an_input() {
        let (mut call, world, device) = call();
        change(&mut call, 0, |t| *t = tensor(0x1000, &[2, 4], &[8, 1]));
        change(&mut call, 3, |t| *t = tensor(0x1010, &[2, 4], &[8, 1]));
        placement(&call, &world, device, (1, 0)).unwrap();
    }

    #[test]
    fn workspaces() {
        let (mut call, ..) = call();
        assert!(workspace(&call, 0, 64).is_ok());
        call.workspace = 0x1020..0x1040;
        assert!(workspace(&call, 32, 32).is_ok());
        assert_eq!(workspace(&call, 33, 1).unwrap_err().problem, "has 32 bytes, but the plan asked for 33");
        assert_eq!(
            workspace(&call, 32, 64).unwrap_err().problem,
            "is at 0x1020, but the plan asked for a multiple of 64"
        );
    }
}
