//! `restore_candidate_indices_inplace`: columns of a candidate-restricted score row to entries.

use deepinfer_plugin_api::generated::RestoreCandidateIndicesInplaceArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::positive;

deepinfer_plugin_api::kernel!(RestoreCandidateIndicesInplace, restore_candidate_indices_inplace);

fn restore_candidate_indices_inplace(_: &Cx<'_>, mut a: RestoreCandidateIndicesInplaceArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "restore_candidate_indices_inplace";
    let size = positive(OP, "block_size", a.block_size)?;
    let candidates = a.candidates.rows::<i32>()?;
    // The largest block whose entries are all below 2^31.
    let limit = (1usize << 31) / size;
    for t in 0..a.dims.t {
        if let Some(l) = candidates.row(t).iter().position(|&block| usize::try_from(block).is_ok_and(|b| b >= limit)) {
            return Err(Fault::invalid(format!(
                "{OP}: candidates[{t}, {l}] is {}, but a block of {size} entries must be below {limit}",
                candidates.row(t)[l]
            )));
        }
    }
    for (t, columns) in a.columns.rows_mut::<i32>()?.into_iter().enumerate() {
        for column in columns {
            *column = entry(*column, candidates.row(t), size).unwrap_or(-1);
        }
    }
    Ok(())
}

fn entry(column: i32, candidates: &[i32], size: usize) -> Option<i32> {
    let column = usize::try_from(column).ok()?;
    let block = usize::try_from(*candidates.get(column / size)?).ok()?;
    i32::try_from(block * size + column % size).ok()
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{RestoreCandidateIndicesInplace, TopkSelect};

    use crate::golden::Golden;
    use crate::testing::{Tensor, call};

    fn run(columns: &mut Tensor, candidates: &Tensor, block: u32) -> Result<Vec<i32>, String> {
        call::<RestoreCandidateIndicesInplace>(|a| {
            (a.columns, a.candidates, a.block_size) = (columns.output(), candidates.input(), block);
        })?;
        Ok(columns.ints())
    }

    /// The second level of the golden indexer: scores of the candidates only, selected and turned back into entries.
    #[test]
    fn golden() {
        let file = Golden::open("indexer");
        let (mask, margin) = (file.u8("layer3.candidates"), file.f32("layer5.margin"));
        let (scores, positions) = (file.f32("layer5.score"), file.small("positions"));
        let (mut restricted, mut blocks) = (Vec::new(), Vec::new());
        for t in 0..18 {
            let chosen: Vec<usize> = (0..13).filter(|b| mask[t * 49 + b * 4] != 0).collect();
            assert_eq!(chosen.len(), 4);
            for &b in &chosen {
                restricted.extend((b * 4..b * 4 + 4).map(|e| match e as i32 <= positions[t % 9] {
                    true => scores[t * 49 + e],
                    false => f32::NEG_INFINITY,
                }));
            }
            blocks.extend(chosen.iter().map(|&b| b as i32));
        }
        let (restricted, blocks) = (Tensor::f32(&[18, 16], &restricted), Tensor::i32(&[18, 4], &blocks));
        let mut columns = Tensor::unwritten(Format::I32, &[18, 8]);
        call::<TopkSelect>(|a| (a.scores, a.out) = (restricted.input(), columns.output())).unwrap();
        let (ours, golden) = (run(&mut columns, &blocks, 4).unwrap(), file.i32("layer5.topk"));
        let clear = |t: &usize| margin[*t] > 1e-5;
        assert!((0..18).filter(clear).count() > 9);
        assert!((0..18).filter(clear).all(|t| ours[t * 8..][..8] == golden[t * 8..][..8]));
    }

    #[test]
    fn what_is_no_candidate_becomes_none() {
        let mut columns = Tensor::i32(&[1, 6], &[0, 5, 8, 9, -1, -3]);
        let candidates = Tensor::i32(&[1, 3], &[2, 7, -1]);
        assert_eq!(run(&mut columns, &candidates, 4).unwrap(), [8, 29, -1, -1, -1, -1]);
        let mut columns = Tensor::i32(&[1, 2], &[12, i32::MAX]);
        assert_eq!(run(&mut columns, &candidates, 4).unwrap(), [-1, -1]);
        assert!(run(&mut Tensor::i32(&[0, 2], &[]), &Tensor::i32(&[0, 1], &[]), 1).unwrap().is_empty());
    }

    #[test]
    fn refusals_change_nothing() {
        let mut columns = Tensor::i32(&[1, 1], &[3]);
        let huge = Tensor::i32(&[1, 1], &[1 << 29]);
        assert!(run(&mut columns, &huge, 4).unwrap_err().contains("candidates[0, 0] is 536870912"));
        assert!(run(&mut columns, &huge, 0).unwrap_err().contains("block_size is 0"));
        assert_eq!(columns.ints(), [3]);
    }
}
