//! Files of calls: those that parity keeps of failures, and those that `deepinfer replay` makes again.

use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use deepinfer_oracle::bundle::EXTENSION;
use deepinfer_oracle::{Bundle, Found};
use deepinfer_parity::{Case, Evidence, Failure};
use deepinfer_runtime::open_regular;

use super::task::Task;
use crate::terminal;

/// Largest file that is taken for a bundle.
const MOST_BYTES: u64 = 1 << 30;

/// Where the bundle of a case lies in a folder.
pub(crate) fn path_of(folder: &Path, case: &Case) -> PathBuf {
    folder.join(format!("{}.seed-{}.{EXTENSION}", case.to_string().replace('/', "."), case.seed))
}

/// The whole path of a folder for bundles, which is made if it is not there.
///
/// # Errors
/// It cannot be made.
pub(crate) fn folder(path: &Path) -> anyhow::Result<PathBuf> {
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.with_context(|| format!("cannot write bundles to {}", path.display()))
}

/// Removes what an earlier run has kept of these cases: what is there after this run is of this run.
///
/// # Errors
/// A file cannot be removed.
pub(crate) fn remove_old(folder: &Path, tasks: &[Task]) -> anyhow::Result<()> {
    for task in tasks {
        let Task::Op(case) = task else { continue };
        let path = path_of(folder, case);
        match std::fs::remove_file(&path) {
            // Another run may have removed it meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            removed => removed.with_context(|| format!("cannot replace {}", path.display()))?,
        }
    }
    Ok(())
}

/// Reads a bundle.
///
/// # Errors
/// The file cannot be read, or is no bundle.
pub(crate) fn read(path: &Path) -> anyhow::Result<Bundle> {
    let bytes = read_file(path, MOST_BYTES)?;
    Bundle::from_bytes(&bytes).with_context(|| path.display().to_string())
}

/// Reads a regular file of at most so many bytes.
///
/// # Errors
/// It cannot be read, is longer, or is something that has no end.
pub(crate) fn read_file(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let name = || format!("cannot read {}", path.display());
    let file = open_regular(path).with_context(name)?;
    let file = file.with_context(|| format!("{} is not a regular file", path.display()))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).with_context(name)?;
    anyhow::ensure!(bytes.len() as u64 <= most, "{} has more than {most} bytes, which is too long", path.display());
    Ok(bytes)
}

/// Writes a bundle. Who reads it meanwhile, or writes the same one, finds a whole file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(path: &Path, bundle: &Bundle) -> anyhow::Result<()> {
    let name = || format!("cannot write {}", path.display());
    let bytes = bundle.to_bytes().with_context(name)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(name)?;
    file.write_all(&bytes).with_context(name)?;
    // Temporary files are for their owner alone, bundles for whoever may read what is made here.
    let readable = Permissions::from_mode(0o644);
    file.as_file().set_permissions(readable).with_context(name)?;
    file.persist(path).map(drop).with_context(name)
}

/// Keeps what went wrong in a case. Should it not be possible, the case has failed all the same.
pub(crate) fn keep(folder: &Path, case: &Case, failure: &Failure, evidence: Evidence, backend: String) {
    let found = evidence.found.map(|outputs| Found { backend, outputs });
    let (name, problem) = (Some(case.to_string()), Some(failure.to_string()));
    let bundle = Bundle { case: name, seed: Some(case.seed), problem, found, call: evidence.call };
    if let Err(error) = write(&path_of(folder, case), &bundle) {
        terminal::warning(&format!("{error:#}"));
    }
}

/// The bundle of a case that failed: the one that its process has kept, or else, if it did not live to do so, one that is
/// made here without results. `None` where the call is wrong on purpose.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn of_failure(folder: &Path, case: &Case, failure: &Failure) -> anyhow::Result<Option<PathBuf>> {
    let path = path_of(folder, case);
    if path.exists() {
        return Ok(Some(path));
    }
    let Some(bundle) = case.bundle() else { return Ok(None) };
    write(&path, &Bundle { problem: Some(failure.to_string()), ..bundle })?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use deepinfer_parity::{Check, cases};

    use super::*;

    #[test]
    fn two_runs_may_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let case = cases("rstd", Check::Value, 0, Some(1)).remove(0);
        let (path, tasks) = (path_of(folder.path(), &case), [Task::Op(case)]);
        let bundle = case.bundle().unwrap();
        // What is not there, because the other has removed it, is no error.
        remove_old(folder.path(), &tasks).unwrap();
        write(&path, &bundle).unwrap();
        write(&path, &bundle).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(read(&path).unwrap().call.to_string(), bundle.call.to_string());
        remove_old(folder.path(), &tasks).unwrap();
        assert!(!path.exists());
    }
}
