//! Input lines.

use deepinfer_model::tokenizer::Tokenizer;
use serde_json::{Map, Value};

use crate::error::RequestError;
use crate::params::SamplingParams;
use crate::request::Request;

/// Fields that an input line may have.
const FIELDS: [&str; 29] = [
    "id",
    "prompt",
    "prompt_token_ids",
    "max_tokens",
    "min_tokens",
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "allowed_token_ids",
    "banned_token_ids",
    "seed",
    "seq_seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "golden_token_ids",
    "logprobs",
    "prompt_logprobs",
    "logits",
    "priority",
    "cache_salt",
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

impl InputLine {
    /// Line `number` (from 1), of which nothing can be read.
    pub fn unreadable(number: usize, problem: String) -> Self {
        let request = Err(RequestError::InvalidLine(problem));
        Self { id: number.to_string(), request, unknown_fields: Vec::new() }
    }
}

/// Parses line `number` (from 1). Parameters that the line lacks come from `defaults`. Text needs a tokenizer.
pub fn parse_line(
    line: &str,
    number: usize,
    defaults: &SamplingParams,
    vocab_size: usize,
    tokenizer: Option<&Tokenizer>,
) -> InputLine {
    let object = match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(object)) => object,
        Ok(other) => {
            let problem = format!("line {number} is {}, but must be a JSON object", kind(&other));
            return InputLine::unreadable(number, problem);
        }
        Err(e) => {
            return InputLine::unreadable(number, format!("line {number} is not JSON: {}", json_problem(&e)));
        }
    };
    let unknown_fields = object.keys().filter(|k| !FIELDS.contains(&k.as_str())).cloned().collect();
    let fallback_id = number.to_string();
    let (id, request) = match object.get("id") {
        Some(Value::String(id)) => {
            let fields = Fields { object: &object, vocab_size };
            (id.clone(), fields.request(id, defaults, tokenizer))
        }
        Some(other) => (fallback_id, Err(wrong("id", other, "a string"))),
        None => (fallback_id, Err(RequestError::InvalidLine(format!("line {number} has no id")))),
    };
    InputLine { id, request, unknown_fields }
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

/// The fields of a line. A reader gives `None` for a field that is not there.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    vocab_size: usize,
}

impl Fields<'_> {
    fn request(
        &self,
        id: &str,
        defaults: &SamplingParams,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Request, RequestError> {
        let (text, ids) = (self.text("prompt")?, self.token_ids("prompt_token_ids")?);
        let prompt_token_ids = match (text, ids) {
            (Some(text), None) => encode(&text, tokenizer)?,
            (None, Some(ids)) => ids,
            (None, None) => return Err(invalid("neither prompt nor prompt_token_ids is given")),
            (Some(_), Some(_)) => return Err(invalid("both prompt and prompt_token_ids are given; one is needed")),
        };
        Ok(Request { id: id.to_owned(), prompt_token_ids, params: self.params(defaults)? })
    }

    fn params(&self, defaults: &SamplingParams) -> Result<SamplingParams, RequestError> {
        let d = defaults.clone();
        Ok(SamplingParams {
            max_tokens: self.size("max_tokens")?.or(d.max_tokens),
            min_tokens: self.size("min_tokens")?.unwrap_or(d.min_tokens),
            n: self.size("n")?.unwrap_or(d.n),
            temperature: self.number("temperature")?.unwrap_or(d.temperature),
            top_k: self.top_k()?.unwrap_or(d.top_k),
            top_p: self.number("top_p")?.unwrap_or(d.top_p),
            min_p: self.number("min_p")?.unwrap_or(d.min_p),
            repetition_penalty: self.number("repetition_penalty")?.unwrap_or(d.repetition_penalty),
            frequency_penalty: self.number("frequency_penalty")?.unwrap_or(d.frequency_penalty),
            presence_penalty: self.number("presence_penalty")?.unwrap_or(d.presence_penalty),
            logit_bias: match self.get("logit_bias") {
                Some(value) => self.logit_bias(value)?,
                None => d.logit_bias,
            },
            allowed_token_ids: self.token_ids("allowed_token_ids")?.or(d.allowed_token_ids),
            banned_token_ids: self.token_ids("banned_token_ids")?.unwrap_or(d.banned_token_ids),
            seed: self.seed()?.or(d.seed),
            stop: self.texts("stop")?.unwrap_or(d.stop),
            stop_token_ids: self.token_ids("stop_token_ids")?.unwrap_or(d.stop_token_ids),
            include_stop_str_in_output: self
                .switch("include_stop_str_in_output")?
                .unwrap_or(d.include_stop_str_in_output),
            ignore_eos: self.switch("ignore_eos")?.unwrap_or(d.ignore_eos),
            skip_special_tokens: self.switch("skip_special_tokens")?.unwrap_or(d.skip_special_tokens),
            golden_token_ids: self.token_ids("golden_token_ids")?.unwrap_or(d.golden_token_ids),
            logprobs: self.size("logprobs")?.or(d.logprobs),
            prompt_logprobs: self.size("prompt_logprobs")?.or(d.prompt_logprobs),
            logits: self.size("logits")?.or(d.logits),
            priority: self.priority()?.unwrap_or(d.priority),
            cache_salt: self.text("cache_salt")?.unwrap_or(d.cache_salt),
        })
    }

    /// A field that is null is not given, as clients of other engines write it.
    fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        name: &'static str,
        wanted: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, RequestError> {
        self.get(name).map(|value| read(value).ok_or_else(|| wrong(name, value, wanted))).transpose()
    }

    fn size(&self, name: &'static str) -> Result<Option<usize>, RequestError> {
        self.read(name, "a whole number of at least 0", |value| {
            Some(usize::try_from(value.as_u64()?).unwrap_or(usize::MAX))
        })
    }

    /// Elsewhere -1 also says that there is no limit.
    fn top_k(&self) -> Result<Option<usize>, RequestError> {
        self.read("top_k", "a whole number of at least 0, or -1 for all tokens", |value| match value.as_i64() {
            Some(-1) => Some(0),
            _ => Some(usize::try_from(value.as_u64()?).unwrap_or(usize::MAX)),
        })
    }

    fn number(&self, name: &'static str) -> Result<Option<f32>, RequestError> {
        self.read(name, "a number", |value| Some(value.as_f64()? as f32))
    }

    fn switch(&self, name: &'static str) -> Result<Option<bool>, RequestError> {
        self.read(name, "true or false", Value::as_bool)
    }

    fn text(&self, name: &'static str) -> Result<Option<String>, RequestError> {
        self.read(name, "a string", |value| Some(value.as_str()?.to_owned()))
    }

    /// One text, or a list of them.
    fn texts(&self, name: &'static str) -> Result<Option<Vec<String>>, RequestError> {
        self.read(name, "a string or a list of strings", |value| match value {
            Value::Array(list) => list.iter().map(|item| Some(item.as_str()?.to_owned())).collect(),
            other => Some(vec![other.as_str()?.to_owned()]),
        })
    }

    /// The seed, which has two names.
    fn seed(&self) -> Result<Option<u64>, RequestError> {
        let seed = |name| self.read(name, "a whole number below 2^64", Value::as_u64);
        match (seed("seed")?, seed("seq_seed")?) {
            (Some(a), Some(b)) if a != b => {
                Err(RequestError::InvalidLine(format!("seed is {a} and seq_seed is {b}; they are the same parameter")))
            }
            (a, b) => Ok(a.or(b)),
        }
    }

    fn priority(&self) -> Result<Option<i32>, RequestError> {
        self.read("priority", "a whole number from -2147483648 to 2147483647", |value| {
            i32::try_from(value.as_i64()?).ok()
        })
    }

    fn token_ids(&self, name: &'static str) -> Result<Option<Vec<u32>>, RequestError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| wrong(name, value, "a list of token ids"))?;
        let ids = list.iter().enumerate().map(|(index, item)| match item.as_i64() {
            Some(id) => self.token_id(name, index, id),
            None => Err(RequestError::InvalidLine(format!(
                "{name}[{index}] is {}, but must be a token id below {}",
                shown(item),
                self.vocab_size
            ))),
        });
        ids.collect::<Result<_, _>>().map(Some)
    }

    /// An object whose names are token ids.
    fn logit_bias(&self, value: &Value) -> Result<std::collections::BTreeMap<u32, f32>, RequestError> {
        let object =
            value.as_object().ok_or_else(|| wrong("logit_bias", value, "an object of token ids and numbers"))?;
        let entries = object.iter().enumerate().map(|(index, (name, bias))| {
            let id = name.parse::<i64>().map_err(|_| {
                RequestError::InvalidLine(format!("logit_bias has the name {name:?}, but names must be token ids"))
            })?;
            let bias = bias.as_f64().ok_or_else(|| wrong("logit_bias", bias, "a number for every token"))?;
            Ok((self.token_id("logit_bias", index, id)?, bias as f32))
        });
        entries.collect()
    }

    fn token_id(&self, what: &'static str, index: usize, id: i64) -> Result<u32, RequestError> {
        let vocab_size = self.vocab_size;
        let valid = u32::try_from(id).ok().filter(|id| (*id as usize) < vocab_size);
        valid.ok_or(RequestError::TokenOutOfRange { what, index, id, vocab_size })
    }
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

fn invalid(problem: &str) -> RequestError {
    RequestError::InvalidLine(problem.to_owned())
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
