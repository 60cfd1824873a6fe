//! The miniature model that is part of the program.

use deepinfer_model::checkpoint::{Checkpoint, CheckpointError};

macro_rules! miniature {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../models/deepseek-v41-mini/", $name)).as_slice())),*]
    };
}

/// Name and content of every file that the engine reads.
static FILES: [(&str, &[u8]); 5] =
    miniature!("config.json", "model.safetensors", "tokenizer.json", "engram_token_map.json", "engram_constants.json",);

/// Opens the embedded model.
///
/// # Errors
/// As [`Checkpoint::from_embedded`].
pub(crate) fn open() -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_embedded(&FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_model_is_complete() {
        let checkpoint = open().unwrap();
        let report = checkpoint.check(checkpoint.config());
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        assert!(report.warnings.is_empty(), "{:?}", report.warnings);
        assert!(checkpoint.file("tokenizer.json").unwrap().is_some());
    }
}
