//! The files of a project.
//!
//! What is the same in every project of a language is a file of this repository, compiled by its own tests: the headers,
//! the device and the kernel. The rest are templates in which `{{word}}` stands for a value.

use anyhow::bail;
use deepinfer_runtime::TEXT_PROFILE;
use serde_json::json;

use super::ops_to_write;
use crate::args::Language;

/// A file of the project.
pub(crate) struct File {
    /// Path within the project.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// What the files are made from.
pub(crate) struct Project<'a> {
    /// Name of the backend, in kebab case.
    pub(crate) name: &'a str,
    pub(crate) lang: Language,
    /// Folder of the Rust SDK; of Rust projects.
    pub(crate) sdk: Option<&'a str>,
}

/// Paths of the project and where their text comes from.
macro_rules! templates {
    ($($path:literal from $source:literal;)*) => { &[$(($path, include_str!(concat!("../../../", $source)))),*] };
}

const RUST: &[(&str, &str)] = templates! {
    "README.md" from "templates/plugin-rust/README.md";
    "Cargo.toml" from "templates/plugin-rust/Cargo.toml";
    "rustfmt.toml" from "../../rustfmt.toml";
    "src/lib.rs" from "templates/plugin-rust/src/lib.rs";
    "src/device.rs" from "templates/plugin-rust/src/device.rs";
    "src/ops.rs" from "templates/plugin-rust/src/ops.rs";
    "src/ops/gather.rs" from "templates/plugin-rust/src/ops/gather.rs";
};

const C: &[(&str, &str)] = templates! {
    "README.md" from "templates/plugin-c/README.md";
    "Makefile" from "templates/plugin-c/Makefile";
    "include/deepinfer_plugin.h" from "../../plugin-api/include/deepinfer_plugin.h";
    "include/deepinfer_plugin_helpers.h" from "../../plugin-api/include/deepinfer_plugin_helpers.h";
    "src/backend.h" from "templates/plugin-c/src/backend.h";
    "src/backend.c" from "templates/plugin-c/src/backend.c";
    "src/device.c" from "../../plugin-api/examples/backend-c/src/device.c";
    "src/ops/gather.c" from "../../plugin-api/examples/backend-c/src/ops/gather.c";
};

const CPP: &[(&str, &str)] = templates! {
    "README.md" from "templates/plugin-cpp/README.md";
    "Makefile" from "templates/plugin-cpp/Makefile";
    "include/deepinfer_plugin.h" from "../../plugin-api/include/deepinfer_plugin.h";
    "include/deepinfer_plugin_helpers.h" from "../../plugin-api/include/deepinfer_plugin_helpers.h";
    "include/deepinfer_plugin.hpp" from "../../plugin-api/include/deepinfer_plugin.hpp";
    "src/backend.hpp" from "templates/plugin-cpp/src/backend.hpp";
    "src/backend.cpp" from "templates/plugin-cpp/src/backend.cpp";
    "src/device.cpp" from "templates/plugin-cpp/src/device.cpp";
    "src/ops/gather.cpp" from "templates/plugin-cpp/src/ops/gather.cpp";
};

const WORKFLOW: &str = include_str!("../../../templates/plugin-shared/parity.yml");
/// Lines of the workflow that build a Rust project: the path of the SDK is that of the author's machine.
const CARGO_BUILD: &str = "\
sed -i \"s|^deepinfer-plugin-api = .*|deepinfer-plugin-api = { path = \\\"$RUNNER_TEMP/deepinfer/plugin-api\\\" }|\" Cargo.toml
          cargo build --release";
/// Ops that a new project has.
const WRITTEN: &[&str] = &["gather"];

impl Project<'_> {
    /// All files.
    ///
    /// # Errors
    /// A template asks for a word that does not exist: a bug of the template.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<File>> {
        let (templates, to_write, ignored) = match self.lang {
            Language::Rust => (RUST, "src/ops_to_write.rs", "/target\n"),
            Language::C => (C, "src/ops_to_write.h", "*.so\n"),
            Language::Cpp => (CPP, "src/ops_to_write.hpp", "*.so\n"),
        };
        let mut files = Vec::new();
        for (path, template) in templates.iter().chain([&(".github/workflows/parity.yml", WORKFLOW)]) {
            files.push(File::new(*path, self.fill(path, template)?));
        }
        files.push(File::new(to_write, ops_to_write::listing(self.lang, TEXT_PROFILE, WRITTEN)));
        files.push(File::new(".gitignore", ignored));
        files.push(File::new(format!("{}.deepinfer.json", self.name), format!("{:#}\n", self.manifest())));
        Ok(files)
    }

    /// Commands that build and test the project, in its folder.
    pub(crate) fn first_commands(&self) -> String {
        match self.lang {
            Language::Rust => format!(
                "  cargo build --release\n  deepinfer parity --backend {} --ops gather --profile none\n",
                self.library()
            ),
            Language::C | Language::Cpp => "  make\n  make test OPS=gather\n".to_owned(),
        }
    }

    fn snake(&self) -> String {
        self.name.replace('-', "_")
    }

    fn pascal(&self) -> String {
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        self.name.split('-').map(capital).collect()
    }

    /// Where the library is built, within the project.
    fn library(&self) -> String {
        let folder = if self.lang == Language::Rust { "target/release/" } else { "" };
        format!("{folder}libdeepinfer_{}.so", self.snake())
    }

    fn manifest(&self) -> serde_json::Value {
        let version = deepinfer_parity::abi_version();
        let (major, minor) = version.split_once('.').expect("a version is major.minor");
        let number = |text: &str| text.parse::<u16>().expect("parts of the version are numbers");
        json!({
            "manifest_version": 1,
            "name": self.name,
            "vendor": "",
            "version": "0.1.0",
            "library": format!("libdeepinfer_{}.so", self.snake()),
            "abi": { "major": number(major), "minor": number(minor), "min_core_minor": 0 },
            "arch": std::env::consts::ARCH,
            "os": std::env::consts::OS,
            "devices": [],
            "priority": 0,
        })
    }

    /// Puts the values into a template.
    fn fill(&self, path: &str, template: &str) -> anyhow::Result<String> {
        let build = if self.lang == Language::Rust { CARGO_BUILD } else { "make" };
        // A JSON string is a TOML string, too.
        let sdk = serde_json::Value::from(self.sdk.unwrap_or_default()).to_string();
        let words = [
            ("{{name}}", self.name),
            ("{{snake}}", &self.snake()),
            ("{{pascal}}", &self.pascal()),
            ("{{library}}", &self.library()),
            ("{{build}}", build),
            ("{{sdk}}", &sdk),
            ("{{deepinfer}}", env!("CARGO_PKG_VERSION")),
        ];
        let mut text = template.to_owned();
        for (word, value) in words {
            text = text.replace(word, value);
        }
        // `${{ ... }}`, with a space, is the workflow's own.
        let is_word = |(at, _): &(usize, &str)| text[at + 2..].starts_with(|c: char| c.is_ascii_lowercase());
        match text.match_indices("{{").find(is_word) {
            Some((at, _)) => {
                bail!("the template of {path} has an unknown word: {}", text[at..].lines().next().unwrap_or(""))
            }
            None => Ok(text),
        }
    }
}
