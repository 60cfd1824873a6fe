//! Requests to their ends, for callers who wait.

use std::collections::HashMap;

use crate::engine::{Engine, Event};
use crate::error::{EngineError, RequestError};
use crate::jsonl;
use crate::output::{RequestOutput, TokenEvent};
use crate::params::SamplingParams;
use crate::request::Request;

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Text, with the begin token put in front unless it begins with it. Needs a tokenizer.
    Text(String),
    /// Tokens, as they are.
    TokenIds(Vec<u32>),
}

impl Engine {
    /// Continues inputs and returns one output for each, in their order and named by their numbers. There is one value of
    /// parameters for all of them, or one for each. An input that is refused has an output that says so, and the others run.
    ///
    /// # Errors
    /// [`RequestError::ParamsMismatch`], before anything runs.
    pub fn generate(
        &mut self,
        inputs: &[Input],
        params: &[SamplingParams],
    ) -> Result<Vec<RequestOutput>, RequestError> {
        if params.len() != 1 && params.len() != inputs.len() {
            return Err(RequestError::ParamsMismatch { inputs: inputs.len(), params: params.len() });
        }
        let requests: Vec<(String, Result<Request, RequestError>)> = inputs
            .iter()
            .zip(params.iter().cycle())
            .enumerate()
            .map(|(number, (input, params))| {
                let prompt = match input {
                    Input::TokenIds(ids) => Ok(ids.clone()),
                    Input::Text(text) => jsonl::encode(text, self.tokenizer().map(AsRef::as_ref)),
                };
                let id = number.to_string();
                let request =
                    prompt.map(|ids| Request { id: id.clone(), prompt_token_ids: ids, params: params.clone() });
                (id, request)
            })
            .collect();
        Ok(self.run_or_refuse(requests))
    }

    /// Runs one request to its end, beside those that are there. `on_token` sees every token as it comes, and may return
    /// `false` to abort the request.
    ///
    /// # Errors
    /// As [`Engine::submit`]. What goes wrong later is in the output.
    pub fn run(
        &mut self,
        request: Request,
        on_token: &mut dyn FnMut(&TokenEvent) -> bool,
    ) -> Result<RequestOutput, EngineError> {
        let id = self.submit(request)?;
        let mut others = Vec::new();
        loop {
            self.step();
            let (mut go_on, mut finished) = (true, None);
            for (of, event) in self.events.drain(..) {
                match event {
                    Event::Token(token) if of == id => go_on &= on_token(&token),
                    Event::Finished(output) if of == id => finished = Some(*output),
                    other => others.push((of, other)),
                }
            }
            if let Some(output) = finished {
                self.events = others;
                return Ok(output);
            }
            if !go_on {
                self.abort(id);
            }
        }
    }

    /// Runs requests together and returns their outputs in the order of the requests. A request that is refused has an output
    /// that says so, and the others run.
    pub fn run_all(&mut self, requests: Vec<Request>) -> Vec<RequestOutput> {
        self.run_or_refuse(requests.into_iter().map(|request| (request.id.clone(), Ok(request))))
    }

    /// As [`Engine::run_all`], for requests with their names; some were refused already.
    fn run_or_refuse(
        &mut self,
        requests: impl IntoIterator<Item = (String, Result<Request, RequestError>)>,
    ) -> Vec<RequestOutput> {
        let mut outputs: Vec<Option<RequestOutput>> = Vec::new();
        let mut places = HashMap::new();
        for (place, (name, request)) in requests.into_iter().enumerate() {
            let prompt = request.as_ref().map_or_else(|_| Vec::new(), |request| request.prompt_token_ids.clone());
            outputs.push(match request.map_err(EngineError::from).and_then(|request| self.submit(request)) {
                Ok(id) => {
                    places.insert(id, place);
                    None
                }
                Err(error) => Some(RequestOutput::refused(name, prompt, error)),
            });
        }
        let mut others = Vec::new();
        let mut missing = places.len();
        while missing > 0 {
            self.step();
            for (id, event) in self.events.drain(..) {
                match (places.get(&id), event) {
                    (Some(&place), Event::Finished(output)) => {
                        outputs[place] = Some(*output);
                        missing -= 1;
                    }
                    (Some(_), Event::Token(_)) => {}
                    (None, event) => others.push((id, event)),
                }
            }
        }
        self.events = others;
        outputs.into_iter().flatten().collect()
    }
}
