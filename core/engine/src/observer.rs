//! Who looks at logits before anything has changed them.

use crate::RequestId;

/// Sees the raw logits of every row that runs; see [`EngineBuilder::observe`](crate::EngineBuilder::observe).
///
/// Every row of every request then has logits, which costs the head of the model and a copy to the host for each; an engine
/// without an observer pays nothing.
pub trait LogitsObserver {
    /// A row has run. Rows of a request come in order, before the token that is drawn from the last of them
    /// comes as an [`Event`](crate::Event). After a preemption rows run again and are seen again; what ran for a request that
    /// had ended or was preempted meanwhile is not.
    fn row(&mut self, row: &ObservedRow<'_>);
}

/// A row as the model left it.
#[derive(Clone, Copy, Debug)]
pub struct ObservedRow<'a> {
    /// Request, as [`Engine::submit`](crate::Engine::submit) named it.
    pub request: RequestId,
    /// Which of its completions.
    pub completion: usize,
    /// Position of the row's token in the sequence; the logits tell about the next one.
    pub position: usize,
    /// One logit for each token of the vocabulary.
    pub logits: &'a [f32],
}
