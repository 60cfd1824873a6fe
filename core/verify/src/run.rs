//! What a run has given, in a form that two runs can be compared in and that crosses processes.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// A 128-bit hash of the bytes of a row, XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest([u64; 2]);

impl Digest {
    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let hash = xxh3_128(bytes);
        Self([(hash >> 64) as u64, hash as u64])
    }

    /// The hash of the bits of some numbers. `scratch` is used for their bytes.
    pub(crate) fn of_floats(values: &[f32], scratch: &mut Vec<u8>) -> Self {
        scratch.clear();
        scratch.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        Self::of(scratch)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

/// The raw logits of a row, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Number of the request in the workload.
    pub request: usize,
    /// Which of its completions.
    pub completion: usize,
    /// Position of the row's token.
    pub position: usize,
    /// Hash of the logits.
    pub logits: Digest,
}

/// A token that is not the one that the host draws from the same row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongDraw {
    /// Position of the token.
    pub position: usize,
    /// What was drawn.
    pub found: u32,
    /// What the host draws.
    pub expected: HostToken,
}

/// What the host draws from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostToken {
    /// The token; `None` if nothing can be drawn.
    pub token: Option<u32>,
    /// Hash of the logits with biases, bans and penalties.
    pub adjusted: Digest,
    /// Hash of these without tokens that are not allowed, from which the token is drawn.
    pub masked: Digest,
}

/// How a completion ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionRun {
    /// Number of the request in the workload.
    pub request: usize,
    /// Which of its completions.
    pub completion: usize,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// How many of them the host has drawn again; the others were forced.
    pub draws: usize,
    /// The first of those that is another one.
    pub wrong_draw: Option<WrongDraw>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// What a run has given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Rows in the order in which they ran. A row can come again, after a preemption or in a second pass.
    pub rows: Vec<Row>,
    /// Completions, in the order in which their requests ended.
    pub completions: Vec<CompletionRun>,
    /// Tokens of prompts that the prefix cache had.
    pub hit_tokens: u64,
    /// Requests that were preempted, each time.
    pub preemptions: u64,
}

/// What a request gives alone.
pub(crate) struct Solo {
    rows: HashMap<(usize, usize), Digest>,
    tokens: Vec<Vec<u32>>,
}

/// Something that is not as in the solo run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) request: usize,
    pub(crate) completion: usize,
    /// Position of the row, or of the token.
    pub(crate) position: usize,
    pub(crate) what: What,
}

/// What is not as in the solo run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A row has other logits; `None` if the solo run has no such row.
    Logits { expected: Option<Digest>, found: Digest },
    /// A token is another one; `None` on either side if there is none.
    Token { expected: Option<u32>, found: Option<u32> },
    /// A token is not the one that the host draws from the same row.
    Draw(WrongDraw),
    /// The request failed.
    Failed { message: String },
}

impl Solo {
    /// From the run of a request that ran alone. Each of its completions ran the prompt; what they do not agree on is a
    /// difference, too.
    pub(crate) fn of(run: &Run, prompt_len: usize) -> (Self, Vec<Difference>) {
        let (mut rows, mut of_prompt, mut differences) = (HashMap::new(), HashMap::new(), Vec::new());
        for row in &run.rows {
            rows.insert((row.completion, row.position), row.logits);
            let expected = *of_prompt.entry(row.position).or_insert(row.logits);
            if row.position < prompt_len && row.logits != expected {
                differences.push(Difference::of_row(row, Some(expected)));
            }
        }
        let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); run.completions.len()];
        for completion in &run.completions {
            tokens[completion.completion].clone_from(&completion.tokens);
            differences.extend(Difference::of_draw(completion));
        }
        (Self { rows, tokens }, differences)
    }

    /// The rows of the run.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
}

impl Difference {
    fn of_row(row: &Row, expected: Option<Digest>) -> Self {
        let &Row { request, completion, position, logits } = row;
        Self { request, completion, position, what: What::Logits { expected, found: logits } }
    }

    fn of_draw(run: &CompletionRun) -> Option<Self> {
        let wrong = run.wrong_draw?;
        let what = What::Draw(wrong);
        Some(Self { request: run.request, completion: run.completion, position: wrong.position, what })
    }
}

/// All that is not as in the solo runs: rows in the order in which they ran, then completions.
pub(crate) fn compare<'a>(
    run: &Run,
    solo_of: impl Fn(usize) -> &'a Solo,
    prompt_len: impl Fn(usize) -> usize,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for row in &run.rows {
        let expected = solo_of(row.request).rows.get(&(row.completion, row.position)).copied();
        if expected != Some(row.logits) {
            differences.push(Difference::of_row(row, expected));
        }
    }
    for completion in &run.completions {
        let CompletionRun { request, completion: index, tokens, error, .. } = completion;
        let prompt_len = prompt_len(*request);
        let at = |position, what| Difference { request: *request, completion: *index, position, what };
        if let Some(message) = error {
            differences.push(at(prompt_len + tokens.len(), What::Failed { message: message.clone() }));
            continue;
        }
        let expected = &solo_of(*request).tokens[*index];
        let longest = tokens.len().max(expected.len());
        if let Some(other) = (0..longest).find(|&i| tokens.get(i) != expected.get(i)) {
            let (expected, found) = (expected.get(other).copied(), tokens.get(other).copied());
            differences.push(at(prompt_len + other, What::Token { expected, found }));
        }
        differences.extend(Difference::of_draw(completion));
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT_LEN: usize = 3;

    fn row(completion: usize, position: usize, logits: u64) -> Row {
        Row { request: 5, completion, position, logits: Digest([0, logits]) }
    }

    fn completion(completion: usize, tokens: &[u32]) -> CompletionRun {
        let tokens = tokens.to_vec();
        CompletionRun { request: 5, completion, draws: tokens.len(), tokens, wrong_draw: None, error: None }
    }

    /// Two completions of a prompt of three tokens.
    fn alone() -> Run {
        let rows = [(0, [10, 11, 12, 13]), (1, [10, 11, 12, 23])];
        let rows = rows.iter().flat_map(|&(c, logits)| (0..4).map(move |at| row(c, at, logits[at])));
        Run {
            rows: rows.collect(),
            completions: vec![completion(0, &[7, 8]), completion(1, &[7, 9])],
            ..Run::default()
        }
    }

    fn differences(run: &Run) -> Vec<Difference> {
        let (solo, differences) = Solo::of(&alone(), PROMPT_LEN);
        assert_eq!(differences, []);
        assert_eq!(solo.rows(), 8);
        compare(run, |_| &solo, |_| PROMPT_LEN)
    }

    #[test]
    fn equal_runs_do_not_differ_whatever_the_order_and_number_of_rows() {
        let mut run = alone();
        run.rows.reverse();
        run.rows.extend([row(0, 2, 12), row(1, 3, 23)]);
        run.rows.retain(|row| row.position > 0);
        run.completions.reverse();
        assert_eq!(differences(&run), []);
    }

    #[test]
    fn rows_tokens_draws_and_failures_are_told_apart() {
        let at = |completion, position, what| Difference { request: 5, completion, position, what };
        let mut run = alone();
        run.rows.extend([row(1, 3, 13), row(0, 4, 1)]);
        run.completions[0].tokens[1] = 4;
        run.completions[1].tokens.pop();
        let host = HostToken { token: Some(1), adjusted: Digest([0, 0]), masked: Digest([0, 0]) };
        let wrong = WrongDraw { position: 3, found: 7, expected: host };
        run.completions[0].wrong_draw = Some(wrong);
        let logits = |expected: Option<u64>, found| What::Logits {
            expected: expected.map(|hash| Digest([0, hash])),
            found: Digest([0, found]),
        };
        let expected = [
            at(1, 3, logits(Some(23), 13)),
            at(0, 4, logits(None, 1)),
            at(0, 4, What::Token { expected: Some(8), found: Some(4) }),
            at(0, 3, What::Draw(wrong)),
            at(1, 4, What::Token { expected: Some(9), found: None }),
        ];
        assert_eq!(differences(&run), expected);

        let mut failed = alone();
        failed.completions[1].error = Some("no".to_owned());
        assert_eq!(differences(&failed), [at(1, 5, What::Failed { message: "no".to_owned() })]);
    }

    #[test]
    fn completions_that_do_not_agree_on_their_prompt_differ_alone() {
        let mut run = alone();
        run.rows[5].logits = Digest([0, 99]);
        let (_, differences) = Solo::of(&run, PROMPT_LEN);
        assert_eq!(differences.len(), 1);
        assert_eq!((differences[0].completion, differences[0].position), (1, 1));
    }
}
