//! What a `tokenizer.json` may contain.
//!
//! The format can describe every kind of tokenizer, and the library that runs it trusts the description: some settings
//! make it panic, others give different ids in every run. DeepSeek's tokenizers use a small part of it, byte-level BPE
//! after splits by regular expressions, and only that part is let through.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::TokenizerError;
use crate::files::without_byte_order_mark;

/// Settings of the BPE model that must be off, each with the values that say so beside `null`.
const OFF: [(&str, &[&str]); 5] = [
    ("dropout", &["0", "0.0"]),
    ("unk_token", &[]),
    ("continuing_subword_prefix", &["\"\""]),
    ("end_of_word_suffix", &["\"\""]),
    ("byte_fallback", &["false"]),
];

/// Parts that have no influence on ids: encoding adds no tokens of its own, and decoding does not use the library.
const UNUSED: [&str; 4] = ["truncation", "padding", "post_processor", "decoder"];

/// Parses `tokenizer.json`, refuses what is not a tokenizer of DeepSeek's kind for `vocab_size` ids, and takes out the
/// parts that are not used.
pub(super) fn parse(json: &[u8], vocab_size: usize) -> Result<Value, TokenizerError> {
    let mut document: Value =
        serde_json::from_slice(without_byte_order_mark(json)).map_err(|error| TokenizerError::Load(Box::new(error)))?;
    let Some(parts) = document.as_object_mut() else {
        return Err(TokenizerError::Load("it is not a JSON object".into()));
    };
    let model = parts.get("model").and_then(Value::as_object);
    let model = model.ok_or_else(|| TokenizerError::Load("it has no object `model`".into()))?;
    check_model(model)?;
    check_decoder(parts.get("decoder"))?;
    check_normalizer(parts.get("normalizer"))?;
    if !has_byte_level(parts.get("pre_tokenizer"))? {
        return Err(unsupported("pre_tokenizer", "without a ByteLevel step", "Split steps and a ByteLevel step"));
    }
    check_ids(model, parts.get("added_tokens"), vocab_size)?;
    for part in UNUSED {
        parts.remove(part);
    }
    Ok(document)
}

fn unsupported(part: &str, found: impl Into<String>, expected: &'static str) -> TokenizerError {
    TokenizerError::Unsupported { part: part.to_owned(), found: found.into(), expected }
}

/// The `type` of a component as messages show it.
fn type_of(component: &Value) -> String {
    match &component["type"] {
        Value::String(name) => shown(name),
        _ => "a component without a type".to_owned(),
    }
}

/// Text of a file short enough for a message.
fn shown(text: &str) -> String {
    if text.chars().count() <= 60 { text.to_owned() } else { text.chars().take(57).chain("...".chars()).collect() }
}

fn check_decoder(decoder: Option<&Value>) -> Result<(), TokenizerError> {
    let found = match decoder {
        None | Some(Value::Null) => "no decoder".to_owned(),
        Some(decoder) if decoder["type"] == "ByteLevel" => return Ok(()),
        Some(decoder) => format!("the decoder {}", type_of(decoder)),
    };
    Err(TokenizerError::Decoder { found })
}

fn check_normalizer(normalizer: Option<&Value>) -> Result<(), TokenizerError> {
    let Some(normalizer) = normalizer.filter(|found| !found.is_null()) else { return Ok(()) };
    if normalizer["type"] != "Sequence" {
        return Err(unsupported("normalizer", type_of(normalizer), "an empty Sequence or null"));
    }
    let steps = normalizer["normalizers"].as_array().map_or(&[][..], Vec::as_slice);
    steps.iter().try_for_each(|step| check_normalizer(Some(step)))
}

/// Refuses steps of other kinds; returns whether bytes become the characters of the vocabulary somewhere.
fn has_byte_level(step: Option<&Value>) -> Result<bool, TokenizerError> {
    let Some(step) = step.filter(|found| !found.is_null()) else { return Ok(false) };
    match step["type"].as_str() {
        Some("ByteLevel") => Ok(true),
        Some("Split") if step["behavior"] == "Removed" => {
            Err(unsupported("pre_tokenizer", "a Split that removes text", "Split steps that keep all text"))
        }
        Some("Split") => {
            let pattern = ["Regex", "String"].iter().find_map(|kind| step["pattern"][kind].as_str());
            match pattern {
                Some(pattern) if !pattern.is_empty() => Ok(false),
                _ => Err(unsupported("pre_tokenizer", "a Split by an empty pattern", "a regular expression or a text")),
            }
        }
        Some("Sequence") => {
            let steps = step["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice);
            steps.iter().try_fold(false, |found, step| Ok(has_byte_level(Some(step))? || found))
        }
        _ => Err(unsupported("pre_tokenizer", type_of(step), "Sequence, Split or ByteLevel")),
    }
}

fn check_model(model: &Map<String, Value>) -> Result<(), TokenizerError> {
    if model.get("type").is_none_or(|kind| kind != "BPE") {
        let found = model.get("type").map_or("without a type".to_owned(), |kind| shown(&kind.to_string()));
        return Err(unsupported("model", found, "BPE"));
    }
    for (setting, values) in OFF {
        let found = model.get(setting).unwrap_or(&Value::Null);
        let text = found.to_string();
        if !found.is_null() && !values.contains(&text.as_str()) {
            return Err(unsupported(&format!("model.{setting}"), shown(&text), "the setting to be off (null)"));
        }
    }
    Ok(())
}

/// Every id must be one of the model's, and belong to one token: the library would pick one of several at random.
fn check_ids(model: &Map<String, Value>, added: Option<&Value>, vocab_size: usize) -> Result<(), TokenizerError> {
    let Some(vocabulary) = model.get("vocab").and_then(Value::as_object) else {
        return Err(TokenizerError::Load("`model.vocab` is not an object of token ids".into()));
    };
    let added = added.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let added = added.iter().map(|token| (token["content"].as_str().unwrap_or_default(), &token["id"]));
    let mut token_of: HashMap<u64, &str> = HashMap::with_capacity(vocabulary.len());
    for (token, id) in vocabulary.iter().map(|(token, id)| (token.as_str(), id)).chain(added) {
        let Some(number) = id.as_u64().filter(|&number| number < vocab_size as u64) else {
            return Err(TokenizerError::Id { token: shown(token), found: shown(&id.to_string()), vocab_size });
        };
        if let Some(other) = token_of.insert(number, token).filter(|&other| other != token) {
            return Err(TokenizerError::SharedId { id: number, first: shown(other), second: shown(token) });
        }
    }
    Ok(())
}
