//! The order in which the engine tells things.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use deepinfer_engine::telemetry::{Observation, StepObserver, StepPhase};
use deepinfer_engine::{EngineConfig, RequestId};

use crate::runs::{COMPLETIONS, OUTPUT_TOKENS, engine, request, requests, small};

/// What was told, without what is borrowed.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    Submitted(RequestId, usize),
    Refused(String),
    Phase(StepPhase, u64),
    Scheduled(u64, usize),
    /// Step, requests, output tokens.
    Completed(u64, usize, usize),
    Ended(RequestId, usize),
    Finished(RequestId, String),
    TurnEnded,
}

#[derive(Clone, Default)]
struct Listener(Rc<RefCell<Vec<Told>>>);

impl StepObserver for Listener {
    fn observe(&mut self, what: &Observation<'_>) {
        self.0.borrow_mut().push(match *what {
            Observation::Submitted { id, request, limit, .. } => {
                assert_eq!(Some(limit), request.params.max_tokens);
                Told::Submitted(id, request.params.n)
            }
            Observation::Refused { error } => Told::Refused(error.code().to_owned()),
            Observation::Phase { phase, step } => Told::Phase(phase, step.0),
            Observation::Scheduled { plan, stats } => {
                assert_eq!(stats.steps, plan.step().0);
                Told::Scheduled(plan.step().0, plan.requests().len())
            }
            Observation::Completed { plan, outcomes } => {
                let tokens = outcomes.iter().map(|outcome| outcome.tokens.len()).sum();
                Told::Completed(plan.step().0, outcomes.len(), tokens)
            }
            Observation::Ended { id, completion, .. } => Told::Ended(id, completion.steps.len()),
            Observation::Finished { id, output } => Told::Finished(id, output.id.clone()),
            Observation::TurnEnded { .. } => Told::TurnEnded,
            ref other => panic!("nothing of this kind happens here: {other:?}"),
        });
    }
}

fn told_by_a_run(async_scheduling: bool) -> Vec<Told> {
    let mut engine = engine(EngineConfig { async_scheduling, ..small() });
    let listener = Listener::default();
    engine.add_observer(Box::new(listener.clone()));
    engine.run_all(requests());
    drop(engine);
    listener.0.take()
}

/// The phases of a turn in which a step was planned and one was waited for.
fn whole_turn(turns: &[Vec<StepPhase>]) -> &Vec<StepPhase> {
    turns.iter().max_by_key(|turn| turn.len()).expect("a turn")
}

#[test]
fn a_turn_goes_through_its_phases_in_order() {
    use StepPhase::{Launch, Sample, Schedule, Update, Wait};
    for (async_scheduling, order) in
        [(true, [Schedule, Launch, Wait, Update, Sample]), (false, [Schedule, Launch, Sample, Wait, Update])]
    {
        let told = told_by_a_run(async_scheduling);
        let turns: Vec<Vec<StepPhase>> = told
            .split(|told| *told == Told::TurnEnded)
            .map(|turn| turn.iter().filter_map(|t| if let Told::Phase(p, _) = t { Some(*p) } else { None }).collect())
            .collect();
        assert_eq!(whole_turn(&turns), &order, "async {async_scheduling}");
        for turn in turns.iter().filter(|turn| !turn.is_empty()) {
            let mut left = order.iter();
            assert!(turn.iter().all(|phase| left.any(|other| other == phase)), "{turn:?} is not in order");
            assert_eq!(turn[0], Schedule);
        }
        assert_eq!(told.last(), Some(&Told::TurnEnded));
    }
}

#[test]
fn each_step_is_planned_queued_drawn_waited_for_and_taken_in_once() {
    for async_scheduling in [true, false] {
        let mut steps: BTreeMap<u64, Vec<Told>> = BTreeMap::new();
        for told in told_by_a_run(async_scheduling) {
            match told {
                Told::Phase(phase, step) => {
                    let of_step = steps.entry(step).or_default();
                    // A step that cannot be planned yet is tried again.
                    if phase != StepPhase::Schedule || of_step.is_empty() {
                        of_step.push(told);
                    }
                }
                Told::Scheduled(step, _) | Told::Completed(step, ..) => steps.entry(step).or_default().push(told),
                _ => {}
            }
        }
        // The last one was only tried.
        if let Some(entry) = steps.last_entry()
            && entry.get().len() == 1
        {
            entry.remove();
        }
        assert!(steps.len() > 12, "{} steps", steps.len());
        let mut tokens = 0;
        for (step, told) in steps {
            let [
                Told::Phase(StepPhase::Schedule, _),
                Told::Scheduled(_, planned),
                Told::Phase(StepPhase::Launch, _),
                Told::Phase(StepPhase::Sample, _),
                Told::Phase(StepPhase::Wait, _),
                Told::Phase(StepPhase::Update, _),
                Told::Completed(_, completed, new),
            ] = told[..]
            else {
                panic!("step {step}: {told:?}")
            };
            assert_eq!(planned, completed);
            tokens += new;
        }
        assert_eq!(tokens, OUTPUT_TOKENS, "async {async_scheduling}");
    }
}

#[test]
fn each_completion_and_each_request_ends_once() {
    let told = told_by_a_run(true);
    let mut expected = BTreeSet::new();
    let (mut ended, mut finished, mut tokens) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut names = BTreeSet::new();
    for told in &told {
        match told {
            Told::Submitted(id, n) => expected.extend((0..*n).map(|index| id.completion(index))),
            Told::Ended(id, count) => {
                assert!(ended.insert(*id), "{id:?} ends twice");
                tokens += count;
            }
            Told::Finished(id, name) => {
                assert!(finished.insert(*id), "{id:?} finishes twice");
                names.insert(name.clone());
            }
            _ => {}
        }
    }
    assert_eq!(ended, expected);
    assert_eq!((ended.len(), tokens), (COMPLETIONS, OUTPUT_TOKENS));
    assert_eq!(names, requests().into_iter().map(|request| request.id).collect());
}

#[test]
fn refusals_and_aborts_are_told() {
    let mut engine = engine(small());
    let listener = Listener::default();
    engine.add_observer(Box::new(listener.clone()));
    engine.submit(request("none", 0, 1)).expect_err("an empty prompt");
    let id = engine.submit(request("a", 3, 5)).expect("a valid request");
    assert!(engine.abort(id));
    let expected = [
        Told::Refused("empty_prompt".to_owned()),
        Told::Submitted(id, 1),
        Told::Ended(id, 0),
        Told::Finished(id, "a".to_owned()),
    ];
    assert_eq!(*listener.0.borrow(), expected);
}
