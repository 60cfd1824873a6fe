//! What a backend says of itself, and what it takes from cores of other versions.

use deepinfer_ops::{Device, Format, Tensor};
use deepinfer_parity::{identity_of, op_of};
use deepinfer_runtime::OpenError;
use deepinfer_runtime::conformance::{self, Filled};

use super::{Problem, ensure, text};
use crate::parity::worker::Target;

/// Ids from here on belong to vendors.
const VENDOR_OPS: u32 = 0x8000_0000;

pub(super) fn describes_itself(target: &Target) -> Result<(), Problem> {
    let backend = target.backend;
    ensure(!backend.version().is_empty(), || "its version is empty".to_owned())?;
    ensure(!backend.build().is_empty(), || "its build is empty: it should say with what it was built".to_owned())?;
    for info in backend.device_infos().map_err(text)? {
        ensure(!info.name.is_empty(), || format!("device {} has no name", info.index))?;
        ensure(!info.arch.is_empty(), || format!("device {} has no architecture", info.index))?;
    }
    Ok(())
}

pub(super) fn op_table_is_consistent(target: &Target) -> Result<(), Problem> {
    let ops = target.backend.ops();
    for (index, op) in ops.iter().enumerate() {
        let (id, name) = (op.op_id(), op.name());
        match op_of(id) {
            Some(known) => {
                ensure(known == name, || format!("op {id} is called {name}, but is {known} in the catalogue"))?
            }
            None => ensure(id >= VENDOR_OPS, || {
                format!("op {id} ({name}) is not in the catalogue; a vendor's own ops have ids from {VENDOR_OPS:#x}")
            })
            .and(ensure(identity_of(name).is_none(), || {
                format!("the own op {id:#x} is called {name}, which is an op of the catalogue; rename it")
            }))?,
        }
        let key = |other: &deepinfer_runtime::OpImpl| (other.op_id(), other.version(), other.impl_name().to_owned());
        ensure(!ops[..index].iter().any(|other| key(other) == key(op)), || {
            format!("{name}@{} has two implementations called {:?}", op.version(), op.impl_name())
        })?;
    }
    Ok(())
}

pub(super) fn opens_and_closes(target: &Target) -> Result<(), Problem> {
    for round in 1..=3 {
        let device = target.open().map_err(|error| format!("opening it for time {round}: {error}"))?;
        device.synchronize().map_err(text)?;
    }
    Ok(())
}

pub(super) fn absent_device_is_refused(target: &Target) -> Result<(), Problem> {
    let count = target.backend.device_count().map_err(text)?;
    for index in [count, u32::MAX] {
        match target.backend.open(index) {
            Ok(_) => return Err(format!("device {index} opens, but there are {count}").into()),
            Err(error) => {
                let is_silent = matches!(&error, OpenError::Plugin(error) if error.message.is_empty());
                ensure(!is_silent, || format!("device {index} is refused without a sentence"))?
            }
        }
    }
    Ok(target.open().map(drop).map_err(|error| format!("after the refusal: {error}"))?)
}

pub(super) fn device_info_has_any_length(target: &Target) -> Result<(), Problem> {
    any_length(target, Filled::DeviceInfo)
}

pub(super) fn space_info_has_any_length(target: &Target) -> Result<(), Problem> {
    any_length(target, Filled::SpaceInfo)
}

pub(super) fn link_info_has_any_length(target: &Target) -> Result<(), Problem> {
    any_length(target, Filled::LinkInfo)
}

/// A plugin that writes more than it is given room for ends the process.
fn any_length(target: &Target, what: Filled) -> Result<(), Problem> {
    let fill = |bytes| conformance::fill(target.backend, target.device, what, bytes);
    Ok(what.lengths().into_iter().try_for_each(fill)?)
}

pub(super) fn unknown_extension_breaks_nothing(target: &Target) -> Result<(), Problem> {
    conformance::open_with_unknown_extension(target.backend, target.device)?;
    Ok(target.open().map(drop).map_err(|error| format!("after that, {error}"))?)
}

pub(super) fn unknown_values_are_refused(target: &Target) -> Result<(), Problem> {
    let device = target.open()?;
    let memory = device.allocate(64).map_err(text)?;
    Ok(conformance::unknown_values(&device, &Tensor::plain(&memory, 0, Format::U8, &[64]))?)
}
