//! What the machine has: processors, memory, NUMA nodes, PCI accelerators and drivers, as Linux tells in `/sys` and `/proc`.
//!
//! No driver is loaded and no device is touched. What cannot be read is left out, not guessed: containers and virtual
//! machines often hide a part.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Flags of the processor on which kernels depend, of x86-64 and AArch64.
const FEATURES: [&str; 20] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimdhp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
];
/// Base classes of PCI devices that may compute: displays and processing accelerators (PCI Code and ID Assignment).
const CLASSES: [(u8, &str); 2] = [(0x03, "display"), (0x12, "accelerator")];
/// Libraries by which the drivers of accelerators are reached, with whose they are.
const LIBRARIES: [(&str, &str); 5] = [
    ("libcuda.so.1", "NVIDIA"),
    ("libascendcl.so", "Ascend"),
    ("libamdhip64.so", "AMD"),
    ("libze_loader.so.1", "Intel"),
    ("libmusa.so", "Moore Threads"),
];
/// Files in which kernel drivers tell their version, with whose they are.
const VERSIONS: [(&str, &str); 3] = [
    ("proc/driver/nvidia/version", "NVIDIA"),
    ("sys/module/amdgpu/version", "AMD"),
    ("usr/local/Ascend/driver/version.info", "Ascend"),
];

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// Processors.
    pub cpu: Cpu,
    /// Memory of the host.
    pub memory: Memory,
    /// NUMA nodes; empty when the system does not tell.
    pub numa_nodes: Vec<NumaNode>,
    /// PCI devices that may compute; `None` when the system does not tell.
    pub pci_devices: Option<Vec<PciDevice>>,
    /// Drivers of accelerators that were found, not loaded.
    pub drivers: Vec<Driver>,
}

/// Processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Model of the first, or empty.
    pub model: String,
    /// Logical processors.
    pub logical: usize,
    /// Flags on which kernels depend.
    pub features: Vec<String>,
}

/// Memory of the host, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: Option<u64>,
    /// What programs can have without swapping.
    pub available_bytes: Option<u64>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Number.
    pub id: u32,
    /// Its processors, as `0-15,32-47`.
    pub cpus: String,
    /// Bytes of its memory.
    pub memory_bytes: Option<u64>,
}

/// A PCI device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PciDevice {
    /// Domain, bus, device and function: `0000:3b:00.0`.
    pub address: String,
    /// Vendor.
    #[serde(serialize_with = "hexadecimal")]
    pub vendor: u16,
    /// Device.
    #[serde(serialize_with = "hexadecimal")]
    pub device: u16,
    /// `display` or `accelerator`.
    pub class: &'static str,
    /// NUMA node, if there is one.
    pub numa_node: Option<u32>,
    /// Kernel driver that has it, if any.
    pub driver: Option<String>,
    /// Link now.
    pub link: Option<PciLink>,
    /// Link at best.
    pub link_at_best: Option<PciLink>,
}

fn hexadecimal<S: serde::Serializer>(number: &u16, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:04x}"))
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PciLink {
    /// Transfers per second and lane, in billions.
    pub gigatransfers: f64,
    /// Lanes.
    pub lanes: u32,
}

/// A driver that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// Whose accelerators it is for.
    pub vendor: &'static str,
    /// File that shows it.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
    /// First line of the file, if it is text.
    pub version: Option<String>,
}

impl Topology {
    /// This machine.
    pub fn of_this_machine() -> Self {
        Self::at(Path::new("/"))
    }

    /// The machine whose `/proc` and `/sys` lie in `root`.
    pub fn at(root: &Path) -> Self {
        let nodes = entries(&root.join("sys/devices/system/node"));
        let mut numa_nodes: Vec<NumaNode> = nodes.iter().filter_map(|path| numa_node(path)).collect();
        numa_nodes.sort_by_key(|node| node.id);
        let devices = pci_folders(root).map(|folders| folders.iter().filter_map(|path| pci_device(path)).collect());
        Self { cpu: cpu(root), memory: memory(root), numa_nodes, pci_devices: devices, drivers: drivers(root) }
    }
}

/// Vendor and device of every PCI device of this machine, of whatever class; `None` when the system does not tell.
pub(crate) fn pci_ids() -> Option<Vec<(u16, u16)>> {
    Some(
        pci_folders(Path::new("/"))?
            .iter()
            .filter_map(|path| Some((hex(path, "vendor")?, hex(path, "device")?)))
            .collect(),
    )
}

/// Paths in a folder, in the order of names; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn pci_folders(root: &Path) -> Option<Vec<PathBuf>> {
    let folder = root.join("sys/bus/pci/devices");
    folder.is_dir().then(|| entries(&folder))
}

/// The text of a small file, without the line feed at its end.
fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

fn hex(folder: &Path, file: &str) -> Option<u16> {
    u16::from_str_radix(text(&folder.join(file))?.strip_prefix("0x")?, 16).ok()
}

fn cpu(root: &Path) -> Cpu {
    let info = text(&root.join("proc/cpuinfo")).unwrap_or_default();
    let fields = || info.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.trim(), value.trim()));
    let first = |names: &[&str]| fields().find(|(key, _)| names.contains(key)).map(|(_, value)| value.to_owned());
    let flags = first(&["flags", "Features"]).unwrap_or_default();
    let flags: BTreeSet<&str> = flags.split_whitespace().collect();
    Cpu {
        model: first(&["model name", "Model", "cpu model"]).unwrap_or_default(),
        logical: fields().filter(|(key, _)| *key == "processor").count(),
        features: FEATURES.iter().filter(|name| flags.contains(*name)).map(|name| (*name).to_owned()).collect(),
    }
}

/// A field of a file like `/proc/meminfo`: `MemTotal:  16384 kB`, of a node with `Node 0` before it.
fn kibibytes(info: &str, field: &str) -> Option<u64> {
    let after = info.lines().find_map(|line| Some(line.split_once(field)?.1.strip_prefix(':')?.trim()))?;
    let number: u64 = after.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

fn memory(root: &Path) -> Memory {
    let info = text(&root.join("proc/meminfo")).unwrap_or_default();
    Memory { total_bytes: kibibytes(&info, "MemTotal"), available_bytes: kibibytes(&info, "MemAvailable") }
}

fn numa_node(folder: &Path) -> Option<NumaNode> {
    let id = folder.file_name()?.to_str()?.strip_prefix("node")?.parse().ok()?;
    let cpus = text(&folder.join("cpulist")).unwrap_or_default();
    let memory_bytes = kibibytes(&text(&folder.join("meminfo")).unwrap_or_default(), "MemTotal");
    Some(NumaNode { id, cpus, memory_bytes })
}

fn pci_device(folder: &Path) -> Option<PciDevice> {
    let class = text(&folder.join("class"))?;
    let class = u32::from_str_radix(class.strip_prefix("0x")?, 16).ok()?;
    let (_, class) = CLASSES.into_iter().find(|(base, _)| u32::from(*base) == class >> 16)?;
    let link = |which: &str| {
        let speed = text(&folder.join(format!("{which}_link_speed")))?;
        let lanes: u32 = text(&folder.join(format!("{which}_link_width")))?.parse().ok()?;
        // `16.0 GT/s PCIe`, or `Unknown`.
        let gigatransfers = speed.split_whitespace().next()?.parse().ok()?;
        (lanes > 0).then_some(PciLink { gigatransfers, lanes })
    };
    let driver = fs::read_link(folder.join("driver")).ok();
    Some(PciDevice {
        address: folder.file_name()?.to_str()?.to_owned(),
        vendor: hex(folder, "vendor")?,
        device: hex(folder, "device")?,
        class,
        // -1 where there are no nodes.
        numa_node: text(&folder.join("numa_node")).and_then(|node| node.parse().ok()),
        driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        link: link("current"),
        link_at_best: link("max"),
    })
}

fn drivers(root: &Path) -> Vec<Driver> {
    let versions = VERSIONS.iter().filter_map(|&(file, vendor)| {
        let path = root.join(file);
        let version = text(&path)?.lines().next().map(str::to_owned);
        Some(Driver { vendor, path, version })
    });
    let folders = library_folders(root);
    let libraries = LIBRARIES.iter().filter_map(|&(file, vendor)| {
        let path = folders.iter().map(|folder| folder.join(file)).find(|path| path.exists())?;
        Some(Driver { vendor, path, version: None })
    });
    versions.chain(libraries).collect()
}

/// Where the dynamic linker looks: the folders of its configuration, those that it always has, and where vendors install.
fn library_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut configurations = vec![root.join("etc/ld.so.conf")];
    configurations.extend(entries(&root.join("etc/ld.so.conf.d")));
    for line in configurations.iter().filter_map(|path| text(path)).collect::<Vec<_>>().iter().flat_map(|t| t.lines()) {
        if let Some(folder) = line.trim().strip_prefix('/') {
            folders.push(root.join(folder));
        }
    }
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    for parent in ["usr/local/lib", "lib", "usr/lib", "lib64", "usr/lib64"] {
        folders.push(root.join(parent).join(&triple));
        folders.push(root.join(parent));
    }
    for known in
        ["usr/local/cuda/compat", "usr/local/Ascend/ascend-toolkit/latest/lib64", "usr/local/Ascend/driver/lib64"]
    {
        folders.push(root.join(known));
    }
    folders
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Writes files below a folder.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn a_server_with_two_accelerators() {
        let root = root(&[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: Example 9000\nflags\t\t: fpu avx2 fma avx512f amx_tile avx512_bf16\n\n\
                 processor\t: 1\nmodel name\t: Example 9000\nflags\t\t: fpu avx2\n",
            ),
            ("proc/meminfo", "MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:   1024 kB\n"),
            ("sys/devices/system/node/node0/cpulist", "0\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       1000 kB\nNode 0 MemFree: 5 kB\n"),
            ("sys/devices/system/node/node10/cpulist", "1\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
            ("sys/devices/system/node/possible", "0-10\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/device", "0x2335\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/current_link_speed", "16.0 GT/s PCIe\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/current_link_width", "8\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/max_link_speed", "32.0 GT/s PCIe\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/max_link_width", "16\n"),
            ("sys/bus/pci/drivers/nvidia/x", ""),
            ("sys/bus/pci/devices/0000:81:00.0/class", "0x120000\n"),
            ("sys/bus/pci/devices/0000:81:00.0/vendor", "0x19e5\n"),
            ("sys/bus/pci/devices/0000:81:00.0/device", "0xd802\n"),
            ("sys/bus/pci/devices/0000:81:00.0/numa_node", "-1\n"),
            ("sys/bus/pci/devices/0000:81:00.0/current_link_speed", "Unknown\n"),
            ("sys/bus/pci/devices/0000:81:00.0/current_link_width", "0\n"),
            // A network card is none of our business.
            ("sys/bus/pci/devices/0000:01:00.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086\n"),
            ("sys/bus/pci/devices/0000:01:00.0/device", "0x1572\n"),
            ("proc/driver/nvidia/version", "NVRM version: 580.1\nGCC version: 12\n"),
            ("etc/ld.so.conf.d/npu.conf", "# vendors\n/opt/npu/lib\n"),
            ("opt/npu/lib/libascendcl.so", ""),
        ]);
        symlink("../../drivers/nvidia", root.path().join("sys/bus/pci/devices/0000:3b:00.0/driver")).unwrap();
        let found = Topology::at(root.path());

        assert_eq!((found.cpu.model.as_str(), found.cpu.logical), ("Example 9000", 2));
        assert_eq!(found.cpu.features, ["avx2", "fma", "avx512f", "avx512_bf16", "amx_tile"]);
        assert_eq!(found.memory, Memory { total_bytes: Some(2 << 20), available_bytes: Some(1 << 20) });
        let nodes: Vec<_> = found.numa_nodes.iter().map(|n| (n.id, n.cpus.as_str(), n.memory_bytes)).collect();
        assert_eq!(nodes, [(0, "0", Some(1_024_000)), (2, "", None), (10, "1", None)]);

        let devices = found.pci_devices.as_ref().unwrap();
        assert_eq!(devices.len(), 2);
        let gpu = PciDevice {
            address: "0000:3b:00.0".to_owned(),
            vendor: 0x10de,
            device: 0x2335,
            class: "display",
            numa_node: Some(1),
            driver: Some("nvidia".to_owned()),
            link: Some(PciLink { gigatransfers: 16.0, lanes: 8 }),
            link_at_best: Some(PciLink { gigatransfers: 32.0, lanes: 16 }),
        };
        assert_eq!(devices[0], gpu);
        let npu = &devices[1];
        assert_eq!((npu.class, npu.numa_node, &npu.driver, npu.link), ("accelerator", None, &None, None));

        let drivers: Vec<_> = found.drivers.iter().map(|d| (d.vendor, d.version.as_deref())).collect();
        assert_eq!(drivers, [("NVIDIA", Some("NVRM version: 580.1")), ("Ascend", None)]);
        assert_eq!(found.drivers[1].path, root.path().join("opt/npu/lib/libascendcl.so"));
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(
            (&json["pci_devices"][0]["vendor"], &json["pci_devices"][0]["link"]["lanes"]),
            (&"10de".into(), &8.into())
        );
    }

    #[test]
    fn an_arm_machine_and_one_that_tells_nothing() {
        let arm = root(&[("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\n")]);
        let cpu = Topology::at(arm.path()).cpu;
        assert_eq!((cpu.model.as_str(), cpu.logical), ("", 1));
        assert_eq!(cpu.features, ["asimd", "bf16", "sve"]);

        let nothing = Topology::at(root(&[]).path());
        assert_eq!((nothing.cpu, nothing.memory), Default::default());
        assert!(nothing.numa_nodes.is_empty() && nothing.pci_devices.is_none() && nothing.drivers.is_empty());
    }

    #[test]
    fn garbled_files_are_left_out() {
        let root = root(&[
            ("proc/meminfo", "MemTotal: many kB\nMemAvailable: 18446744073709551615 kB\n"),
            ("sys/bus/pci/devices/a/class", "0x030000\n"),
            ("sys/bus/pci/devices/a/vendor", "nothing\n"),
            ("sys/bus/pci/devices/a/device", "0x0001\n"),
            ("sys/bus/pci/devices/b/class", "display\n"),
        ]);
        let found = Topology::at(root.path());
        assert_eq!(found.memory, Memory::default());
        assert_eq!(found.pci_devices, Some(Vec::new()));
    }
}
