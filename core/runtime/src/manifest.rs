//! Manifests: what a plugin says of itself in a file beside it, so that it is known without running its code.
//!
//! `NAME.deepinfer.json` lies in the folder of the library:
//!
//! ```json
//! {
//!   "manifest_version": 1,
//!   "name": "npu", "vendor": "Example", "version": "1.4.0",
//!   "library": "libdeepinfer_npu.so",
//!   "abi": { "major": 0, "minor": 2, "min_core_minor": 0 },
//!   "arch": "x86_64", "os": "linux",
//!   "devices": ["10de:2901", "1ed5:*"],
//!   "priority": 10,
//!   "ops": ["gather", "rms_norm"],
//!   "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! }
//! ```
//!
//! `devices` (PCI ids in hexadecimal; empty: not known), `priority` (0), `kind` (`backend` or `layer`), `ops` and `sha256`
//! may be left out. Fields that are not known here may be for others, or misspelt: `deepinfer plugin doctor` names them. The
//! digest finds files that were damaged or exchanged by
//! mistake; who can write the folder can write both.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use deepinfer_plugin_api::abi::{DI_ABI_MAJOR, DI_ABI_MINOR};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::regular::open_regular;

/// End of the name of every manifest.
pub(crate) const SUFFIX: &str = ".deepinfer.json";
/// A manifest is a page or two; what is longer is something else.
const MOST_BYTES: u64 = 1 << 20;
const VERSION: u32 = 1;
/// Fields of this version.
const KNOWN: [&str; 13] = [
    "manifest_version",
    "name",
    "vendor",
    "version",
    "library",
    "abi",
    "arch",
    "os",
    "kind",
    "devices",
    "priority",
    "ops",
    "sha256",
];
const KNOWN_OF_ABI: [&str; 3] = ["major", "minor", "min_core_minor"];

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// File of the manifest.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
    /// Name by which the plugin is selected.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// Version of the plugin.
    pub version: String,
    /// File of the library.
    #[serde(serialize_with = "crate::report::lossy")]
    pub library: PathBuf,
    /// Versions of the plugin ABI.
    pub abi: ManifestAbi,
    /// Processor that the library is for, as Rust calls it: `x86_64`, `aarch64`.
    pub arch: String,
    /// Operating system, likewise: `linux`.
    pub os: String,
    /// Backend or layer.
    pub kind: PluginKind,
    /// Devices that it drives; empty when the manifest does not say.
    pub devices: Vec<PciId>,
    /// `auto` takes the largest whose devices answer.
    pub priority: i32,
    /// Ops that it implements; `None` when the manifest does not say.
    pub ops: Option<Vec<String>>,
    /// SHA-256 of the library, in lower case.
    pub sha256: Option<String>,
    /// Fields that are not known here, as `abi.patch`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_fields: Vec<String>,
}

/// Versions of the plugin ABI that a plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ManifestAbi {
    /// Major.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Smallest minor of the core that it needs.
    pub min_core_minor: u16,
}

/// What a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginKind {
    /// It drives devices.
    Backend,
    /// It wraps a backend.
    Layer,
}

/// A kind of PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    /// Vendor.
    pub vendor: u16,
    /// Device; `None` means every device of the vendor.
    pub device: Option<u16>,
}

/// Why a manifest is of no use. Each is one sentence that names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("{}: the manifest cannot be read: {reason}", path.display())]
    Unreadable {
        /// File.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// It is no JSON object.
    #[error("{}: the manifest is not a JSON object: {reason}", path.display())]
    NotJson {
        /// File.
        path: PathBuf,
        /// Where and what.
        reason: String,
    },
    /// A field is missing or wrong.
    #[error("{}: the manifest's field {field} {problem}", path.display())]
    Field {
        /// File.
        path: PathBuf,
        /// Field, as `abi.major`.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// The library is for another version of the boundary.
    #[error(
        "{}: the plugin speaks version {plugin} of the plugin ABI, the core version {DI_ABI_MAJOR}.{DI_ABI_MINOR}; \
         install a build for this core", path.display()
    )]
    Abi {
        /// File.
        path: PathBuf,
        /// What it speaks or needs.
        plugin: String,
    },
    /// The library is for another machine.
    #[error("{}: the plugin is for the {what} {wanted:?}, but this is {here:?}", path.display())]
    Machine {
        /// File.
        path: PathBuf,
        /// `processor` or `operating system`.
        what: &'static str,
        /// That of the manifest.
        wanted: String,
        /// That of this process.
        here: String,
    },
    /// The library is not there.
    #[error("{}: the manifest's library {} cannot be read: {reason}", path.display(), library.display())]
    NoLibrary {
        /// File of the manifest.
        path: PathBuf,
        /// Library.
        library: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The library is not the one that the manifest describes.
    #[error(
        "{}: the library {} has the SHA-256 {found}, but the manifest says {wanted}; install the plugin again",
        path.display(), library.display()
    )]
    Digest {
        /// File of the manifest.
        path: PathBuf,
        /// Library.
        library: PathBuf,
        /// That of the manifest.
        wanted: String,
        /// That of the file.
        found: String,
    },
}

impl Manifest {
    /// Reads a manifest. Nothing of the library is looked at.
    ///
    /// # Errors
    /// The file cannot be read, or a field is missing or wrong.
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let fields = Fields { path, map: object(path)? };
        let field_error = |field: &str, problem: String| fields.error(field, problem);
        let version: u32 = fields.required("manifest_version")?;
        if version != VERSION {
            return Err(field_error("manifest_version", format!("is {version}, but this core reads {VERSION}")));
        }
        let name: String = fields.required("name")?;
        crate::load::check_name(&name).map_err(|problem| field_error("name", format!("is wrong: {problem}")))?;
        let library: String = fields.required("library")?;
        let library = within(path, &library).map_err(|problem| field_error("library", problem))?;
        let abi = fields.required::<Map<String, Value>>("abi")?;
        let abi_fields = Fields { path, map: abi };
        let abi = ManifestAbi {
            major: abi_fields.required_in("abi.", "major")?,
            minor: abi_fields.required_in("abi.", "minor")?,
            min_core_minor: abi_fields.optional_in("abi.", "min_core_minor")?.unwrap_or(0),
        };
        let devices: Vec<String> = fields.optional("devices")?.unwrap_or_default();
        let devices = devices.iter().map(|id| {
            PciId::parse(id).ok_or_else(|| {
                field_error(
                    "devices",
                    format!("has the entry {id:?}, which is not of the form \"10de:2901\" or \"10de:*\""),
                )
            })
        });
        let sha256 = fields.optional::<String>("sha256")?.map(|text| text.to_ascii_lowercase());
        if let Some(text) =
            sha256.as_ref().filter(|text| text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return Err(field_error("sha256", format!("is {text:?}, but must be 64 hexadecimal digits")));
        }
        let unknown_fields = [fields.unknown_in("", &KNOWN), abi_fields.unknown_in("abi.", &KNOWN_OF_ABI)].concat();
        Ok(Self {
            unknown_fields,
            vendor: fields.required("vendor")?,
            version: fields.required("version")?,
            arch: fields.required("arch")?,
            os: fields.required("os")?,
            kind: fields.optional("kind")?.unwrap_or(PluginKind::Backend),
            devices: devices.collect::<Result<_, _>>()?,
            priority: fields.optional("priority")?.unwrap_or(0),
            ops: fields.optional("ops")?,
            path: path.to_owned(),
            name,
            library,
            abi,
            sha256,
        })
    }

    /// The library that a manifest is about although it cannot be used as a whole.
    pub(crate) fn claimed_library(path: &Path) -> Option<PathBuf> {
        let library = Fields { path, map: object(path).ok()? }.required::<String>("library").ok()?;
        within(path, &library).ok()
    }

    /// Whether the library could run here: version, machine, presence, digest. Runs none of its code.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), ManifestError> {
        let path = || self.path.clone();
        if self.abi.major != DI_ABI_MAJOR {
            let plugin = format!("{}.{}", self.abi.major, self.abi.minor);
            return Err(ManifestError::Abi { path: path(), plugin });
        }
        if self.abi.min_core_minor > DI_ABI_MINOR {
            let plugin = format!("{}.{} or later", self.abi.major, self.abi.min_core_minor);
            return Err(ManifestError::Abi { path: path(), plugin });
        }
        for (what, wanted, here) in
            [("operating system", &self.os, std::env::consts::OS), ("processor", &self.arch, std::env::consts::ARCH)]
        {
            if wanted != here {
                let (wanted, here) = (wanted.clone(), here.to_owned());
                return Err(ManifestError::Machine { path: path(), what, wanted, here });
            }
        }
        let missing = |e: std::io::Error| ManifestError::NoLibrary {
            path: path(),
            library: self.library.clone(),
            reason: e.to_string(),
        };
        // A directory or a pipe is found by the loader.
        let Some(mut file) = open_regular(&self.library).map_err(missing)? else { return Ok(()) };
        let Some(wanted) = &self.sha256 else { return Ok(()) };
        let found = digest(&mut file).map_err(missing)?;
        if found == *wanted {
            return Ok(());
        }
        Err(ManifestError::Digest { path: path(), library: self.library.clone(), wanted: wanted.clone(), found })
    }
}

/// SHA-256 in lower case.
fn digest(file: &mut File) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut part = vec![0; 1 << 16];
    loop {
        match file.read(&mut part)? {
            0 => break,
            bytes => hash.update(&part[..bytes]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A path below the manifest's folder.
fn within(manifest: &Path, library: &str) -> Result<PathBuf, String> {
    let relative = Path::new(library);
    let is_below = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if library.is_empty() || !is_below {
        return Err(format!("is {library:?}, but must be a path below the manifest's folder, without .."));
    }
    Ok(manifest.parent().unwrap_or(Path::new("")).join(relative))
}

fn object(path: &Path) -> Result<Map<String, Value>, ManifestError> {
    let unreadable = |reason: String| ManifestError::Unreadable { path: path.to_owned(), reason };
    let file = open_regular(path).map_err(|e| unreadable(e.to_string()))?;
    let file = file.ok_or_else(|| unreadable("it is not a regular file".to_owned()))?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| unreadable(e.to_string()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(unreadable(format!("it is longer than {MOST_BYTES} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|e| ManifestError::NotJson { path: path.to_owned(), reason: e.to_string() })
}

/// The fields of an object, each read by itself so that a mistake is told with its name.
struct Fields<'a> {
    path: &'a Path,
    map: Map<String, Value>,
}

impl Fields<'_> {
    fn error(&self, field: &str, problem: String) -> ManifestError {
        ManifestError::Field { path: self.path.to_owned(), field: field.to_owned(), problem }
    }

    fn optional_in<T: DeserializeOwned>(&self, prefix: &str, name: &str) -> Result<Option<T>, ManifestError> {
        let Some(value) = self.map.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|e| self.error(&format!("{prefix}{name}"), format!("is wrong: {e}")))
    }

    fn required_in<T: DeserializeOwned>(&self, prefix: &str, name: &str) -> Result<T, ManifestError> {
        let value = self.optional_in(prefix, name)?;
        value.ok_or_else(|| self.error(&format!("{prefix}{name}"), "is missing".to_owned()))
    }

    /// Names of fields beyond those that are known.
    fn unknown_in(&self, prefix: &str, known: &[&str]) -> Vec<String> {
        let names = self.map.keys().filter(|name| !known.contains(&name.as_str()));
        names.map(|name| format!("{prefix}{name}")).collect()
    }

    fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ManifestError> {
        self.optional_in("", name)
    }

    fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T, ManifestError> {
        self.required_in("", name)
    }
}

impl PciId {
    /// Reads `10de:2901`, or `10de:*` for every device of the vendor.
    fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| {
            let is_hex = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
        };
        let (vendor, device) = text.split_once(':')?;
        let device = if device == "*" { None } else { Some(number(device)?) };
        Some(Self { vendor: number(vendor)?, device })
    }

    /// Whether a device is of this kind.
    pub fn covers(&self, vendor: u16, device: u16) -> bool {
        self.vendor == vendor && self.device.is_none_or(|own| own == device)
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            Some(device) => write!(f, "{:04x}:{device:04x}", self.vendor),
            None => write!(f, "{:04x}:*", self.vendor),
        }
    }
}

impl Serialize for PciId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A manifest of this machine, changed, in a folder with its library.
    fn written(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libx.so"), "test").unwrap();
        let mut value = json!({
            "manifest_version": 1, "name": "npu", "vendor": "Example", "version": "1.4.0", "library": "libx.so",
            "abi": {"major": DI_ABI_MAJOR, "minor": 0}, "arch": std::env::consts::ARCH, "os": std::env::consts::OS,
        });
        change(&mut value);
        let path = folder.path().join("npu.deepinfer.json");
        std::fs::write(&path, value.to_string()).unwrap();
        (folder, path)
    }

    fn sentence(change: impl FnOnce(&mut Value)) -> String {
        let (_folder, path) = written(change);
        let error = Manifest::read(&path).and_then(|manifest| manifest.check()).unwrap_err().to_string();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        error
    }

    #[test]
    fn a_manifest_is_read_and_what_it_leaves_out_has_its_default() {
        let (folder, path) = written(|_| {});
        let manifest = Manifest::read(&path).unwrap();
        assert_eq!((manifest.name.as_str(), manifest.priority, manifest.kind), ("npu", 0, PluginKind::Backend));
        assert_eq!((manifest.abi.min_core_minor, manifest.ops, manifest.sha256), (0, None, None));
        assert_eq!(manifest.library, folder.path().join("libx.so"));

        // SHA-256 of "test": FIPS 180-4.
        let digest = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08";
        let (_folder, path) = written(|m| {
            m["devices"] = json!(["10de:2901", "1ED5:*"]);
            m["priority"] = json!(-3);
            m["kind"] = json!("layer");
            m["ops"] = json!(["gather"]);
            m["sha256"] = json!(digest);
            m["homepage"] = json!({"for": "others"});
            m["abi"]["patch"] = json!(1);
        });
        let manifest = Manifest::read(&path).unwrap();
        manifest.check().unwrap();
        assert_eq!(manifest.unknown_fields, ["homepage", "abi.patch"]);
        assert_eq!((manifest.priority, manifest.kind), (-3, PluginKind::Layer));
        assert_eq!(manifest.devices.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10de:2901", "1ed5:*"]);
        assert!(manifest.devices[0].covers(0x10de, 0x2901) && !manifest.devices[0].covers(0x10de, 0x2902));
        assert!(manifest.devices[1].covers(0x1ed5, 7) && !manifest.devices[1].covers(0x10de, 7));
    }

    #[test]
    fn every_refusal_names_the_file_and_the_field() {
        let remove = |field: &'static str| move |m: &mut Value| drop(m.as_object_mut().unwrap().remove(field));
        for field in ["manifest_version", "name", "vendor", "version", "library", "abi", "arch", "os"] {
            let error = sentence(remove(field));
            assert!(error.ends_with(&format!("the manifest's field {field} is missing")), "{error}");
        }
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 17] = [
            (|m| m["manifest_version"] = json!(2), "field manifest_version is 2, but this core reads 1"),
            (|m| m["name"] = json!(7), "field name is wrong: invalid type: integer `7`, expected a string"),
            (|m| m["name"] = json!("a b"), "field name is wrong: its name \"a b\" cannot be selected"),
            (|m| m["priority"] = json!("high"), "field priority is wrong: invalid type: string"),
            (|m| m["abi"] = json!("0.2"), "field abi is wrong"),
            (|m| m["abi"] = json!({"minor": 2}), "field abi.major is missing"),
            (|m| m["abi"]["minor"] = json!(-1), "field abi.minor is wrong"),
            (|m| m["kind"] = json!("driver"), "field kind is wrong: unknown variant `driver`"),
            (|m| m["devices"] = json!(["10de"]), "field devices has the entry \"10de\""),
            (|m| m["devices"] = json!([4318]), "field devices is wrong"),
            (|m| m["ops"] = json!("gather"), "field ops is wrong"),
            (|m| m["sha256"] = json!("beef"), "field sha256 is \"beef\", but must be 64 hexadecimal digits"),
            (|m| m["library"] = json!("../libx.so"), "field library is \"../libx.so\", but must be a path below"),
            (|m| m["library"] = json!("/lib/libx.so"), "field library is \"/lib/libx.so\", but must be a path below"),
            (|m| m["library"] = json!(""), "field library is \"\""),
            (|m| m["abi"]["major"] = json!(9), "speaks version 9.0 of the plugin ABI, the core version 0."),
            (|m| m["abi"]["min_core_minor"] = json!(40), "speaks version 0.40 or later of the plugin ABI"),
        ];
        for (change, part) in cases {
            let error = sentence(change);
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
    }

    #[test]
    fn what_does_not_fit_this_machine_is_refused() {
        let error = sentence(|m| m["arch"] = json!("sparc64"));
        assert!(error.contains("is for the processor \"sparc64\", but this is"), "{error}");
        let error = sentence(|m| m["os"] = json!("plan9"));
        assert!(error.contains("is for the operating system \"plan9\", but this is"), "{error}");
        let error = sentence(|m| m["library"] = json!("libabsent.so"));
        assert!(error.contains("libabsent.so cannot be read: No such file"), "{error}");
        let error = sentence(|m| m["sha256"] = json!("0".repeat(64)));
        assert!(error.contains("has the SHA-256 9f86d0818") && error.contains("the manifest says 0000"), "{error}");
    }

    #[test]
    fn files_that_are_no_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.deepinfer.json");
        let error = || Manifest::read(&path).unwrap_err().to_string();
        assert!(error().contains("cannot be read: No such file"), "{}", error());
        for (text, part) in [
            ("", "not a JSON object: EOF"),
            ("[]", "not a JSON object: invalid type: sequence"),
            ("{\"name\": \"x\"", "not a JSON object: EOF"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(error().contains(part), "{text:?}: {}", error());
        }
        std::fs::write(&path, " ".repeat(MOST_BYTES as usize + 1)).unwrap();
        assert!(error().contains("longer than 1048576 bytes"), "{}", error());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(error().contains("not a regular file"), "{}", error());
    }
}
