//! `candidate_block_max`: the best visible score of each block of entries. Of equal scores (+0 and -0) the first is taken.

use deepinfer_plugin_api::generated::CandidateBlockMaxArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::positive;
use crate::parallel;

deepinfer_plugin_api::kernel!(CandidateBlockMax, candidate_block_max);

fn candidate_block_max(_: &Cx<'_>, mut a: CandidateBlockMaxArgs<'_>) -> Result<(), Fault> {
    let block = positive("candidate_block_max", "block_size", a.block_size)?;
    let (scores, visible) = (a.scores.rows::<f32>()?, a.visible.slice::<i32>()?);
    parallel::for_each_row(a.out.rows_mut::<f32>()?, a.dims.n, |t, out| {
        let visible = usize::try_from(visible[t]).unwrap_or(0);
        let scores = &scores.row(t)[..visible.min(a.dims.n)];
        out.fill(f32::NEG_INFINITY);
        for (best, block) in out.iter_mut().zip(scores.chunks(block)) {
            // A comparison with NaN is false.
            block.iter().for_each(|&score| *best = if score > *best { score } else { *best });
        }
        if let Some(newest) = visible.checked_sub(1).and_then(|last| out.get_mut(last / block)) {
            *newest = f32::INFINITY;
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{CandidateBlockMax, TopkSelect};

    use crate::golden::Golden;
    use crate::testing::{Tensor, call};

    const NONE: f32 = f32::NEG_INFINITY;

    fn run(scores: &Tensor, [t, n]: [usize; 2], visible: &[i32], block: u32) -> Result<Tensor, String> {
        let visible = Tensor::i32(&[t], visible);
        let mut out = Tensor::unwritten(
            Format::F32,
            &[t, n.checked_div(block as usize).map_or(0, |_| n.div_ceil(block as usize))],
        );
        call::<CandidateBlockMax>(|a| {
            (a.scores, a.visible) = (scores.input(), visible.input());
            (a.block_size, a.out) = (block, out.output());
        })?;
        Ok(out)
    }

    /// The candidates of the golden indexer, of which each row keeps the four best blocks of four.
    #[test]
    fn golden() {
        let file = Golden::open("indexer");
        let positions = file.small("positions");
        let visible: Vec<i32> = (0..18).map(|t| positions[t % 9] + 1).collect();
        let scores = Tensor::f32(&[18, 49], &file.f32("layer3.score"));
        let best = run(&scores, [18, 49], &visible, 4).unwrap();
        let mut blocks = Tensor::unwritten(Format::I32, &[18, 4]);
        call::<TopkSelect>(|a| (a.scores, a.out) = (best.input(), blocks.output())).unwrap();
        let (blocks, golden) = (blocks.ints(), file.u8("layer3.candidates"));
        for t in 0..18 {
            let chosen = |c: usize| blocks[t * 4..][..4].contains(&(c as i32 / 4));
            assert!((0..49).all(|c| u8::from(chosen(c)) == golden[t * 49 + c]), "row {t}");
        }
    }

    #[test]
    fn the_newest_block_is_infinite_and_invisible_entries_do_not_count() {
        let row = [1.0, f32::NAN, 9.0, 8.0, -0.0, 0.0, 7.0];
        let scores = Tensor::f32(&[5, 7], &[row; 5].concat());
        let out = run(&scores, [5, 7], &[7, 5, 2, 0, -1], 2).unwrap().floats();
        let expected = [
            [1.0, 9.0, -0.0, f32::INFINITY],
            [1.0, 9.0, f32::INFINITY, NONE],
            [f32::INFINITY, NONE, NONE, NONE],
            [NONE; 4],
            [NONE; 4],
        ];
        assert!(out.iter().zip(expected.as_flattened()).all(|(a, b)| a.to_bits() == b.to_bits()), "{out:?}");
    }

    #[test]
    fn a_block_of_nan_has_no_score() {
        let out = run(&Tensor::f32(&[1, 3], &[f32::NAN, f32::NAN, 1.0]), [1, 3], &[3], 2).unwrap();
        assert_eq!(out.floats(), [NONE, f32::INFINITY]);
    }

    #[test]
    fn refusals_and_nothing() {
        let message = run(&Tensor::f32(&[1, 0], &[]), [1, 0], &[0], 0).err().unwrap();
        assert!(message.contains("block_size is 0"), "{message}");
        assert!(run(&Tensor::f32(&[0, 5], &[]), [0, 5], &[], 2).is_ok());
    }
}
