//! The miniature in a lab.

use std::rc::Rc;

use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{LoadError, Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_tests::miniature;
use deepinfer_verify::Lab;

/// The miniature on `device`, with the requests of `seed`.
pub(crate) fn lab_on(device: Rc<dyn Device>, seed: u64) -> Lab {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let load = |device| {
        let (model, _) = Model::load(device, &checkpoint, Numerics::DEPLOY, &mut |_, _| {})?;
        Ok::<_, LoadError>(model)
    };
    Lab::new(device, seed, load).expect("the miniature loads")
}
