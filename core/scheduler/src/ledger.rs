//! Token counts of one request.
//!
//! A step in flight has computed nothing yet and drawn nothing yet, but the next step is planned as if it had. The ledger
//! keeps what is known apart from what is assumed: committed counts, and one entry per step in flight with its rows and its
//! *placeholders*, the output tokens that it is assumed to append. Every other number is a sum of these; the sums over the
//! steps in flight are kept, because each row of each step asks for them several times.

use std::collections::VecDeque;

use crate::plan::StepId;

/// A step in flight, as one request sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InFlight {
    step: StepId,
    rows: usize,
    /// Output tokens that it is assumed to append.
    placeholders: usize,
}

/// The token counts of one request. All are in tokens, which are also rows and positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    prompt: usize,
    output: usize,
    computed: usize,
    prefill_end: usize,
    generation: u32,
    in_flight: VecDeque<InFlight>,
    /// Rows of the steps in flight.
    rows_in_flight: usize,
    /// Placeholders of the steps in flight.
    placeholders: usize,
}

impl Ledger {
    /// A request with a prompt of `prompt` tokens, of which none was computed; at most `depth` steps will be in flight.
    pub fn new(prompt: usize, depth: usize) -> Self {
        Self {
            prompt,
            output: 0,
            computed: 0,
            prefill_end: prompt,
            generation: 0,
            in_flight: VecDeque::with_capacity(depth),
            rows_in_flight: 0,
            placeholders: 0,
        }
    }

    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// Committed tokens of the output.
    pub fn output_len(&self) -> usize {
        self.output
    }

    /// Committed tokens, prompt and output.
    pub fn len(&self) -> usize {
        self.prompt + self.output
    }

    /// Whether there are no tokens, which only an empty prompt has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens whose cache entries are known to be there: the first `computed` ones.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Number of restarts.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Tokens if every step in flight appends what it is assumed to.
    pub fn assumed_len(&self) -> usize {
        self.len() + self.placeholders()
    }

    /// Output tokens that steps in flight are assumed to append.
    pub fn placeholders(&self) -> usize {
        self.placeholders
    }

    /// Drafts in flight: tokens that may turn out not to be there.
    pub fn unverified(&self) -> usize {
        self.in_flight.iter().map(|f| f.placeholders.saturating_sub(1)).sum()
    }

    /// Position of the next row to plan: tokens computed, and rows in flight.
    pub fn scheduled(&self) -> usize {
        self.computed + self.rows_in_flight
    }

    /// Rows that can be planned now: assumed tokens that no step has computed or is computing.
    pub fn pending(&self) -> usize {
        self.assumed_len() - self.scheduled()
    }

    /// Tokens that there were at the last (re)start. Rows up to here are prefill, later ones decode.
    pub fn prefill_end(&self) -> usize {
        self.prefill_end
    }

    /// Whether the next row belongs to the prefill.
    pub fn in_prefill(&self) -> bool {
        self.scheduled() < self.prefill_end
    }

    /// Steps in flight with rows of this request.
    pub fn steps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The last step in flight that draws tokens, if there is one: the token after the committed ones is among them.
    pub fn sampling_step(&self) -> Option<StepId> {
        self.in_flight.back().filter(|f| f.placeholders > 0).map(|f| f.step)
    }

    /// The first `tokens` tokens are there already: a hit of the prefix cache, or a fork.
    ///
    /// # Panics
    /// If anything was computed since the last (re)start, or if no token would be left to run.
    pub fn skip(&mut self, tokens: usize) {
        assert!(self.scheduled() == 0, "{} tokens were scheduled before a skip", self.scheduled());
        assert!(tokens < self.len(), "a skip of {tokens} of {} tokens leaves nothing to run", self.len());
        self.computed = tokens;
    }

    /// `step` runs `rows` rows, the last `drafts` of which are drafts. It draws tokens if it reaches the last assumed one.
    /// Returns whether it does.
    ///
    /// # Panics
    /// If there are no such rows, or if drafts do not follow the last assumed token.
    pub fn begin(&mut self, step: StepId, rows: usize, drafts: usize) -> bool {
        let (known, pending) = (rows - drafts, self.pending());
        assert!(known >= 1 && known <= pending, "{known} rows planned of {pending} that are pending");
        let samples = known == pending;
        assert!(samples || drafts == 0, "drafts planned before the last token");
        let placeholders = if samples { 1 + drafts } else { 0 };
        self.in_flight.push_back(InFlight { step, rows, placeholders });
        self.rows_in_flight += rows;
        self.placeholders += placeholders;
        samples
    }

    /// `step`, the oldest one in flight, has completed and appended `tokens` tokens.
    ///
    /// Of a step with placeholders, rows whose drafts were rejected computed nothing that counts; later steps in flight move
    /// to earlier positions by as much. A request that ends may append fewer tokens than the step drew.
    ///
    /// # Panics
    /// If `step` is not the oldest one in flight, or appends more than was assumed.
    pub fn settle(&mut self, step: StepId, tokens: usize) {
        let oldest = self.in_flight.pop_front();
        let Some(InFlight { step: expected, rows, placeholders }) = oldest else {
            panic!("step {} has completed, but the request has none in flight", step.0);
        };
        assert_eq!(expected, step, "steps of a request must complete in order");
        assert!(tokens <= placeholders, "{tokens} tokens came where at most {placeholders} were assumed");
        self.rows_in_flight -= rows;
        self.placeholders -= placeholders;
        let rejected = placeholders.saturating_sub(tokens.max(1));
        self.computed += rows - rejected;
        self.output += tokens;
    }

    /// Everything but the tokens is lost: nothing is computed, and results of steps in flight will be dropped.
    pub fn restart(&mut self) {
        self.in_flight.clear();
        (self.rows_in_flight, self.placeholders) = (0, 0);
        self.computed = 0;
        self.prefill_end = self.len();
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_from_what_is_committed_and_in_flight() {
        let mut ledger = Ledger::new(10, 2);
        assert!(!ledger.begin(StepId(1), 6, 0));
        assert!(ledger.begin(StepId(2), 4, 0));
        assert_eq!((ledger.scheduled(), ledger.computed(), ledger.assumed_len(), ledger.pending()), (10, 0, 11, 1));
        assert_eq!(ledger.sampling_step(), Some(StepId(2)));
        ledger.settle(StepId(1), 0);
        assert_eq!((ledger.computed(), ledger.len()), (6, 10));
        ledger.settle(StepId(2), 1);
        assert_eq!((ledger.computed(), ledger.len(), ledger.placeholders(), ledger.pending()), (10, 11, 0, 1));
        assert!(!ledger.in_prefill());
        assert_eq!(ledger.sampling_step(), None);
    }

    #[test]
    fn rejected_drafts_move_later_steps_back() {
        let mut ledger = Ledger::new(1, 2);
        assert!(ledger.begin(StepId(1), 1, 0));
        ledger.settle(StepId(1), 1);
        ledger.begin(StepId(2), 4, 3);
        ledger.begin(StepId(3), 4, 3);
        assert_eq!((ledger.scheduled(), ledger.assumed_len(), ledger.unverified()), (9, 10, 6));
        ledger.settle(StepId(2), 2);
        assert_eq!((ledger.computed(), ledger.output_len(), ledger.scheduled(), ledger.assumed_len()), (3, 3, 7, 8));
        ledger.settle(StepId(3), 4);
        assert_eq!((ledger.computed(), ledger.len(), ledger.pending()), (7, 8, 1));
    }

    #[test]
    fn a_restart_keeps_tokens_and_nothing_else() {
        let mut ledger = Ledger::new(3, 2);
        ledger.begin(StepId(1), 3, 0);
        ledger.settle(StepId(1), 1);
        ledger.begin(StepId(2), 1, 0);
        ledger.restart();
        assert_eq!((ledger.len(), ledger.placeholders(), ledger.scheduled(), ledger.pending()), (4, 0, 0, 4));
        assert_eq!((ledger.generation(), ledger.prefill_end()), (1, 4));
        ledger.skip(2);
        assert_eq!((ledger.computed(), ledger.pending()), (2, 2));
    }

    #[test]
    #[should_panic(expected = "5 tokens came where at most 1 were assumed")]
    fn placeholders_never_underflow() {
        let mut ledger = Ledger::new(3, 1);
        ledger.begin(StepId(1), 3, 0);
        ledger.settle(StepId(1), 5);
    }

    #[test]
    #[should_panic(expected = "3 rows planned of 2 that are pending")]
    fn rows_that_do_not_exist_cannot_be_planned() {
        Ledger::new(2, 1).begin(StepId(1), 3, 0);
    }
}
