//! Batch files: one JSON object per line, in and out.

mod input;
mod output;

pub use input::{InputLine, encode, parse_line};
pub use output::{CompletedLine, CompletionObject, ErrorObject, OutputLine, Outputs};
