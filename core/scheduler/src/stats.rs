//! Numbers for people and dashboards.

/// The state of the scheduler, and what it did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait, preempted ones and completions that wait for their prompt included.
    pub waiting: usize,
    /// Tokens of those, prompts and outputs so far; the completions of a request count one by one.
    pub waiting_tokens: usize,
    /// Steps in flight.
    pub in_flight: usize,
    /// Pages that requests can have.
    pub usable_pages: usize,
    /// Pages that can be handed out now, those of the prefix cache that nobody uses included.
    pub free_pages: usize,
    /// Pages that become free when the steps in flight complete.
    pub retiring_pages: usize,
    /// Pages that the prefix cache can find, used or not.
    pub cached_pages: usize,
    /// Checkpoints at which a hit can end.
    pub checkpoints: usize,
    /// Tokens of requests when they were admitted, each time: what hits could have covered at most.
    pub queried_tokens: u64,
    /// Tokens of them that hits of the prefix cache covered.
    pub hit_tokens: u64,
    /// Requests that were preempted, each time.
    pub preemptions: u64,
    /// Rows that ran and whose results were thrown away, because the request had ended or was preempted meanwhile.
    pub discarded_rows: u64,
    /// Steps that were planned.
    pub steps: u64,
}
