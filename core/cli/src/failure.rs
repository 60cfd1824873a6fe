//! How a command ends other than well.

use std::io::ErrorKind;

use anyhow::anyhow;

use crate::terminal;

/// Why a command did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Its input is refused: arguments, files, model or accelerator.
    Input(anyhow::Error),
    /// A fault ended it: the device, or a result that cannot be written.
    Fault(anyhow::Error),
    /// Nobody reads its output any more, as in `deepinfer ... | head`. This is the reader's decision, not an error.
    ReaderGone,
}

impl Failure {
    pub(crate) fn input(error: impl Into<anyhow::Error>) -> Self {
        Self::Input(error.into())
    }

    pub(crate) fn fault(error: impl Into<anyhow::Error>) -> Self {
        Self::Fault(error.into())
    }

    /// The place `name` cannot be written.
    pub(crate) fn of_write(name: &str, error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::Fault(anyhow!("cannot write {name}: {error}")),
        }
    }

    /// The error and its causes, for a report that goes on without the part that failed.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Input(error) | Self::Fault(error) => sentence(error),
            Self::ReaderGone => "nobody reads the output".to_owned(),
        }
    }

    /// Prints the error and gives the exit code of the process.
    pub(crate) fn report(&self) -> u8 {
        match self {
            Self::Input(error) => {
                terminal::error(&sentence(error));
                2
            }
            Self::Fault(error) => {
                terminal::error(&sentence(error));
                1
            }
            Self::ReaderGone => 0,
        }
    }
}

/// The error and its causes in one sentence. A cause that the text before already quotes is not repeated: some errors
/// quote their cause, others only refer to it.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_follow_once() {
        let cause = std::io::Error::other("disk full");
        let error = anyhow::Error::new(cause).context("cannot write out.jsonl").context("the run ended");
        assert_eq!(sentence(&error), "the run ended: cannot write out.jsonl: disk full");

        let quoting = Err::<(), _>(std::io::Error::other("disk full")).context("cannot write: disk full").unwrap_err();
        assert_eq!(sentence(&quoting), "cannot write: disk full");
    }
}
