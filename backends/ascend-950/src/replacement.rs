//! Images that a developer puts in the place of embedded ones: `OP.so` in `$DEEPINFER_ASCEND_KERNELS`, read once.

use std::ffi::OsString;
use std::fs::DirEntry;
use std::path::PathBuf;
use std::sync::OnceLock;

use deepinfer_plugin_api::sdk::Fault;

use crate::acl::path_of;
use crate::image::{Image, images, is_twin};

/// What is replaced.
#[derive(Default)]
pub(crate) struct Replacements {
    folder: PathBuf,
    /// In the order of their names.
    images: Vec<(&'static Image, Vec<u8>)>,
}

/// What is replaced, if anything is. It is read when devices are listed, so that what was checked then, and what the device's name
/// says, is what is loaded later.
///
/// # Errors
/// The variable names no folder of images, or something in it is none.
pub(crate) fn replacements() -> Result<&'static Replacements, Fault> {
    static READ: OnceLock<Result<Replacements, Fault>> = OnceLock::new();
    let read = || match path_of(c"DEEPINFER_ASCEND_KERNELS") {
        Some(folder) if !folder.as_os_str().is_empty() => Replacements::read(folder).map_err(Fault::invalid),
        _ => Ok(Replacements::default()),
    };
    READ.get_or_init(read).as_ref().map_err(Clone::clone)
}

impl Replacements {
    /// Reads the images of a folder.
    fn read(folder: PathBuf) -> Result<Self, String> {
        let told = |why: &str| {
            let folder = folder.display();
            format!("DEEPINFER_ASCEND_KERNELS is \"{folder}\", {why}: name a folder with OP.so files, or unset it")
        };
        if !folder.is_absolute() {
            return Err(told("which is no absolute path"));
        }
        let entries = std::fs::read_dir(&folder).map_err(|e| told(&format!("which cannot be read ({e})")))?;
        let mut images = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| told(&format!("which cannot be read ({e})")))?;
            images.extend(image_of(&entry).map_err(|problem| format!("DEEPINFER_ASCEND_KERNELS: {problem}"))?);
        }
        if images.is_empty() {
            return Err(told("where there is no OP.so"));
        }
        images.sort_by_key(|(image, _)| image.name);
        Ok(Self { folder, images })
    }

    /// What is loaded in the place of an embedded image.
    pub(crate) fn of(&self, image: &Image) -> Option<&[u8]> {
        self.images.iter().find(|(replaced, _)| replaced.index == image.index).map(|(_, bytes)| bytes.as_slice())
    }

    /// What is replaced, and from where, behind the name of a device.
    pub(crate) fn words(&self) -> String {
        let names: Vec<&str> = self.images.iter().map(|(image, _)| image.name).collect();
        let named = match names.as_slice() {
            [] => return String::new(),
            [one] => (*one).to_owned(),
            [first, second] => format!("{first} and {second}"),
            [first, second, third] => format!("{first}, {second} and {third}"),
            [first, second, more @ ..] => format!("{first}, {second} and {} more kernel files", more.len()),
        };
        format!(", {named} from {}", self.folder.display())
    }
}

/// The image that an entry of the folder is. Other files may lie there, as sources do; one that looks like an image is one.
fn image_of(entry: &DirEntry) -> Result<Option<(&'static Image, Vec<u8>)>, String> {
    let path = entry.path();
    if path.extension().is_none_or(|extension| extension != "so") {
        return Ok(None);
    }
    let name = path.file_stem().map(OsString::from).unwrap_or_default().to_string_lossy().into_owned();
    let Some(image) = images::ALL.iter().find(|image| image.name == name) else {
        let names: Vec<&str> = images::ALL.iter().map(|image| image.name).collect();
        return Err(format!(
            "{}: there is no kernel file {name}.cpp, so that this image would replace nothing; there are {}",
            path.display(),
            names.join(", ")
        ));
    };
    let told = |e: std::io::Error| format!("{}: {e}", path.display());
    // A link to nothing is a mistake, and so is a folder of this name.
    if !std::fs::metadata(&path).map_err(told)?.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    let bytes = std::fs::read(&path).map_err(told)?;
    if is_cut_off(&bytes) {
        return Err(format!("{}: {} bytes are no whole image: build it again", path.display(), bytes.len()));
    }
    if let Some(what) = foreign(&bytes) {
        return Err(format!("{}: {what}: build it again as a shared object for what runs it", path.display()));
    }
    Ok(Some((image, bytes)))
}

/// Why a whole ELF file can never be loaded, if that can be told by its header. What a device runs is another machine's.
fn foreign(bytes: &[u8]) -> Option<&'static str> {
    const LITTLE_ENDIAN: u8 = 1;
    const SHARED_OBJECT: u16 = 3;
    let own = match std::env::consts::ARCH {
        "x86_64" => Some(62),
        "aarch64" => Some(183),
        _ => None,
    };
    let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    match () {
        () if bytes[5] != LITTLE_ENDIAN => Some("it is of a big-endian machine"),
        () if !is_twin() => None,
        () if short(16) != SHARED_OBJECT => Some("it is no shared object"),
        () if own.is_some_and(|own| own != short(18)) => Some("it is of another machine than this one"),
        () => None,
    }
}

/// Whether this is no ELF file of 64 bits, or one whose table of sections, which stands at its end, lies beyond it.
fn is_cut_off(bytes: &[u8]) -> bool {
    const HEADER: usize = 64;
    let Some(header) = bytes.get(..HEADER).filter(|header| header.starts_with(b"\x7FELF\x02")) else { return true };
    let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let table = u64::from_le_bytes(header[40..48].try_into().unwrap_or_default());
    table.saturating_add(short(58) * short(60)) > bytes.len() as u64
}
