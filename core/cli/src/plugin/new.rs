//! `deepinfer plugin new`: a project of a backend that builds at once and has one working op.

mod ops_to_write;
mod project;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use deepinfer_runtime::{CatalogueId, SearchPath};

use crate::args::{Language, PluginNewArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::terminal;

use project::{File, Project};

/// Longest name.
const MOST_CHARACTERS: usize = 64;
/// Names that mean something else: a selection, the backend of the processor, and crates of the SDK.
const RESERVED: [&str; 5] = ["auto", "cpu", "plugin-api", "numerics", "oracle"];
/// The SDK in the source tree of this program.
const OWN_SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugin-api");

/// Writes the project and says what to do next.
///
/// # Errors
/// The name, the folder or the SDK is refused ([`Failure::Input`]); the files cannot be written ([`Failure::Fault`]).
pub(crate) fn run(args: &PluginNewArgs) -> Result<(), Failure> {
    check_name(&args.name).map_err(Failure::Input)?;
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    check_folder(&folder).map_err(Failure::Input)?;
    let sdk = match (args.lang, &args.sdk) {
        (Language::Rust, given) => Some(sdk_of(given.as_deref()).map_err(Failure::Input)?),
        (_, None) => None,
        (_, Some(_)) => {
            return Err(Failure::Input(anyhow!(
                "--sdk is the Rust SDK; a project in C or C++ takes copies of the headers instead"
            )));
        }
    };
    let project = Project { name: &args.name, lang: args.lang, sdk: sdk.as_deref() };
    let files = project.files().map_err(Failure::Fault)?;
    write_all(&folder, &files).map_err(Failure::Fault)?;
    let place = folder.display();
    let text = format!("{place}: {} files; next:\n\n  cd {place}\n{}", files.len(), project.first_commands());
    Output::stdout()?.write(&terminal::printable(&text))
}

/// Refuses names that are no kebab case, or that another plugin has.
fn check_name(name: &str) -> anyhow::Result<()> {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts_well || !name.split('-').all(is_word) || name.len() > MOST_CHARACTERS {
        bail!(
            "the name {name:?} is not possible: it consists of lower-case letters, digits and single hyphens, begins with \
             a letter and has at most {MOST_CHARACTERS} characters, as in my-npu"
        );
    }
    if RESERVED.contains(&name) {
        bail!("the name {name:?} is taken by DeepInfer itself; choose another one");
    }
    if let Some(path) = namesake(name, SearchPath::from_environment().directories()) {
        bail!("the name {name:?} is that of the plugin {}; choose another one", path.display());
    }
    Ok(())
}

/// A library or manifest of this name in the directories; nothing is loaded.
fn namesake(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    let manifest = format!("{name}.deepinfer.json");
    let library = format!("deepinfer_{}.so", name.replace('-', "_"));
    let is_namesake = |file: &OsStr| {
        let file = file.to_string_lossy();
        let prefix = file.strip_suffix(&library);
        file == manifest
            || prefix.is_some_and(|prefix| prefix == "lib" || prefix.starts_with("lib") && prefix.ends_with('_'))
    };
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    entries.filter_map(Result::ok).find(|entry| is_namesake(&entry.file_name())).map(|entry| entry.path())
}

/// The folder must not exist, or be empty; its parent must exist.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    let parent = parent_of(folder);
    if !parent.is_dir() {
        bail!("{}: there is no folder {} to put it into; make it first", folder.display(), parent.display());
    }
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => bail!("{}: the folder is not empty; name another one with --dir", folder.display()),
        Err(_) if folder.symlink_metadata().is_err() => Ok(()),
        Err(e) => bail!("{}: this is not a folder that a project can go to: {e}", folder.display()),
    }
}

fn parent_of(folder: &Path) -> &Path {
    folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The folder of the Rust SDK as an absolute path: that which is named, or that of the source tree of this program. A plugin of
/// another catalogue would lack ops, or be refused in the first call, so the SDK must be of this one.
fn sdk_of(given: Option<&Path>) -> anyhow::Result<String> {
    let folder = given.unwrap_or(Path::new(OWN_SDK));
    let which = match given {
        Some(given) => format!("--sdk {}", given.display()),
        None => format!("{OWN_SDK}, where this program was built"),
    };
    let wanted = "name the folder plugin-api of a checkout of DeepInfer of this version with --sdk";
    let read = |path: &str| fs::read_to_string(folder.join(path)).unwrap_or_default();
    let manifest = read("Cargo.toml");
    if !manifest.lines().any(|line| line.trim() == "name = \"deepinfer-plugin-api\"") {
        bail!("{which}: this is not the Rust SDK, since its Cargo.toml is not that of deepinfer-plugin-api; {wanted}");
    }
    let ours = CatalogueId::ours().digest;
    match digest_of(&read("src/generated.rs")) {
        Some(digest) if digest == ours => {}
        digest => {
            let theirs = digest.map_or("unknown".to_owned(), |digest| format!("{digest:016x}"));
            bail!(
                "{which}: this SDK has another catalogue of ops ({theirs}) than this program ({ours:016x}); {wanted}"
            );
        }
    }
    let absolute = folder.canonicalize().with_context(|| format!("{}", folder.display()))?;
    let text = absolute.to_str().map(str::to_owned);
    text.with_context(|| format!("{}: Cargo.toml can only hold paths that are UTF-8", absolute.display()))
}

/// The digest of the catalogue in the generated source of an SDK.
fn digest_of(generated: &str) -> Option<u64> {
    let line = generated.lines().find_map(|line| line.strip_prefix("pub const DIGEST: u64 = 0x"))?;
    u64::from_str_radix(line.trim_end_matches(';'), 16).ok()
}

/// A folder that is removed again unless it became the project.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What cannot be removed cannot be helped; the error that led here is the one to report.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes the files next to `folder` and gives them its name when all are there.
fn write_all(folder: &Path, files: &[File]) -> anyhow::Result<()> {
    let name = folder.file_name().with_context(|| format!("{}: the folder has no name", folder.display()))?;
    let hidden = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let unfinished = Unfinished(parent_of(folder).join(hidden));
    let at = |path: &Path| format!("cannot write {}", path.display());
    fs::create_dir(&unfinished.0).with_context(|| at(&unfinished.0))?;
    for file in files {
        let path = unfinished.0.join(&file.path);
        let parent = path.parent().expect("a file within the project");
        fs::create_dir_all(parent).with_context(|| at(parent))?;
        fs::write(&path, &file.text).with_context(|| at(&path))?;
    }
    // Replaces a folder only if it is empty.
    fs::rename(&unfinished.0, folder).with_context(|| at(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["npu", "my-npu", "x1-2b", "deepinfer-layer"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "a".repeat(MOST_CHARACTERS + 1);
        for name in ["", "My-npu", "my_npu", "-npu", "npu-", "my--npu", "1npu", "npü", "a/b", "..", &long] {
            assert!(check_name(name).unwrap_err().to_string().contains("is not possible"), "{name}");
        }
        for name in RESERVED {
            assert!(check_name(name).unwrap_err().to_string().contains("taken"), "{name}");
        }
    }

    #[test]
    fn plugins_of_the_same_name_are_found_without_loading_them() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().join("absent"), folder.path().to_owned()];
        for file in ["libdeepinfer_my_npu.so", "libvendor_deepinfer_fast.so", "other.deepinfer.json"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        for name in ["my-npu", "fast", "other"] {
            assert!(namesake(name, &directories).is_some(), "{name}");
        }
        for name in ["npu", "my", "vendor", "deepinfer-fast"] {
            assert_eq!(namesake(name, &directories), None, "{name}");
        }
    }

    /// Of another version, of no version, and of this one.
    #[test]
    fn the_sdk_must_have_the_catalogue_of_this_program() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = || sdk_of(Some(folder.path())).unwrap_err().to_string();
        assert!(refusal().contains("is not the Rust SDK"), "{}", refusal());
        fs::write(folder.path().join("Cargo.toml"), "[package]\nname = \"deepinfer-plugin-api\"\n").unwrap();
        assert!(refusal().contains("another catalogue of ops (unknown)"), "{}", refusal());
        fs::create_dir(folder.path().join("src")).unwrap();
        let write = |digest: u64| {
            let text = format!("// Generated.\npub const DIGEST: u64 = {digest:#018x};\n");
            fs::write(folder.path().join("src/generated.rs"), text).unwrap();
        };
        let ours = CatalogueId::ours().digest;
        write(ours ^ 1);
        let other = format!("another catalogue of ops ({:016x}) than this program ({ours:016x})", ours ^ 1);
        assert!(refusal().contains(&other), "{}", refusal());
        write(ours);
        assert_eq!(Path::new(&sdk_of(Some(folder.path())).unwrap()), folder.path().canonicalize().unwrap());
        // The source tree of this program has it.
        assert!(sdk_of(None).unwrap().ends_with("plugin-api"));
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = |path: &str| File::new(path, "");
        // The second file needs a folder where the first one is.
        let error = write_all(&folder.path().join("npu"), &[file("a"), file("a/b")]).unwrap_err();
        assert!(error.to_string().contains("cannot write"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        write_all(&folder.path().join("npu"), &[file("a"), file("b/c")]).unwrap();
        assert!(folder.path().join("npu/b/c").is_file());
    }
}
