//! The layer over one backend.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deepinfer_oracle::bundle::EXTENSION;
use deepinfer_oracle::{Bundle, Call as HostCall, Found, Outputs};
use deepinfer_plugin_api::sdk::{Containment, Fault, HostEvent, HostQueue, LogLevel, log};

use crate::finding::{Culprit, Finding, Rule};
use crate::handles::{Handle, Kind};
use crate::next::Next;
use crate::options::Options;
use crate::reporter::Reporter;
use crate::sample::Sampler;
use crate::tables::Tables;
use crate::world::World;

/// Name of the layer.
pub(crate) const NAME: &str = "validate";

/// Calls for which `supports` said yes that are remembered.
const MOST_PROMISES: usize = 4096;

/// The layer over one backend. Never freed: its functions may be called as long as the process lives.
pub(crate) struct Layer {
    pub(crate) next: Next,
    pub(crate) tables: Tables,
    pub(crate) options: Options,
    pub(crate) reporter: Reporter,
    pub(crate) containment: Containment,
    /// Serialises the use of the layer's own streams.
    pub(crate) own_streams: Mutex<()>,
    world: Mutex<World>,
    sampler: Mutex<Sampler>,
    /// Calls of ops so far.
    calls: AtomicU64,
    /// Implementations and signatures for which `supports` said yes.
    promises: Mutex<HashSet<(usize, Vec<u64>)>>,
    recorded: Mutex<HashMap<u32, u64>>,
    /// Queues of streams and points of events, where completions are delayed.
    queues: Mutex<BTreeMap<Handle, Arc<HostQueue>>>,
    points: Mutex<BTreeMap<Handle, Arc<HostEvent>>>,
    has_warned_of_capture: AtomicBool,
    has_noted_loss: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Layer {
    /// A layer with these options over a backend.
    ///
    /// # Errors
    /// The report cannot be created; a pattern of the options fits no op of the backend.
    pub(crate) fn new(next: Next, options: Options) -> Result<Self, Fault> {
        let reporter = Reporter::new(&options, next.origin())?;
        let sampler = Mutex::new(Sampler::new(options.shadow.unwrap_or(1), options.seed));
        let tables = Tables::of(&next, options.jitter.is_some());
        for flaw in next.take_flaws() {
            reporter.mention(&Finding::new(Rule::Struct, Culprit::Backend, "table", flaw));
        }
        let names: Vec<&str> = next.entries.iter().map(|entry| entry.name).collect();
        if let Some(pattern) = options.ops.fitting_none(&names) {
            return Err(Fault::invalid(format!(
                "ops has the pattern {pattern:?}, which fits no op of the backend; give names of its ops"
            )));
        }
        Ok(Self {
            next,
            tables,
            options,
            reporter,
            containment: Containment::new(NAME),
            own_streams: Mutex::default(),
            world: Mutex::default(),
            sampler,
            calls: AtomicU64::new(0),
            promises: Mutex::default(),
            recorded: Mutex::default(),
            queues: Mutex::default(),
            points: Mutex::default(),
            has_warned_of_capture: AtomicBool::new(false),
            has_noted_loss: AtomicBool::new(false),
        })
    }

    /// What exists. Not to be held while the backend is called.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// The object of an address and its device.
    ///
    /// # Errors
    /// There is none, which is a finding about the caller.
    pub(crate) fn find(&self, what: &str, kind: Kind, address: usize) -> Result<(Handle, Handle), Fault> {
        let found = self.world().find(kind, address);
        found.map_err(|lost| {
            self.reporter.refuse(&Finding::new(Rule::Lifetime, Culprit::Core, what, format!("it was given {lost}")))
        })
    }

    /// Two objects must belong to the same device.
    ///
    /// # Errors
    /// They do not, and findings are errors.
    pub(crate) fn same_device(&self, what: &str, a: (Handle, Handle), b: (Handle, Handle)) -> Result<(), Fault> {
        if a.1 == b.1 {
            return Ok(());
        }
        let problem = format!("{} is of {}, but {} of {}", a.0, a.1, b.0, b.1);
        self.reporter.report(&Finding::new(Rule::Lifetime, Culprit::Core, what, problem))
    }

    /// The next number of an op call, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether a call is to be shadowed.
    pub(crate) fn samples(&self, op: u32, name: &str, implementation: usize, class: Vec<u64>) -> bool {
        self.options.shadow.is_some()
            && self.options.ops.matches(name)
            && lock(&self.sampler).takes(op, implementation, class)
    }

    /// The number among the recorded calls of an op, if this one is to be recorded.
    pub(crate) fn records(&self, op: u32, name: &str) -> Option<u64> {
        if self.options.record.is_none() || !self.options.ops.matches(name) {
            return None;
        }
        let mut recorded = lock(&self.recorded);
        let count = recorded.entry(op).or_default();
        *count += 1;
        (*count <= self.options.first).then_some(*count)
    }

    /// `supports` said yes.
    pub(crate) fn promised(&self, implementation: usize, signature: Vec<u64>) {
        let mut promises = lock(&self.promises);
        if promises.len() >= MOST_PROMISES {
            promises.clear();
        }
        promises.insert((implementation, signature));
    }

    /// Whether it did.
    pub(crate) fn has_promised(&self, implementation: usize, signature: Vec<u64>) -> bool {
        lock(&self.promises).contains(&(implementation, signature))
    }

    /// Says once that the backend is lost, which its caller has been told: what is freed afterwards would all say the same.
    pub(crate) fn note_loss(&self, text: impl FnOnce() -> String) {
        if !self.has_noted_loss.swap(true, Ordering::Relaxed) {
            log(LogLevel::Info, text());
        }
    }

    /// Writes a bundle; gives its path. A file that cannot be written is a line in the log.
    pub(crate) fn bundle(
        &self,
        path: PathBuf,
        call: &HostCall,
        found: Option<&Outputs>,
        problem: Option<String>,
    ) -> Option<PathBuf> {
        let backend = self.reporter.backend().to_owned();
        let found = found.map(|outputs| Found { backend, outputs: outputs.clone() });
        let bundle = Bundle { seed: Some(self.options.seed), problem, found, ..Bundle::new(call.clone()) };
        let outcome = bundle.to_bytes().map_err(|e| e.to_string()).and_then(|bytes| {
            path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|e| e.to_string())?;
            std::fs::write(&path, bytes).map_err(|e| e.to_string())
        });
        match outcome {
            Ok(()) => Some(path),
            Err(e) => {
                log(LogLevel::Error, format!("the bundle {} could not be written: {e}", path.display()));
                None
            }
        }
    }

    /// Where the bundle of a finding goes, if bundles are kept.
    pub(crate) fn finding_path(&self, op: &str, number: u64) -> Option<PathBuf> {
        let name = format!("validate-{}-{op}-{number}.{EXTENSION}", std::process::id());
        self.options.bundles.as_ref().map(|folder| folder.join(name))
    }

    // ---- delayed completions ----

    /// Gives a stream a queue.
    pub(crate) fn add_queue(&self, stream: Handle, queue: HostQueue) {
        lock(&self.queues).insert(stream, Arc::new(queue));
    }

    /// The queue of a stream, where completions are delayed.
    pub(crate) fn queue(&self, stream: Handle) -> Option<Arc<HostQueue>> {
        self.options.jitter?;
        lock(&self.queues).get(&stream).cloned()
    }

    /// Takes the queue of a stream away; dropping the last reference finishes its work.
    pub(crate) fn remove_queue(&self, stream: Handle) -> Option<Arc<HostQueue>> {
        lock(&self.queues).remove(&stream)
    }

    /// The point of an event, where completions are delayed.
    pub(crate) fn point(&self, event: Handle) -> Option<Arc<HostEvent>> {
        self.options.jitter?;
        Some(lock(&self.points).entry(event).or_default().clone())
    }

    /// An event is gone.
    pub(crate) fn remove_point(&self, event: Handle) {
        lock(&self.points).remove(&event);
    }

    /// Says once that captured work is not looked at.
    pub(crate) fn warn_of_capture(&self) {
        let looks = self.options.shadow.is_some() || self.options.poison || self.options.record.is_some();
        if looks && !self.has_warned_of_capture.swap(true, Ordering::Relaxed) {
            log(LogLevel::Warn, "captured work is checked, but not poisoned, shadowed or recorded");
        }
    }
}
