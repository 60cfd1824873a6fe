//! `index_scores`: scores of cached index keys against the index queries of each row.
//!
//! Per head, the sum over d in the order of [`crate::sum`]; then the heads in ascending order, each as a rounded F64
//! product and a rounded F64 addition, from +0; one rounding to F32.
//!
//! Rows of one request that follow each other read the same keys: they are taken together, so that a key is decoded once
//! for all of them. With candidates each row has keys of its own.

use std::ops::Range;

use deepinfer_plugin_api::generated::IndexScoresArgs;
use deepinfer_plugin_api::numerics::bf16;
use deepinfer_plugin_api::sdk::tensor::{FloatRows, Rows};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::arguments;
use crate::cache::Pages;
use crate::parallel;
use crate::sum;
use crate::weights::load_columns;

deepinfer_plugin_api::kernel!(IndexScores, index_scores);

/// Rows that share decoded keys.
const ROWS: usize = 16;
/// Keys decoded at once.
const KEYS: usize = 64;
/// Rough time of a multiplication with its addition, in picoseconds.
const MULTIPLY_PS: usize = 100;

fn index_scores(_: &Cx<'_>, mut a: IndexScoresArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    let call = Call {
        heads: d.h,
        dim: d.d,
        q: a.q.floats()?,
        head_weight: a.head_weight.floats()?,
        rounds_weight: a.head_weight.format() == Some(Format::Bf16),
        scale: a.scale,
        pages: Pages::new("index_scores", "keys", &a.keys, a.format, a.entries_per_page, d.d)?,
        row_request: a.row_request.slice()?,
        block_table: a.block_table.rows()?,
        visible: a.visible.slice()?,
        candidates: a.candidates.map(|c| c.rows()).transpose()?,
        block_size: match a.candidates {
            Some(_) => arguments::positive("index_scores", "block_size", a.block_size)?,
            None => 1,
        },
    };
    call.check(d.n, d.q)?;
    let rows = a.out.rows_mut()?;
    let cost_ps = |rows: usize, columns: usize| rows * columns * d.h.max(1) * d.d * MULTIPLY_PS;
    let pieces = parallel::pieces(cost_ps(d.t, d.n) / 1000);
    let blocks = call.blocks();
    let width = d.n.div_ceil(pieces.div_ceil(blocks.len().max(1)).max(1)).next_multiple_of(KEYS);
    let pieces = cut(rows, &blocks, width);
    parallel::for_each_row_with(pieces, cost_ps(ROWS.min(d.t), width) / 1000, Scratch::default, |scratch, _, piece| {
        call.run(piece, scratch);
    });
    Ok(())
}

/// The arguments of a call.
struct Call<'a> {
    heads: usize,
    dim: usize,
    q: FloatRows<'a>,
    head_weight: FloatRows<'a>,
    /// Whether the scaled head weights are rounded to BF16.
    rounds_weight: bool,
    scale: f32,
    pages: Pages<'a>,
    row_request: &'a [i32],
    block_table: Rows<'a, i32>,
    visible: &'a [i32],
    candidates: Option<Rows<'a, i32>>,
    block_size: usize,
}

/// Scores of some rows in some columns.
struct Piece<'a> {
    rows: Range<usize>,
    columns: Range<usize>,
    /// One slice of `columns` per row.
    out: Vec<&'a mut [f32]>,
}

/// Buffers of a piece.
#[derive(Default)]
struct Scratch {
    row: Vec<f32>,
    weight_row: Vec<f32>,
    /// `[rows * heads, dim]`.
    q: Vec<f32>,
    /// `[rows * heads]`.
    weights: Vec<f64>,
    /// Column and entry of each decoded key.
    entries: Vec<(usize, usize)>,
    /// `[entries, dim]`.
    keys: Vec<f32>,
    /// `[rows * heads, entries]`.
    sums: Vec<f64>,
    /// `[entries]`.
    scores: Vec<f64>,
}

impl Call<'_> {
    /// Checks that every entry that a row sees has a page.
    fn check(&self, columns: usize, requests: usize) -> Result<(), Fault> {
        let mut checked = vec![0; requests];
        for row in 0..self.visible.len() {
            if self.sees(row) == 0 {
                continue;
            }
            let request = usize::try_from(self.row_request[row]).ok().filter(|&request| request < requests);
            let Some(request) = request else {
                return Err(Fault::invalid(format!(
                    "index_scores: row_request[{row}] is {}, but block_table has {requests} requests",
                    self.row_request[row]
                )));
            };
            match self.candidates {
                // Pages of a request are checked once for all of its rows.
                None => {
                    let end = self.sees(row).min(columns);
                    self.check_pages(row, checked[request]..end)?;
                    checked[request] = end.max(checked[request]);
                }
                Some(candidates) => {
                    let blocks = columns.div_ceil(self.block_size);
                    for &block in candidates.row(row).iter().take(blocks) {
                        if let Ok(block) = usize::try_from(block) {
                            let start = block * self.block_size;
                            self.check_pages(row, start..self.sees(row).min(start + self.block_size))?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn check_pages(&self, row: usize, entries: Range<usize>) -> Result<(), Fault> {
        if entries.is_empty() {
            return Ok(());
        }
        let per_page = self.pages.entries_per_page();
        let table = self.block_table.row(self.row_request[row] as usize);
        for place in entries.start / per_page..=(entries.end - 1) / per_page {
            let Some(&page) = table.get(place) else {
                return Err(Fault::invalid(format!(
                    "index_scores: row {row} sees entry {}, but a request has {} pages of {per_page} entries",
                    entries.end - 1,
                    table.len()
                )));
            };
            if usize::try_from(page).ok().is_none_or(|page| page >= self.pages.count()) {
                return Err(Fault::invalid(format!(
                    "index_scores: block_table[{}, {place}] is {page}, but keys has {} pages",
                    self.row_request[row],
                    self.pages.count()
                )));
            }
        }
        Ok(())
    }

    /// Entries that a row sees.
    fn sees(&self, row: usize) -> usize {
        usize::try_from(self.visible[row]).unwrap_or(0)
    }

    /// Ranges of rows that read the same keys.
    fn blocks(&self) -> Vec<Range<usize>> {
        let mut blocks: Vec<Range<usize>> = Vec::new();
        for (row, request) in self.row_request.iter().enumerate() {
            match blocks.last_mut() {
                Some(block)
                    if self.candidates.is_none() && block.len() < ROWS && self.row_request[block.start] == *request =>
                {
                    block.end = row + 1;
                }
                _ => blocks.push(row..row + 1),
            }
        }
        blocks
    }

    /// Entry of a column of a row, if it has one.
    fn entry(&self, row: usize, column: usize) -> Option<usize> {
        let Some(candidates) = self.candidates else { return Some(column) };
        let block = *candidates.row(row).get(column / self.block_size)?;
        Some(usize::try_from(block).ok()? * self.block_size + column % self.block_size)
    }

    fn run(&self, mut piece: Piece<'_>, scratch: &mut Scratch) {
        piece.out.iter_mut().for_each(|out| out.fill(f32::NEG_INFINITY));
        let limit = piece.rows.clone().map(|row| self.sees(row)).max().unwrap_or(0);
        if limit == 0 {
            return;
        }
        self.load_queries(&piece.rows, scratch);
        let request = self.row_request[piece.rows.start] as usize;
        let (table, per_page) = (self.block_table.row(request), self.pages.entries_per_page());
        for start in piece.columns.clone().step_by(KEYS) {
            let columns = start..piece.columns.end.min(start + KEYS);
            let visible = |column| Some((column, self.entry(piece.rows.start, column).filter(|&e| e < limit)?));
            scratch.entries.clear();
            scratch.entries.extend(columns.filter_map(visible));
            if scratch.entries.is_empty() {
                continue;
            }
            scratch.keys.resize(scratch.entries.len() * self.dim, 0.0);
            if self.dim > 0 {
                for (&(_, entry), key) in scratch.entries.iter().zip(scratch.keys.chunks_exact_mut(self.dim)) {
                    // Checked to be a page.
                    let page = table[entry / per_page] as usize;
                    self.pages.decode(page * per_page + entry % per_page, key);
                }
            }
            self.score(&mut piece, scratch);
        }
    }

    fn load_queries(&self, rows: &Range<usize>, scratch: &mut Scratch) {
        let width = self.heads * self.dim;
        scratch.q.resize(rows.len() * width, 0.0);
        scratch.weights.clear();
        for (index, row) in rows.clone().enumerate() {
            load_columns(&self.q, row, 0..width, &mut scratch.q[index * width..][..width], &mut scratch.row);
            let weights = self.head_weight.load(row, &mut scratch.weight_row);
            scratch.weights.extend(weights.iter().map(|weight| {
                let weight = weight * self.scale;
                f64::from(if self.rounds_weight { bf16::round(weight) } else { weight })
            }));
        }
    }

    /// Scores of the keys in `scratch`.
    fn score(&self, piece: &mut Piece<'_>, scratch: &mut Scratch) {
        let count = scratch.entries.len();
        scratch.sums.clear();
        scratch.sums.resize(piece.rows.len() * self.heads * count, 0.0);
        if self.dim > 0 {
            sum::products(&scratch.q, &scratch.keys, self.dim, &mut scratch.sums);
        }
        for (index, (row, out)) in piece.rows.clone().zip(&mut piece.out).enumerate() {
            scratch.scores.clear();
            scratch.scores.resize(count, 0.0);
            for head in index * self.heads..(index + 1) * self.heads {
                let weight = scratch.weights[head];
                for (score, &sum) in scratch.scores.iter_mut().zip(&scratch.sums[head * count..][..count]) {
                    // Not `max`, which would drop a NaN.
                    *score += weight * if sum <= 0.0 { 0.0 } else { sum };
                }
            }
            let visible = self.sees(row);
            for (&(column, entry), &score) in scratch.entries.iter().zip(&scratch.scores) {
                if entry < visible {
                    out[column - piece.columns.start] = score as f32;
                }
            }
        }
    }
}

/// Pieces of one block of rows and at most `width` columns.
fn cut<'a>(rows: Vec<&'a mut [f32]>, blocks: &[Range<usize>], width: usize) -> Vec<Piece<'a>> {
    let mut rows = rows.into_iter();
    let mut pieces = Vec::new();
    for block in blocks {
        let mut parts: Vec<_> = rows.by_ref().take(block.len()).map(|row| row.chunks_mut(width.max(1))).collect();
        let mut start = 0;
        loop {
            let out: Vec<&mut [f32]> = parts.iter_mut().filter_map(Iterator::next).collect();
            let Some(first) = out.first() else { break };
            let columns = start..start + first.len();
            start = columns.end;
            pieces.push(Piece { rows: block.clone(), columns, out });
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::IndexScores;
    use deepinfer_plugin_api::numerics::Bf16;

    use super::*;
    use crate::cache::Layout;
    use crate::random;
    use crate::testing::{Tensor, call};

    const PER_PAGE: usize = 8;

    /// One call: two requests of five pages each, in a shuffled cache of twelve.
    struct Case {
        format: u32,
        heads: usize,
        dim: usize,
        columns: usize,
        q: Tensor,
        head_weight: Tensor,
        keys: Tensor,
        row_request: Vec<i32>,
        block_table: Vec<i32>,
        visible: Vec<i32>,
        /// With the size of a block.
        candidates: Option<(Vec<i32>, u32)>,
    }

    impl Case {
        fn new(format: u32, q_format: Format, rows: usize, heads: usize, dim: usize) -> Self {
            let layout = Layout::new("test", "keys", format, PER_PAGE as u32, dim, usize::MAX).unwrap();
            let bytes = PER_PAGE * dim * 4;
            let mut keys = vec![0xFF; 12 * bytes];
            for (page, keys) in keys.chunks_mut(bytes).enumerate() {
                for index in 0..PER_PAGE {
                    layout.encode_entry(keys, index, &random::floats((page * PER_PAGE + index) as u64, dim));
                }
            }
            Self {
                format,
                heads,
                dim,
                columns: 39,
                q: Tensor::floating(q_format, &[rows, heads * dim], &random::floats(100, rows * heads * dim)),
                head_weight: Tensor::bf16(&[rows, heads], &random::floats(101, rows * heads)),
                keys: Tensor::u8(&[12, bytes], &keys),
                row_request: (0..rows).map(|row| i32::from(row >= rows / 2)).collect(),
                block_table: vec![11, 0, 7, 3, 5, 2, 9, 1, 10, 4],
                visible: (0..rows).map(|row| (row * 11 % 45) as i32 - 2).collect(),
                candidates: None,
            }
        }

        fn run(&self) -> Result<Vec<f32>, String> {
            let rows = self.visible.len();
            let request = Tensor::i32(&[rows], &self.row_request);
            let table = Tensor::i32(&[2, 5], &self.block_table);
            let visible = Tensor::i32(&[rows], &self.visible);
            let candidates =
                self.candidates.as_ref().map(|(list, size)| (Tensor::i32(&[rows, list.len() / rows], list), *size));
            let mut out = Tensor::unwritten(Format::F32, &[rows, self.columns]);
            call::<IndexScores>(|a| {
                (a.q, a.head_weight, a.scale) = (self.q.input(), self.head_weight.input(), 0.3);
                (a.keys, a.format, a.entries_per_page) = (self.keys.input(), self.format, PER_PAGE as u32);
                (a.row_request, a.block_table, a.visible) = (request.input(), table.input(), visible.input());
                if let Some((list, size)) = &candidates {
                    (a.candidates, a.block_size) = (list.input(), *size);
                }
                a.out = out.output();
            })?;
            Ok(out.floats())
        }

        /// One column of one row, from the definition.
        fn expected(&self, row: usize, column: usize) -> f32 {
            let entry = match &self.candidates {
                None => column,
                Some((list, size)) => {
                    let (size, count) = (*size as usize, list.len() / self.visible.len());
                    match list[row * count..][..count].get(column / size) {
                        Some(&block) if block >= 0 => block as usize * size + column % size,
                        _ => return f32::NEG_INFINITY,
                    }
                }
            };
            if entry as i32 >= self.visible[row] {
                return f32::NEG_INFINITY;
            }
            let page = self.block_table[self.row_request[row] as usize * 5 + entry / PER_PAGE] as usize;
            let layout = Layout::new("test", "keys", self.format, PER_PAGE as u32, self.dim, usize::MAX).unwrap();
            let mut key = vec![0.0; self.dim];
            let bytes = self.keys.to_bytes();
            layout.decode_entry(&bytes[page * PER_PAGE * self.dim * 4..], entry % PER_PAGE, &mut key);
            let (q, weights) = (self.q.floats(), self.head_weight.floats());
            let head = |head: usize| {
                let dot = sum::dot(&q[(row * self.heads + head) * self.dim..][..self.dim], &key);
                let weight = Bf16::from_f32(weights[row * self.heads + head] * 0.3).to_f32();
                f64::from(weight) * dot.max(0.0)
            };
            (0..self.heads).map(head).fold(0.0, |sum, term| sum + term) as f32
        }

        #[track_caller]
        fn check(&self) {
            let out = self.run().unwrap();
            for (at, &score) in out.iter().enumerate() {
                let (row, column) = (at / self.columns, at % self.columns);
                assert_eq!(score, self.expected(row, column), "row {row}, column {column}");
            }
        }
    }

    #[test]
    fn every_format_against_the_definition() {
        for format in 0..5 {
            for q_format in [Format::F32, Format::Bf16, Format::Fp4Row32] {
                Case::new(format, q_format, 41, 3, 32).check();
            }
        }
        Case::new(4, Format::Fp4Row32, 1, 4, 64).check();
        Case::new(0, Format::F32, 2, 2, 7).check();
    }

    #[test]
    fn candidates_name_the_entries() {
        let mut case = Case::new(4, Format::Fp4Row32, 9, 2, 32);
        let lists = random::indices(5, 9 * 3, 10).into_iter().map(|block| if block == 9 { -1 } else { block });
        case.candidates = Some((lists.collect(), 4));
        // More columns than the candidates have.
        case.columns = 14;
        case.check();
    }

    #[test]
    fn a_row_does_not_depend_on_its_company() {
        let mut case = Case::new(2, Format::F32, 41, 4, 32);
        let together = case.run().unwrap();
        let (q, weights) = (case.q.floats(), case.head_weight.floats());
        let (requests, visible) = (case.row_request.clone(), case.visible.clone());
        for row in 0..41 {
            case.q = Tensor::f32(&[1, 128], &q[row * 128..][..128]);
            case.head_weight = Tensor::bf16(&[1, 4], &weights[row * 4..][..4]);
            (case.row_request, case.visible) = (vec![requests[row]], vec![visible[row]]);
            assert_eq!(case.run().unwrap(), together[row * 39..][..39]);
        }
    }

    #[test]
    fn a_nan_score_stays_nan() {
        let mut case = Case::new(0, Format::F32, 2, 2, 8);
        let mut q = case.q.floats();
        q[3] = f32::NAN;
        case.q = Tensor::f32(&[2, 16], &q);
        case.visible = vec![5, 5];
        let out = case.run().unwrap();
        assert!(out[..5].iter().all(|s| s.is_nan()) && out[5..].iter().all(|s| !s.is_nan()));
    }

    #[test]
    fn nothing_to_score() {
        let mut case = Case::new(4, Format::F32, 0, 2, 32);
        assert!(case.run().unwrap().is_empty());
        case = Case::new(4, Format::F32, 3, 2, 32);
        case.visible = vec![0, -1, i32::MIN];
        // Without a visible entry, neither request nor pages matter.
        (case.row_request, case.block_table) = (vec![7, -1, 0], vec![-1; 10]);
        assert!(case.run().unwrap().iter().all(|&s| s == f32::NEG_INFINITY));
    }

    #[test]
    fn refusals() {
        let case = |change: &dyn Fn(&mut Case)| {
            let mut case = Case::new(4, Format::F32, 2, 2, 32);
            case.visible = vec![9, 39];
            change(&mut case);
            case.run().unwrap_err()
        };
        assert_eq!(
            case(&|c| c.row_request[1] = 2),
            "index_scores: row_request[1] is 2, but block_table has 2 requests"
        );
        assert_eq!(case(&|c| c.block_table[8] = 12), "index_scores: block_table[1, 3] is 12, but keys has 12 pages");
        assert_eq!(case(&|c| c.block_table[1] = -1), "index_scores: block_table[0, 1] is -1, but keys has 12 pages");
        assert_eq!(
            case(&|c| (c.columns, c.visible[1]) = (60, 50)),
            "index_scores: row 1 sees entry 49, but a request has 5 pages of 8 entries"
        );
        assert_eq!(
            case(&|c| (c.candidates, c.visible[1]) = (Some((vec![0, 0, 1, 7], 8)), 100)),
            "index_scores: row 1 sees entry 63, but a request has 5 pages of 8 entries"
        );
        assert_eq!(
            case(&|c| c.candidates = Some((vec![0; 4], 0))),
            "index_scores: block_size is 0, but must be at least 1"
        );
        assert_eq!(case(&|c| c.format = 9), "index_scores: the entry format of keys is 9; 0 to 4 are possible");
    }
}
