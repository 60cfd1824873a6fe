//! Completions of one prompt: see [`fork`](crate::fork).

use crate::fork::{ForkPoint, Stage};
use crate::plan::{CheckpointId, PageCopy, StepId};
use crate::request::RequestId;

use super::Scheduler;

impl Scheduler {
    /// Where `key` can start because another completion has run the prompt.
    pub(super) fn fork_point(&self, key: usize) -> Option<&ForkPoint> {
        match &self.families.get(&self.requests[key].family?)?.stage {
            Stage::Forked { point, .. } => Some(point),
            Stage::Prompt { .. } => None,
        }
    }

    /// Where a request's prefill has to end a chunk for the sake of other completions.
    pub(super) fn fork_position(&self, key: usize) -> Option<usize> {
        let request = &self.requests[key];
        match &self.families.get(&request.family?)?.stage {
            Stage::Prompt { first, .. } if *first == key => Some(request.ledger.prompt_len() - 1),
            _ => None,
        }
    }

    /// The other completions can start if `key` has run all of the prompt but its last token. `saved` is the checkpoint of
    /// the step that just completed; without one they run the prompt themselves.
    pub(super) fn fork_if_due(&mut self, key: usize, saved: Option<CheckpointId>) {
        let Some(position) = self.fork_position(key) else { return };
        let request = &mut self.requests[key];
        if request.ledger.computed() < position {
            return;
        }
        let id = request.family.take().expect("a fork position implies a family");
        let Some(checkpoint) = saved else {
            self.part_family(id);
            return;
        };
        let pages = request.pages[..self.config.pages_of(position)].to_vec();
        for &page in &pages {
            self.kv.pool.hold(page);
        }
        self.kv.checkpoints.hold(checkpoint);
        let (registered, chain) = (request.registered, request.chain);
        let point = ForkPoint { position, pages, checkpoint, registered, chain, last_step: request.last_step };
        let family = self.families.get_mut(&id).expect("a fork position implies a family");
        let Stage::Prompt { others, .. } = &mut family.stage else { unreachable!("it has a fork position") };
        let others = std::mem::take(others);
        family.stage = Stage::Forked { point, waiting: others.len() };
        for other in others {
            self.waiting.insert(self.requests[other].rank, other);
        }
    }

    /// `key` starts from the fork point in `step`, with `copy` as its copy of the last page.
    pub(super) fn start_from_fork(&mut self, key: usize, copy: Option<&PageCopy>, step: StepId) {
        let request = &mut self.requests[key];
        let id = request.family.take().expect("a fork point implies a family");
        let family = self.families.get_mut(&id).expect("a fork point implies a family");
        let Stage::Forked { point, .. } = &mut family.stage else { unreachable!("there is a fork point") };
        point.last_step = step;
        (request.registered, request.chain) = (point.registered, point.chain);
        request.pages.extend(copy.map(|copy| copy.to));
        self.leave_fork(id);
    }

    /// One completion has started from the fork point, or will not any more.
    fn leave_fork(&mut self, id: RequestId) {
        let family = self.families.get_mut(&id).expect("the family of a request that has not started");
        let Stage::Forked { waiting, .. } = &mut family.stage else { unreachable!("nobody waits before the fork") };
        *waiting -= 1;
        if *waiting == 0 {
            self.part_family(id);
        }
    }

    /// Gives up a fork point, the oldest one. Returns whether there was one.
    pub(super) fn drop_fork_point(&mut self) -> bool {
        let forked = self.families.iter().find(|(_, family)| matches!(family.stage, Stage::Forked { .. }));
        let Some((&id, _)) = forked else { return false };
        self.part_family(id);
        true
    }

    /// `key` ends. If it was running the prompt for others, the next one does.
    pub(super) fn leave_family(&mut self, key: usize) {
        let Some(id) = self.requests[key].family else { return };
        let Some(family) = self.families.get_mut(&id) else { return };
        let Stage::Prompt { first, others } = &mut family.stage else {
            self.leave_fork(id);
            return;
        };
        if *first == key {
            *first = others.remove(0);
            let next = *first;
            self.waiting.insert(self.requests[next].rank, next);
        } else {
            others.retain(|&other| other != key);
        }
        let Stage::Prompt { first, others } = &self.families[&id].stage else { unreachable!("it was just seen") };
        if others.is_empty() {
            self.requests[*first].family = None;
            self.families.remove(&id);
        }
    }

    /// From now on the completions have nothing to do with each other.
    fn part_family(&mut self, id: RequestId) {
        let family = self.families.remove(&id).expect("a family");
        match family.stage {
            Stage::Prompt { others, .. } => {
                for other in others {
                    self.waiting.insert(self.requests[other].rank, other);
                }
            }
            Stage::Forked { point, .. } => point.release(&mut self.kv),
        }
    }
}
