//! The backend: one device, the host's processor.

use std::error::Error;
use std::ffi::c_void;
use std::fs;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use deepinfer_plugin_api::abi::{
    DI_CODE_FLOAT, DI_CODE_INT, DI_CODE_UINT, DI_COPY_D2D, DI_DEVICE_CPU, DI_LF_PEER_ACCESS, DI_LF_PEER_COPY,
    DI_LINK_SELF, DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED,
};
use deepinfer_plugin_api::sdk::{
    Backend, Delays, DeviceInfo, Extras, Fault, HostEvent, HostMemory, HostQueue, LinkInfo, Rows2d, SpaceInfo,
};

use crate::stream::Stream;

/// Most threads; a machine with more processors uses as many of them.
const MOST_THREADS: usize = 1024;

/// The host's processor as a device.
///
/// - `threads=N`: the number of threads that kernels use. Without it the variable `RAYON_NUM_THREADS` says, and without
///   that there is one per logical processor, at most 1024.
/// - `async=SEED`: work of a stream runs later, with random pauses that the seed decides; see [`Stream`]. Shapes and
///   formats are still checked at once, wrong values are reported by the next wait. Without it work has been done when a
///   call returns.
pub struct CpuReference {
    /// Of the asynchronous mode.
    seed: Option<u64>,
    /// Streams so far: each has pauses of its own.
    streams: AtomicU64,
}

/// The opened device.
pub struct Cpu;

impl Backend for CpuReference {
    const NAME: &'static str = "cpu";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const EXTRAS: Extras<Self> = Extras {
        device_link: Some(Self::link),
        event_elapsed: Some(Self::elapsed),
        copy_2d: Some(Self::copy_rows),
        ..Extras::NONE
    };
    type Device = Cpu;
    type Buffer = HostMemory;
    type Stream = Stream;
    type Event = HostEvent;

    fn start(options: &str) -> Result<Self, Fault> {
        let Options { threads, seed } = Options::parse(options)?;
        match threads {
            Some(threads) => start_threads(threads, true)?,
            None => {
                let variable = std::env::var("RAYON_NUM_THREADS").ok();
                let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
                start_threads(default_threads(variable.as_deref(), processors), false)?;
            }
        }
        Ok(CpuReference { seed, streams: AtomicU64::new(0) })
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        // 0: the operating system does not say.
        let total_bytes = read("/proc/meminfo").and_then(|text| memory_bytes(&text, "MemTotal:")).unwrap_or(0);
        // One memory under two names.
        let space = |kind| SpaceInfo { kind, min_align: 1, granularity: 1, total_bytes };
        Ok(vec![DeviceInfo {
            device_type: DI_DEVICE_CPU,
            name: read("/proc/cpuinfo").and_then(|text| model_name(&text)).unwrap_or_else(|| "CPU".to_owned()),
            arch: std::env::consts::ARCH.to_owned(),
            total_bytes,
            compute_units: rayon::current_num_threads() as u32,
            dtype_mask: 1 << DI_CODE_INT | 1 << DI_CODE_UINT | 1 << DI_CODE_FLOAT,
            spaces: vec![space(DI_SPACE_DEVICE), space(DI_SPACE_HOST_PINNED)],
            ..DeviceInfo::default()
        }])
    }

    fn open_device(&self, index: u32) -> Result<Cpu, Fault> {
        match index {
            0 => Ok(Cpu),
            _ => Err(Fault::invalid(format!("device {index} does not exist; the processor is device 0"))),
        }
    }

    fn memory(&self, _: &Cpu, space: u32) -> Result<(u64, u64), Fault> {
        check_space(space)?;
        let text = read("/proc/meminfo").unwrap_or_default();
        match (memory_bytes(&text, "MemAvailable:"), memory_bytes(&text, "MemTotal:")) {
            (Some(free), Some(total)) => Ok((free, total)),
            _ => Err(Fault::unsupported("this system does not say in /proc/meminfo how much memory is free")),
        }
    }

    fn alloc(&self, _: &Cpu, space: u32, bytes: u64, align: u64) -> Result<(HostMemory, *mut c_void), Fault> {
        check_space(space)?;
        let memory = HostMemory::new(bytes, align)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn create_stream(&self, _: &Cpu) -> Result<Stream, Fault> {
        let Some(seed) = self.seed else { return Ok(Stream::immediate()) };
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let name = format!("deepinfer-cpu-q{number}");
        // The generator of the pauses mixes well: neighbouring seeds have nothing in common.
        HostQueue::start(&name, Some(Delays::seeded(seed.wrapping_add(number)))).map(Stream::queued)
    }

    fn sync_stream(&self, stream: &Stream) -> Result<(), Fault> {
        stream.sync()
    }

    fn create_event(&self, _: &Cpu) -> Result<HostEvent, Fault> {
        Ok(HostEvent::new())
    }

    fn record_event(&self, event: &HostEvent, stream: &Stream) -> Result<(), Fault> {
        stream.record(event);
        Ok(())
    }

    fn wait_event(&self, stream: &Stream, event: &HostEvent) -> Result<(), Fault> {
        stream.wait(event);
        Ok(())
    }

    fn query_event(&self, event: &HostEvent) -> Result<bool, Fault> {
        event.query()
    }

    fn sync_event(&self, event: &HostEvent) -> Result<(), Fault> {
        event.sync()
    }

    #[allow(unsafe_code)]
    unsafe fn copy(
        &self,
        stream: &Stream,
        dst: *mut c_void,
        src: *const c_void,
        bytes: u64,
        kind: u32,
    ) -> Result<(), Fault> {
        check_copy_kind(kind)?;
        // SAFETY: the same contract.
        unsafe { stream.copy(dst, src, bytes) };
        Ok(())
    }

    #[allow(unsafe_code)]
    unsafe fn fill(
        &self,
        stream: &Stream,
        dst: *mut c_void,
        pattern: u32,
        pattern_bytes: u32,
        count: u64,
    ) -> Result<(), Fault> {
        // SAFETY: the same contract.
        unsafe { stream.fill(dst, pattern, pattern_bytes, count) };
        Ok(())
    }

    fn queue<'a>(&self, stream: &'a Stream) -> Option<&'a HostQueue> {
        stream.queue()
    }
}

impl CpuReference {
    fn link(&self, a: u32, b: u32) -> Result<LinkInfo, Fault> {
        if (a, b) != (0, 0) {
            let absent = a.max(b);
            return Err(Fault::invalid(format!("device {absent} does not exist; the processor is device 0")));
        }
        let flags = DI_LF_PEER_COPY | DI_LF_PEER_ACCESS;
        Ok(LinkInfo { class: DI_LINK_SELF, flags, hops: 0, bytes_per_s: 0, latency_ns: 0 })
    }

    fn elapsed(&self, from: &HostEvent, to: &HostEvent) -> Result<f32, Fault> {
        Ok(HostEvent::elapsed(from, to)?.as_secs_f32() * 1e3)
    }

    /// # Safety
    /// As [`deepinfer_plugin_api::sdk::Copy2d`] says.
    #[allow(unsafe_code)]
    unsafe fn copy_rows(&self, stream: &Stream, rows: Rows2d) -> Result<(), Fault> {
        check_copy_kind(rows.kind)?;
        // SAFETY: the same contract.
        unsafe { stream.copy_2d(rows) };
        Ok(())
    }
}

/// What the selection may say after `cpu?`.
#[derive(Debug, Default, PartialEq)]
struct Options {
    threads: Option<usize>,
    seed: Option<u64>,
}

impl Options {
    fn parse(text: &str) -> Result<Self, Fault> {
        let mut options = Self::default();
        for option in text.split('&').filter(|o| !o.is_empty()) {
            match option.split_once('=') {
                Some(("threads", value)) => match value.parse() {
                    Ok(count @ 1..=MOST_THREADS) => options.threads = Some(count),
                    _ => {
                        return Err(Fault::invalid(format!(
                            "cpu: threads is {value:?}, but must be a number from 1 to {MOST_THREADS}"
                        )));
                    }
                },
                Some(("async", value)) => match value.parse() {
                    Ok(seed) => options.seed = Some(seed),
                    Err(_) => {
                        let problem = "but must be a number from 0 to 2^64-1, the seed of the pauses";
                        return Err(Fault::invalid(format!("cpu: async is {value:?}, {problem}")));
                    }
                },
                _ => {
                    let problem = "is unknown; there are threads=N and async=SEED";
                    return Err(Fault::invalid(format!("cpu: option {option:?} {problem}")));
                }
            }
        }
        Ok(options)
    }
}

/// Threads that nobody asked for by the option. The variable is the thread pool's own, which would take any number, and
/// takes what is none for absent.
fn default_threads(variable: Option<&str>, processors: usize) -> usize {
    let asked = variable.and_then(|text| text.parse().ok()).filter(|&threads: &usize| threads > 0);
    asked.unwrap_or(processors).min(MOST_THREADS)
}

/// Starts the thread pool that all kernels of this library share; one that already runs must have as many threads if they
/// `must_match`.
fn start_threads(threads: usize, must_match: bool) -> Result<(), Fault> {
    let built = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("deepinfer-cpu-{index}"))
        .build_global();
    let Err(error) = built else { return Ok(()) };
    if let Some(refusal) = refused_threads(threads, &error) {
        return Err(refusal);
    }
    let running = rayon::current_num_threads();
    if must_match && running != threads {
        return Err(Fault::invalid(format!(
            "cpu: threads={threads} was asked for, but the thread pool of this process already runs {running}"
        )));
    }
    Ok(())
}

/// The system's refusal to start threads, if that is what the error is. Then there is no pool, nor will there be one: it
/// must not be asked how many threads it has.
fn refused_threads(threads: usize, error: &rayon::ThreadPoolBuildError) -> Option<Fault> {
    let reason = error.source()?;
    Some(Fault::invalid(format!("cpu: the system does not start {threads} threads: {reason}; set threads=N to fewer")))
}

fn check_space(space: u32) -> Result<(), Fault> {
    if space > DI_SPACE_HOST_PINNED {
        return Err(Fault::invalid(format!(
            "memory space {space} is unknown; 0 to {DI_SPACE_HOST_PINNED} are possible"
        )));
    }
    Ok(())
}

fn check_copy_kind(kind: u32) -> Result<(), Fault> {
    if kind > DI_COPY_D2D {
        return Err(Fault::invalid(format!("copy kind {kind} is unknown; 0 to {DI_COPY_D2D} are possible")));
    }
    Ok(())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The processor's name as Linux reports it.
fn model_name(cpuinfo: &str) -> Option<String> {
    let (_, name) = cpuinfo.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(name.trim().to_owned())
}

/// A line of `/proc/meminfo`, whose unit is KiB.
fn memory_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let parsed = |text| Options::parse(text).unwrap();
        assert_eq!(parsed(""), Options::default());
        assert_eq!(parsed("threads=3"), Options { threads: Some(3), seed: None });
        assert_eq!(parsed("async=7&threads=2"), Options { threads: Some(2), seed: Some(7) });
        let refusals = [
            ("threads=0", "cpu: threads is \"0\", but must be a number from 1 to 1024"),
            ("threads=many", "cpu: threads is \"many\", but must be a number from 1 to 1024"),
            ("async=", "cpu: async is \"\", but must be a number from 0 to 2^64-1, the seed of the pauses"),
            ("async=-1", "cpu: async is \"-1\", but must be a number from 0 to 2^64-1, the seed of the pauses"),
            ("fast", "cpu: option \"fast\" is unknown; there are threads=N and async=SEED"),
            ("threads=2&x=1", "cpu: option \"x=1\" is unknown; there are threads=N and async=SEED"),
        ];
        for (options, sentence) in refusals {
            assert_eq!(Options::parse(options).unwrap_err().message, sentence);
        }
    }

    #[test]
    fn threads_that_nobody_asked_for_are_bounded() {
        assert_eq!(default_threads(None, 6), 6);
        assert_eq!(default_threads(None, 5000), 1024);
        assert_eq!(default_threads(Some("3"), 6), 3);
        for (variable, threads) in [("100000", 1024), ("1024", 1024), ("0", 6), ("-1", 6), ("", 6), ("many", 6)] {
            assert_eq!(default_threads(Some(variable), 6), threads, "{variable:?}");
        }
    }

    #[test]
    fn a_system_without_threads_is_a_refusal() {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(7)
            .spawn_handler(|_| Err(std::io::Error::other("no more of them")))
            .build();
        let refusal = refused_threads(7, &pool.err().unwrap()).unwrap();
        let sentence = "cpu: the system does not start 7 threads: no more of them; set threads=N to fewer";
        assert_eq!(refusal.message, sentence);
    }

    #[test]
    fn system_files_are_read_by_field() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some Processor @ 2.0GHz\nflags\t: fpu\n";
        assert_eq!(model_name(cpuinfo).as_deref(), Some("Some Processor @ 2.0GHz"));
        assert_eq!(model_name("Processor: x"), None);
        let meminfo = "MemTotal:        8000 kB\nMemFree:         100 kB\nMemAvailable:   4000 kB\n";
        assert_eq!(memory_bytes(meminfo, "MemAvailable:"), Some(4000 * 1024));
        assert_eq!(memory_bytes(meminfo, "MemTotal:"), Some(8000 * 1024));
        assert_eq!(memory_bytes("MemTotal: lots", "MemTotal:"), None);
    }

    #[test]
    fn there_is_one_device_with_two_spaces() {
        let backend = CpuReference { seed: None, streams: AtomicU64::new(0) };
        let devices = backend.devices().unwrap();
        assert_eq!((devices.len(), devices[0].device_type), (1, DI_DEVICE_CPU));
        assert!(devices[0].compute_units >= 1);
        let kinds: Vec<u32> = devices[0].spaces.iter().map(|space| space.kind).collect();
        assert_eq!(kinds, [DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED]);
        assert!(backend.open_device(1).is_err());
        let (memory, address) = backend.alloc(&Cpu, 1, 100, 256).unwrap();
        assert_eq!(address as usize % 256, 0);
        assert_eq!(memory.address(), address);
        assert!(backend.alloc(&Cpu, 2, 100, 256).is_err());
    }
}
