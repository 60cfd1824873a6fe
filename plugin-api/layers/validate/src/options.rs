//! What the user asked for: `key=value&key=value`.

use std::fmt;
use std::path::PathBuf;

use deepinfer_plugin_api::sdk::Fault;

/// Name patterns apart by `+`, in which `*` stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Globs(Vec<String>);

impl Globs {
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| glob(pattern, name))
    }

    /// The first pattern that fits none of these names; that of everything always does.
    pub(crate) fn fitting_none(&self, names: &[&str]) -> Option<&str> {
        let idle = |pattern: &&String| *pattern != "*" && !names.iter().any(|name| glob(pattern, name));
        self.0.iter().find(idle).map(String::as_str)
    }
}

/// Whether all of `name` fits the pattern. The parts between stars are taken where they occur first, from left to right,
/// which finds a fit if there is one, without going back.
fn glob(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(begin) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(end)
}

/// What a finding does to the call that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFinding {
    /// The call fails.
    Error,
    /// A line in the log.
    Log,
}

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// One call in so many is shadowed.
    pub(crate) shadow: Option<u64>,
    /// Ops that are shadowed and recorded.
    pub(crate) ops: Globs,
    /// Whether outputs, workspaces and the edges of allocations are poisoned.
    pub(crate) poison: bool,
    /// Seed of the delays, if completions are delayed.
    pub(crate) jitter: Option<u64>,
    /// Folder for recorded calls.
    pub(crate) record: Option<PathBuf>,
    /// Calls of an op that are recorded.
    pub(crate) first: u64,
    /// Folder for the calls that a finding is about, if they are kept.
    pub(crate) bundles: Option<PathBuf>,
    /// Seed of the sampling.
    pub(crate) seed: u64,
    pub(crate) on_finding: OnFinding,
    /// File for findings, one JSON object a line.
    pub(crate) report: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shadow: None,
            ops: Globs(vec!["*".to_owned()]),
            poison: false,
            jitter: None,
            record: None,
            first: 1,
            bundles: Some(std::env::temp_dir()),
            seed: 0,
            on_finding: OnFinding::Error,
            report: None,
        }
    }
}

/// Every option, for refusals.
const LIST: &str = "check, shadow=1/N, ops=GLOB+GLOB, poison, jitter=SEED, record=DIR, first=N, bundles=DIR|none, \
                    seed=N, on=error|log, report=FILE";

impl Options {
    /// Reads the options of an entry request.
    ///
    /// # Errors
    /// One is unknown or malformed; the sentence lists what there is.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let mut options = Self::default();
        for option in text.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, "1"));
            let must = |what: &str| Fault::invalid(format!("{key} is {value:?}, but must be {what}; there is {LIST}"));
            let number = || value.parse::<u64>().map_err(|_| must("a number"));
            let switch = || match value {
                "1" => Ok(true),
                "0" => Ok(false),
                _ => Err(must("1 or 0")),
            };
            let path = || if value.is_empty() { Err(must("a path")) } else { Ok(PathBuf::from(value)) };
            match key {
                // Nothing works without the checks.
                "check" => drop(switch()?.then_some(()).ok_or_else(|| must("1, since checks are always on"))?),
                "shadow" => {
                    let rate = value.strip_prefix("1/").unwrap_or(value);
                    options.shadow = Some(
                        // A number may be written with a sign, which is none here.
                        rate.parse()
                            .ok()
                            .filter(|&n| n > 0 && (n == 1 || rate != value) && !rate.starts_with('+'))
                            .ok_or_else(|| must("1/N"))?,
                    );
                }
                "ops" if value.split('+').all(|pattern| !pattern.is_empty()) => {
                    options.ops = Globs(value.split('+').map(str::to_owned).collect());
                }
                "ops" => return Err(must("names of ops apart by +, in which * stands for anything")),
                "poison" => options.poison = switch()?,
                "jitter" => options.jitter = Some(number()?),
                "record" => options.record = Some(path()?),
                "first" => options.first = number()?,
                "bundles" => options.bundles = Some(path()?).filter(|path| path.as_os_str() != "none"),
                "seed" => options.seed = number()?,
                "report" => options.report = Some(path()?),
                "on" => {
                    options.on_finding = match value {
                        "error" => OnFinding::Error,
                        "log" => OnFinding::Log,
                        _ => return Err(must("error or log")),
                    };
                }
                _ => return Err(Fault::invalid(format!("the option {key:?} is unknown; there is {LIST}"))),
            }
        }
        Ok(options)
    }
}

impl fmt::Display for Options {
    /// The modes that are on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("check")?;
        if self.poison {
            f.write_str(", poison")?;
        }
        if let Some(n) = self.shadow {
            write!(f, ", shadow 1/{n} with seed {}", self.seed)?;
        }
        if let Some(seed) = self.jitter {
            write!(f, ", jitter with seed {seed}")?;
        }
        if let Some(folder) = &self.record {
            write!(f, ", record to {}", folder.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_their_defaults() {
        assert_eq!(Options::parse("").unwrap(), Options::default());
        assert_eq!(Options::parse("check=1").unwrap(), Options::default());
        let text =
            "shadow=1/64&ops=rms_norm+moe_*&poison=1&jitter=7&record=/r&first=3&bundles=/b&seed=9&on=log&report=/f";
        let options = Options::parse(text).unwrap();
        assert_eq!((options.shadow, options.poison, options.jitter, options.seed), (Some(64), true, Some(7), 9));
        assert_eq!((options.first, options.on_finding), (3, OnFinding::Log));
        assert_eq!((options.record, options.bundles), (Some("/r".into()), Some("/b".into())));
        assert_eq!(Options::parse("bundles=none").unwrap().bundles, None);
        assert_eq!(Options::parse("shadow=1/1").unwrap().shadow, Options::parse("shadow").unwrap().shadow);
    }

    #[test]
    fn globs() {
        let globs = Options::parse("ops=rms_norm+moe_*+*a*e").unwrap().ops;
        let taken: Vec<&str> = ["rms_norm", "rms_norm2", "moe_gate", "moe_", "gather", "stare", "rope"]
            .into_iter()
            .filter(|name| globs.matches(name))
            .collect();
        assert_eq!(taken, ["rms_norm", "moe_gate", "moe_", "stare"]);
        for (pattern, fits) in [("*", true), ("a*a", false), ("a**", true), ("*a*", true), ("ab*", false), ("", false)]
        {
            assert_eq!(glob(pattern, "a"), fits, "{pattern}");
        }
        // One that goes back at every star would not end.
        assert!(!glob(&format!("{}b", "*a".repeat(64)), &"a".repeat(1000)));
        let names = ["rms_norm", "gather"];
        assert_eq!(globs.fitting_none(&names), Some("moe_*"));
        assert_eq!(Globs(vec!["*".to_owned(), "g*".to_owned()]).fitting_none(&names), None);
        assert_eq!(Globs(vec!["*".to_owned()]).fitting_none(&[]), None);
    }

    #[test]
    fn refusals_name_the_option_and_list_what_there_is() {
        for (text, sentence) in [
            ("speed=1", "the option \"speed\" is unknown"),
            ("check=0", "check is \"0\", but must be 1, since checks are always on"),
            ("shadow=1/0", "shadow is \"1/0\", but must be 1/N"),
            ("shadow=1/+5", "shadow is \"1/+5\", but must be 1/N"),
            ("shadow=64", "shadow is \"64\", but must be 1/N"),
            ("ops=a++b", "ops is \"a++b\", but must be names of ops"),
            ("poison=yes", "poison is \"yes\", but must be 1 or 0"),
            ("jitter=x", "jitter is \"x\", but must be a number"),
            ("on=fire", "on is \"fire\", but must be error or log"),
            ("report=", "report is \"\", but must be a path"),
        ] {
            let message = Options::parse(text).unwrap_err().message;
            assert!(message.starts_with(sentence) && message.ends_with(LIST), "{message}");
        }
    }
}
