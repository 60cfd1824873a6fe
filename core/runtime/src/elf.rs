//! Whether a file is a whole shared library of this machine.
//!
//! The dynamic linker maps a file and reads it where the file says; if a download or copy was cut off there, the system
//! kills the process (`SIGBUS`), and no error reaches anybody. So the places are compared with the file's size first.
//!
//! Layout: System V ABI, chapters "Object Files" and "Program Loading"; numbers of machines as in Linux' `elf-em.h`.

use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::regular::open_regular;

const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: u64 = 64;
const MAGIC: &[u8; 4] = b"\x7fELF";
/// Bytes 4 and 5 of the file: 64-bit, little-endian.
const CLASS_AND_ORDER: [u8; 2] = [2, 1];
const SHARED_OBJECT: u16 = 3;

/// Why a file is not to be given to the dynamic linker; each is the end of a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ElfError {
    /// It cannot be opened or read.
    Unreadable(String),
    /// It is something else.
    Other(String),
    /// Its end is missing.
    CutOff(String),
}

/// Reads the headers of a file.
///
/// # Errors
/// [`ElfError`].
pub(crate) fn check(path: &Path) -> Result<(), ElfError> {
    let unreadable = |e: std::io::Error| ElfError::Unreadable(e.to_string());
    let file = open_regular(path).map_err(unreadable)?;
    let mut file = file.ok_or_else(|| ElfError::Other("it is not a regular file".to_owned()))?;
    let size = file.metadata().map_err(unreadable)?.len();
    check_headers(&mut file, size)
}

fn check_headers(file: &mut (impl Read + Seek), size: u64) -> Result<(), ElfError> {
    let mut header = [0; FILE_HEADER];
    let present = read_up_to(file, &mut header)?;
    if !header[..present].starts_with(&MAGIC[..present.min(MAGIC.len())]) || present == 0 {
        let problem = if present == 0 { "it is empty" } else { "it does not begin as an ELF file does" };
        return Err(ElfError::Other(problem.to_owned()));
    }
    let fits = |what: &str, begin: u64, bytes: u64| match begin.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        end => {
            let end = end.map_or_else(|| "an impossible place".to_owned(), |end| format!("byte {end}"));
            Err(ElfError::CutOff(format!("{what} ends at {end}, but the file has {size} bytes")))
        }
    };
    fits("its header", 0, FILE_HEADER as u64)?;
    check_kind(&header)?;

    let (programs_at, program_bytes, programs) = (long_at(&header, 32), short_at(&header, 54), short_at(&header, 56));
    let (sections_at, section_bytes, sections) = (long_at(&header, 40), short_at(&header, 58), short_at(&header, 60));
    if programs == 0 || program_bytes != PROGRAM_HEADER as u64 {
        return Err(ElfError::Other(format!(
            "it has {programs} program headers of {program_bytes} bytes, but must have some, of {PROGRAM_HEADER} bytes"
        )));
    }
    fits("its table of program headers", programs_at, programs * program_bytes)?;
    file.seek(SeekFrom::Start(programs_at)).map_err(|e| ElfError::Unreadable(e.to_string()))?;
    for index in 0..programs {
        let mut program = [0; PROGRAM_HEADER];
        read_up_to(file, &mut program)?;
        let (begin, bytes) = (long_at(&program, 8), long_at(&program, 32));
        if bytes > 0 {
            fits(&format!("segment {index} of {programs}"), begin, bytes)?;
        }
    }
    // The linker does not read sections, but linkers write their table last: a file without its end lacks it. A count of
    // 0 with a table means that the first entry holds the count.
    if sections_at != 0 {
        fits("its table of sections", sections_at, sections.max(1) * section_bytes.max(SECTION_HEADER))?;
    }
    Ok(())
}

/// Class, byte order, type and machine.
fn check_kind(header: &[u8; FILE_HEADER]) -> Result<(), ElfError> {
    let other = |problem: String| Err(ElfError::Other(problem));
    if header[4..6] != CLASS_AND_ORDER {
        return other("it is not a 64-bit little-endian ELF file".to_owned());
    }
    let kind = u16::from_le_bytes([header[16], header[17]]);
    if kind != SHARED_OBJECT {
        return other(format!("it is an ELF file of type {kind}, but a shared object has type {SHARED_OBJECT}"));
    }
    let machine = u16::from_le_bytes([header[18], header[19]]);
    match machine_of(std::env::consts::ARCH) {
        Some(own) if own != machine => {
            let arch = std::env::consts::ARCH;
            other(format!("it is for ELF machine {machine}, but this machine is {own} ({arch})"))
        }
        _ => Ok(()),
    }
}

/// The number of an architecture in ELF files; `None` leaves the judgement to the dynamic linker.
fn machine_of(arch: &str) -> Option<u16> {
    match arch {
        "x86_64" => Some(62),
        "aarch64" => Some(183),
        "riscv64" => Some(243),
        "loongarch64" => Some(258),
        "powerpc64" => Some(21),
        _ => None,
    }
}

fn short_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u16::from_le_bytes(std::array::from_fn(|i| bytes[at + i])))
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Fills `buffer` as far as the file goes; returns how far.
fn read_up_to(file: &mut impl Read, buffer: &mut [u8]) -> Result<usize, ElfError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(ElfError::Unreadable(e.to_string())),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A library with one segment of 100 bytes behind the headers and a table of two sections at the end.
    fn library() -> Vec<u8> {
        let mut file = vec![0; FILE_HEADER + PROGRAM_HEADER + 100 + 2 * SECTION_HEADER as usize];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(4, &CLASS_AND_ORDER);
        put(16, &SHARED_OBJECT.to_le_bytes());
        put(18, &machine_of(std::env::consts::ARCH).unwrap_or(0).to_le_bytes());
        put(32, &(FILE_HEADER as u64).to_le_bytes());
        put(40, &((FILE_HEADER + PROGRAM_HEADER + 100) as u64).to_le_bytes());
        put(54, &(PROGRAM_HEADER as u16).to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(58, &(SECTION_HEADER as u16).to_le_bytes());
        put(60, &2u16.to_le_bytes());
        put(FILE_HEADER + 8, &((FILE_HEADER + PROGRAM_HEADER) as u64).to_le_bytes());
        put(FILE_HEADER + 32, &100u64.to_le_bytes());
        file
    }

    fn of(file: &[u8]) -> Result<(), ElfError> {
        check_headers(&mut Cursor::new(file), file.len() as u64)
    }

    #[test]
    fn a_whole_library_passes_and_every_shorter_one_is_cut_off() {
        let file = library();
        assert_eq!(of(&file), Ok(()));
        for length in 1..file.len() {
            assert!(matches!(of(&file[..length]), Err(ElfError::CutOff(_))), "{length}: {:?}", of(&file[..length]));
        }
        let sentence = |length: usize| match of(&file[..length]) {
            Err(ElfError::CutOff(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(sentence(10), "its header ends at byte 64, but the file has 10 bytes");
        assert_eq!(sentence(100), "its table of program headers ends at byte 120, but the file has 100 bytes");
        assert_eq!(sentence(219), "segment 0 of 1 ends at byte 220, but the file has 219 bytes");
        assert_eq!(sentence(347), "its table of sections ends at byte 348, but the file has 347 bytes");
    }

    #[test]
    fn places_beyond_all_numbers_are_cut_off_too() {
        let mut file = library();
        file[FILE_HEADER + 8..FILE_HEADER + 16].fill(0xFF);
        let Err(ElfError::CutOff(text)) = of(&file) else { panic!("accepted") };
        assert!(text.contains("an impossible place"), "{text}");
    }

    #[test]
    fn other_files_are_told_apart() {
        let changed = |at: usize, byte: u8| {
            let mut file = library();
            file[at] = byte;
            match of(&file) {
                Err(ElfError::Other(text)) => text,
                other => panic!("{other:?}"),
            }
        };
        assert!(changed(0, b'M').contains("does not begin as an ELF file"));
        assert!(changed(4, 1).contains("not a 64-bit little-endian"));
        assert!(changed(5, 2).contains("not a 64-bit little-endian"));
        assert!(changed(16, 2).contains("type 2, but a shared object has type 3"));
        assert!(changed(54, 32).contains("1 program headers of 32 bytes"));
        assert!(changed(56, 0).contains("0 program headers"));
        if machine_of(std::env::consts::ARCH).is_some() {
            assert!(changed(18, 8).contains("it is for ELF machine 8, but this machine is"));
        }
        assert_eq!(of(b""), Err(ElfError::Other("it is empty".to_owned())));
    }

    #[test]
    fn libraries_without_sections_pass() {
        let mut file = library();
        file[40..48].fill(0);
        assert_eq!(of(&file[..220]), Ok(()));
    }

    #[test]
    fn only_regular_files_are_opened() {
        assert_eq!(check(Path::new("/dev/null")), Err(ElfError::Other("it is not a regular file".to_owned())));
        assert!(matches!(check(Path::new("/nonexistent")), Err(ElfError::Unreadable(_))));
    }
}
