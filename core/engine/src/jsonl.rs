//! Batch files: one JSON object per line, in and out.

use deepinfer_model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{EngineError, RequestError};
use crate::logprobs::TokenLogprob;
use crate::output::FinishReason;
use crate::params::SamplingParams;
use crate::request::Request;
use crate::unbatched::Completion;

/// Fields that an input line may have.
const FIELDS: [&str; 9] = [
    "id",
    "prompt",
    "prompt_token_ids",
    "max_tokens",
    "temperature",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "golden_token_ids",
];

/// A parsed input line.
#[derive(Debug)]
pub struct InputLine {
    /// The line's id, or its number when it has none that can be read.
    pub id: String,
    /// The request, or why there is none.
    pub request: Result<Request, RequestError>,
    /// Fields that are not understood and were passed over.
    pub unknown_fields: Vec<String>,
}

/// Parses line `number` (from 1). Parameters that the line lacks come from `defaults`. Text needs a tokenizer.
pub fn parse_line(
    line: &str,
    number: usize,
    defaults: &SamplingParams,
    vocab_size: usize,
    tokenizer: Option<&Tokenizer>,
) -> InputLine {
    let fallback_id = number.to_string();
    let object = match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(object)) => object,
        Ok(other) => {
            let problem = format!("line {number} is {}, but must be a JSON object", kind(&other));
            return InputLine {
                id: fallback_id,
                request: Err(RequestError::InvalidLine(problem)),
                unknown_fields: vec![],
            };
        }
        Err(e) => {
            let problem = format!("line {number} is not JSON: {}", json_problem(&e));
            return InputLine {
                id: fallback_id,
                request: Err(RequestError::InvalidLine(problem)),
                unknown_fields: vec![],
            };
        }
    };
    let unknown_fields = object.keys().filter(|k| !FIELDS.contains(&k.as_str())).cloned().collect();
    let (id, request) = match object.get("id") {
        Some(Value::String(id)) => (id.clone(), parse_request(id, &object, defaults, vocab_size, tokenizer)),
        Some(other) => (fallback_id, Err(wrong("id", other, "a string"))),
        None => (fallback_id, Err(RequestError::InvalidLine(format!("line {number} has no id")))),
    };
    InputLine { id, request, unknown_fields }
}

fn parse_request(
    id: &str,
    object: &Map<String, Value>,
    defaults: &SamplingParams,
    vocab_size: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<Request, RequestError> {
    let prompt_token_ids = match (object.get("prompt"), object.get("prompt_token_ids")) {
        (Some(Value::String(text)), None) => encode(text, tokenizer)?,
        (Some(other), None) => return Err(wrong("prompt", other, "a string")),
        (None, Some(ids)) => token_ids("prompt_token_ids", ids, vocab_size)?,
        (None, None) => {
            return Err(RequestError::InvalidLine("neither prompt nor prompt_token_ids is given".to_owned()));
        }
        (Some(_), Some(_)) => {
            return Err(RequestError::InvalidLine(
                "both prompt and prompt_token_ids are given; one is needed".to_owned(),
            ));
        }
    };
    let mut params = defaults.clone();
    let whole = "a whole number of at least 0";
    if let Some(value) = object.get("max_tokens") {
        let limit = value.as_u64().ok_or_else(|| wrong("max_tokens", value, whole))?;
        params.max_tokens = Some(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    if let Some(value) = object.get("temperature") {
        params.temperature = value.as_f64().ok_or_else(|| wrong("temperature", value, "a number"))? as f32;
    }
    if let Some(value) = object.get("seed") {
        params.seed = Some(value.as_u64().ok_or_else(|| wrong("seed", value, "a whole number below 2^64"))?);
    }
    if let Some(value) = object.get("ignore_eos") {
        params.ignore_eos = value.as_bool().ok_or_else(|| wrong("ignore_eos", value, "true or false"))?;
    }
    if let Some(value) = object.get("stop_token_ids") {
        params.stop_token_ids = token_ids("stop_token_ids", value, vocab_size)?;
    }
    if let Some(value) = object.get("golden_token_ids") {
        params.golden_token_ids = token_ids("golden_token_ids", value, vocab_size)?;
    }
    Ok(Request { id: id.to_owned(), prompt_token_ids, params })
}

/// Token ids of a text, with the begin token unless it begins with it.
///
/// # Errors
/// There is no tokenizer, the text is empty, or the tokenizer refuses it.
pub fn encode(text: &str, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, RequestError> {
    let tokenizer = tokenizer.ok_or(RequestError::NoTokenizer)?;
    if text.is_empty() {
        return Err(RequestError::EmptyPrompt);
    }
    tokenizer.encode_prompt(text).map_err(|e| RequestError::Tokenizer(e.to_string()))
}

fn token_ids(what: &'static str, value: &Value, vocab_size: usize) -> Result<Vec<u32>, RequestError> {
    let list = value.as_array().ok_or_else(|| wrong(what, value, "a list of token ids"))?;
    list.iter()
        .enumerate()
        .map(|(index, item)| {
            let Some(id) = item.as_i64() else {
                return Err(RequestError::InvalidLine(format!(
                    "{what}[{index}] is {}, but must be a token id below {vocab_size}",
                    shown(item)
                )));
            };
            u32::try_from(id).ok().filter(|id| (*id as usize) < vocab_size).ok_or(RequestError::TokenOutOfRange {
                what,
                index,
                id,
                vocab_size,
            })
        })
        .collect()
}

/// What is wrong with a line's JSON, and at which column. The parser's own text also counts lines, from the line's start.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(problem) => format!("{problem} at column {}", error.column()),
        None => text,
    }
}

fn wrong(name: &'static str, value: &Value, wanted: &'static str) -> RequestError {
    RequestError::InvalidParameter { name, value: shown(value), wanted }
}

/// A value as it is quoted in a message, cut when it is long.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= LONGEST { text } else { text.chars().take(LONGEST).collect::<String>() + ".." }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// An output line.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum OutputLine {
    /// The request ran.
    Completed(Box<CompletedLine>),
    /// It did not.
    Failed {
        /// Id of the input line.
        id: String,
        /// Why.
        error: ErrorObject,
    },
}

/// The output of a request.
#[derive(Debug, Serialize)]
pub struct CompletedLine {
    /// Id of the input line.
    pub id: String,
    /// Prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Output, the stop token included.
    pub token_ids: Vec<u32>,
    /// The output as text; null without a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seed of the draws.
    pub seed: u64,
    /// Per token, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Per token, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits: Option<Vec<Vec<(u32, f32)>>>,
    /// What went wrong, when the output ended by an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorObject>,
}

/// An error for programs and people.
#[derive(Debug, Serialize)]
pub struct ErrorObject {
    /// Short stable name.
    pub code: String,
    /// A sentence.
    pub message: String,
}

impl OutputLine {
    /// The line of a finished request.
    pub fn completed(request: &Request, completion: Completion, tokenizer: Option<&Tokenizer>) -> Self {
        let token_ids: Vec<u32> = completion.steps.iter().map(|s| s.token_id).collect();
        let text = tokenizer.map(|t| t.decode(&token_ids));
        let wants_logprobs = request.params.logprobs.is_some();
        let wants_logits = request.params.logits.is_some();
        let (mut logprobs, mut logits) = (Vec::new(), Vec::new());
        for step in completion.steps {
            logprobs.extend(step.logprob);
            logits.extend(step.logits);
        }
        OutputLine::Completed(Box::new(CompletedLine {
            id: request.id.clone(),
            prompt_token_ids: request.prompt_token_ids.clone(),
            token_ids,
            text,
            finish_reason: completion.finish_reason,
            seed: completion.seed,
            logprobs: wants_logprobs.then_some(logprobs),
            logits: wants_logits.then_some(logits),
            error: completion.error.map(|(code, message)| ErrorObject { code, message }),
        }))
    }

    /// The line of a request that gave nothing.
    pub fn failed(id: &str, error: &EngineError) -> Self {
        let error = ErrorObject { code: error.code().to_owned(), message: error.to_string() };
        OutputLine::Failed { id: id.to_owned(), error }
    }
}
