//! Text of an output as it grows: decoded token by token, held back while it may be the beginning of a stop string.

use std::sync::Arc;

use deepinfer_model::tokenizer::{DetokenizeStream, Tokenizer};

use crate::params::SamplingParams;

/// The text of one output.
pub(crate) struct TextStream {
    tokenizer: Arc<Tokenizer>,
    /// Taken when the text ends.
    decoder: Option<DetokenizeStream>,
    stop: Vec<String>,
    include_stop: bool,
    skip_special: bool,
    text: String,
    /// Bytes of the text that were given out.
    given: usize,
}

impl TextStream {
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, params: &SamplingParams) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            decoder: Some(tokenizer.detokenize_stream()),
            stop: params.stop.clone(),
            include_stop: params.include_stop_str_in_output,
            skip_special: params.skip_special_tokens,
            text: String::new(),
            given: 0,
        }
    }

    /// Takes the next token. If `may_stop`, looks for stop strings that this token completes; the text then ends, and the
    /// string is returned. Of several, the one that begins first counts, and of those the longest.
    pub(crate) fn push(&mut self, token: u32, may_stop: bool) -> Option<String> {
        if self.skip_special && self.tokenizer.is_special(token) {
            return None;
        }
        let before = self.text.len();
        self.decoder.as_mut()?.push_to(token, &mut self.text);
        if !may_stop || self.text.len() == before {
            return None;
        }
        let matches = self.stop.iter().filter_map(|stop| {
            // It ends in the new text.
            let mut from = (before + 1).saturating_sub(stop.len());
            while !self.text.is_char_boundary(from) {
                from += 1;
            }
            let recent = &self.text[from..];
            // A search prepares the whole of a stop string, however long.
            if recent.len() < stop.len() {
                return None;
            }
            recent.find(stop).map(|at| (from + at, stop))
        });
        let (start, stop) = matches.min_by_key(|(start, stop)| (*start, usize::MAX - stop.len()))?;
        let stop = stop.clone();
        self.text.truncate(if self.include_stop { start + stop.len() } else { start });
        self.decoder = None;
        Some(stop)
    }

    /// The text that became certain since the last call: nothing of what may still turn out to be a stop string.
    pub(crate) fn take_new(&mut self) -> &str {
        let end = if self.decoder.is_some() { self.text.len() - self.held_back() } else { self.text.len() };
        let start = self.given;
        self.given = end.max(start);
        &self.text[start..self.given]
    }

    /// Ends the text: what was held back belongs to it. Without effect if a stop string has ended it.
    pub(crate) fn end(&mut self) {
        if let Some(rest) = self.decoder.take().and_then(DetokenizeStream::finish) {
            self.text.push_str(&rest);
        }
    }

    /// The text so far, with what is held back.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Bytes at the end of the text that a stop string may begin with.
    fn held_back(&self) -> usize {
        let held = |stop: &String| {
            let longest = (stop.len() - 1).min(self.text.len() - self.given);
            let is_beginning = |&len: &usize| {
                let from = self.text.len() - len;
                self.text.is_char_boundary(from) && stop.starts_with(&self.text[from..])
            };
            (1..=longest).rev().find(is_beginning).unwrap_or(0)
        };
        self.stop.iter().map(held).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use deepinfer_model::checkpoint::Checkpoint;

    use super::*;

    fn tokenizer() -> Arc<Tokenizer> {
        let miniature = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/deepseek-v41-mini");
        Checkpoint::open(miniature.as_ref()).unwrap().tokenizer().unwrap().unwrap()
    }

    fn stream(stop: &[&str], include: bool) -> (TextStream, Arc<Tokenizer>) {
        let tokenizer = tokenizer();
        let stop = stop.iter().map(|&s| s.to_owned()).collect();
        let params = SamplingParams { stop, include_stop_str_in_output: include, ..SamplingParams::default() };
        (TextStream::new(&tokenizer, &params), tokenizer)
    }

    /// Tokens of one byte each, so that every place in a text is between two tokens.
    fn byte_tokens(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        let token_of = |byte: u8| (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == [byte]);
        text.bytes().map(|byte| token_of(byte).expect("a token for every byte")).collect()
    }

    #[test]
    fn nothing_of_a_stop_string_is_given_out_before_it_is_decided() {
        let (mut stream, tokenizer) = stream(&["<end>", "d. N"], false);
        let mut given = String::new();
        let mut stopped = None;
        for token in byte_tokens(&tokenizer, "a <e>nd. <en<end> x") {
            stopped = stream.push(token, true);
            given.push_str(stream.take_new());
            assert!("a <e>nd. <en".starts_with(&given), "{given:?}");
            if stopped.is_some() {
                break;
            }
        }
        assert_eq!(
            (stopped.as_deref(), given.as_str(), stream.text()),
            (Some("<end>"), "a <e>nd. <en", "a <e>nd. <en")
        );
        stream.end();
        assert_eq!(stream.text(), "a <e>nd. <en");
    }

    #[test]
    fn what_is_held_back_comes_at_the_end() {
        let (mut stream, tokenizer) = stream(&["héé!"], false);
        let mut given = String::new();
        for token in byte_tokens(&tokenizer, "oh héé") {
            assert_eq!(stream.push(token, true), None);
            given.push_str(stream.take_new());
        }
        assert_eq!(given, "oh ");
        stream.end();
        assert_eq!(stream.take_new(), "héé");
        assert_eq!(stream.text(), "oh héé");
    }

    #[test]
    fn the_stop_string_is_kept_on_request_and_what_follows_in_its_token_is_not() {
        let (mut stream, tokenizer) = stream(&["he c"], true);
        let ids = tokenizer.encode_prompt("The cat").unwrap();
        let stopped = ids.iter().skip(1).find_map(|&id| stream.push(id, true));
        assert_eq!((stopped.as_deref(), stream.text()), (Some("he c"), "The c"));
    }

    #[test]
    fn strings_completed_before_the_first_allowed_token_do_not_stop() {
        let (mut stream, tokenizer) = stream(&["ab"], false);
        let found: Vec<bool> = byte_tokens(&tokenizer, "abab")
            .into_iter()
            .enumerate()
            .map(|(i, token)| stream.push(token, i >= 2).is_some())
            .collect();
        assert_eq!(found, [false, false, false, true]);
        assert_eq!(stream.text(), "ab");
    }

    #[test]
    fn of_several_stop_strings_the_one_that_begins_first_counts() {
        let (mut stream, tokenizer) = stream(&["cat", "he cat", "at"], false);
        let ids = tokenizer.encode_prompt("The cat").unwrap();
        let whole = tokenizer.decode(&ids[1..]);
        assert_eq!(whole, "The cat");
        let stopped = ids.iter().skip(1).find_map(|&id| stream.push(id, true));
        assert_eq!((stopped.as_deref(), stream.text()), (Some("he cat"), "T"));
    }

    #[test]
    fn special_tokens_are_left_out_on_request() {
        let (mut plain, tokenizer) = stream(&[], false);
        let mut skipping =
            TextStream::new(&tokenizer, &SamplingParams { skip_special_tokens: true, ..SamplingParams::default() });
        let ids = tokenizer.encode_prompt("One day").unwrap();
        assert!(tokenizer.is_special(ids[0]) && !tokenizer.is_special(ids[1]));
        for &id in &ids {
            plain.push(id, false);
            skipping.push(id, false);
        }
        assert_eq!((plain.text(), skipping.text()), (tokenizer.decode(&ids).as_str(), "One day"));
    }
}
