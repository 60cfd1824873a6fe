//! `topk_select`: the columns of the largest scores.
//!
//! A score becomes an integer that falls as the score grows; with its column below, every key of a row is different and
//! the K smallest keys are exactly the columns wanted. A selection finds the K-th key, and one pass over the columns
//! emits those up to it in order.

use deepinfer_plugin_api::generated::TopkSelectArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::order::key;
use crate::parallel;

deepinfer_plugin_api::kernel!(TopkSelect, topk_select);

fn topk_select(_: &Cx<'_>, mut a: TopkSelectArgs<'_>) -> Result<(), Fault> {
    let scores = a.scores.rows::<f32>()?;
    let k = a.dims.k;
    parallel::for_each_row_with(a.out.rows_mut::<i32>()?, 5 * a.dims.n, Vec::new, |keys: &mut Vec<u64>, t, out| {
        let scores = scores.row(t).iter().enumerate();
        let candidates = scores.filter(|(_, score)| **score > f32::NEG_INFINITY).map(|(c, &score)| key(score, c));
        keys.clear();
        keys.extend(candidates.clone());
        let last = match k {
            0 => return,
            _ if keys.len() <= k => u64::MAX,
            _ => *keys.select_nth_unstable(k - 1).1,
        };
        out.fill(-1);
        let chosen = candidates.filter(|&key| key <= last);
        out.iter_mut().zip(chosen).for_each(|(out, key)| *out = key as u32 as i32);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::TopkSelect;

    use crate::golden::Golden;
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(scores: &Tensor, t: usize, k: usize) -> Vec<i32> {
        let mut out = Tensor::unwritten(Format::I32, &[t, k]);
        call::<TopkSelect>(|a| (a.scores, a.out) = (scores.input(), out.output())).unwrap();
        out.ints()
    }

    /// By the definition: a stable sort.
    fn plain(scores: &[f32], k: usize) -> Vec<i32> {
        let mut columns: Vec<usize> = (0..scores.len()).filter(|&c| scores[c] > f32::NEG_INFINITY).collect();
        columns.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal));
        columns.truncate(k);
        columns.sort_unstable();
        (0..k).map(|i| columns.get(i).map_or(-1, |&c| c as i32)).collect()
    }

    #[test]
    fn golden() {
        let file = Golden::open("indexer");
        let (positions, margin) = (file.small("positions"), file.f32("layer3.margin"));
        let (mut scores, golden) = (file.f32("layer3.score"), file.i32("layer3.topk"));
        for (i, score) in scores.iter_mut().enumerate() {
            if (i % 49) as i32 > positions[i / 49 % 9] {
                *score = f32::NEG_INFINITY;
            }
        }
        let ours = run(&Tensor::f32(&[18, 49], &scores), 18, 8);
        let clear = |t: &usize| margin[*t] > 1e-5;
        assert!((0..18).filter(clear).count() > 9);
        assert!((0..18).filter(clear).all(|t| ours[t * 8..][..8] == golden[t * 8..][..8]));
    }

    #[test]
    fn equals_a_stable_sort() {
        // Few different values, so that ties are everywhere, and every kind of special value.
        let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MIN, 1e-45, -1e-45];
        for (seed, n, k) in [(1, 300, 16), (2, 300, 299), (3, 300, 400), (4, 17, 1), (5, 4096, 512), (6, 1000, 0)] {
            let picks = random::indices(seed, 8 * n, 40);
            let scores: Vec<f32> =
                picks.iter().map(|&i| special.get(i as usize).copied().unwrap_or((i % 7) as f32 - 3.0)).collect();
            let ours = run(&Tensor::f32(&[8, n], &scores).padded(1), 8, k);
            for (t, row) in scores.chunks(n).enumerate() {
                assert_eq!(ours[t * k..][..k], plain(row, k), "seed {seed}, row {t}");
            }
        }
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        assert_eq!(run(&Tensor::f32(&[2, 3], &[-0.0, 0.0, -1.0, 0.0, -0.0, -1.0]), 2, 1), [0, 0]);
    }

    #[test]
    fn distinct_scores_and_no_scores() {
        let scores = random::floats(30, 16384);
        assert_eq!(run(&Tensor::f32(&[1, 16384], &scores), 1, 512), plain(&scores, 512));
        assert_eq!(run(&Tensor::f32(&[2, 0], &[]), 2, 2), [-1; 4]);
        assert_eq!(run(&Tensor::f32(&[1, 3], &[f32::NAN, f32::NEG_INFINITY, -1.0]), 1, 2), [2, -1]);
    }
}
