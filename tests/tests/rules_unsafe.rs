//! Where `unsafe` and atomics may be, and what must be said there.

use vdk_tests::sources::{SourceFile, rust_files};

#[test]
fn only_hal_has_unsafe_code() {
    let offenders: Vec<String> = rust_files()
        .unwrap()
        .iter()
        .filter(|file| !file.path.starts_with("hal/"))
        .flat_map(|file| lines_with_word(file, "unsafe"))
        .collect();
    assert_eq!(offenders, Vec::<String>::new());
}

#[test]
fn every_other_crate_forbids_unsafe_code() {
    let roots = [
        "descriptors/src/lib.rs",
        "driver/cli/src/main.rs",
        "driver/src/lib.rs",
        "firmware-stubs/src/lib.rs",
        "iommu/src/lib.rs",
        "tests/src/lib.rs",
    ];
    let files = rust_files().unwrap();
    for root in roots {
        let file = files.iter().find(|file| file.path == root).expect(root);
        assert!(file.code().contains("#![forbid(unsafe_code)]"), "{root} must forbid unsafe code");
    }
}

#[test]
fn a_file_with_unsafe_code_says_why() {
    let with_unsafe: Vec<SourceFile> = rust_files()
        .unwrap()
        .into_iter()
        .filter(|file| !lines_with_word(file, "unsafe").is_empty())
        .collect();
    assert!(with_unsafe.len() > 3, "hal has unsafe code; is the search broken?");
    let silent: Vec<&str> = with_unsafe
        .iter()
        .filter(|file| {
            !file.text.lines().any(|line| line.starts_with("// UNSAFETY: "))
                || !file.code().contains("#![expect(unsafe_code, reason = ")
        })
        .map(|file| file.path.as_str())
        .collect();
    assert_eq!(silent, Vec::<&str>::new(), "opt in with an UNSAFETY line and an expect attribute");
}

#[test]
fn every_atomic_ordering_says_what_it_pairs_with() {
    let orders = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
    assert_explained("ORDERING:", 8, |line| {
        orders.iter().any(|order| has_word(line, order) && line.contains(&format!("Ordering::{order}")))
    });
}

#[test]
fn every_panic_of_library_code_is_proven_impossible() {
    assert_explained("PANIC:", 8, |line| {
        [".expect(", ".expect_err(", "unreachable!(", "panic!("].iter().any(|call| line.contains(call))
    });
    let unwraps: Vec<String> =
        library_lines(|line| line.contains(".unwrap()") || line.contains(".unwrap_err()"))
            .map(|(file, number)| format!("{}:{number}", file.path))
            .collect();
    assert_eq!(unwraps, Vec::<String>::new(), "library code has no unwrap");
}

/// Fails unless each line of library code that `applies` has a comment with `mark` on it
/// or on one of the `window` lines above it.
fn assert_explained(mark: &str, window: usize, applies: impl Fn(&str) -> bool) {
    let silent: Vec<String> = library_lines(applies)
        .filter(|(file, number)| {
            let first = number.saturating_sub(window + 1);
            !file.text.lines().skip(first).take(number - first).any(|line| line.contains(mark))
        })
        .map(|(file, number)| format!("{}:{number}", file.path))
        .collect();
    assert_eq!(silent, Vec::<String>::new(), "say {mark} at most {window} lines above");
}

/// The lines of code outside tests that `applies`, with their numbers from 1.
fn library_lines(applies: impl Fn(&str) -> bool) -> impl Iterator<Item = (SourceFile, usize)> {
    let mut found = Vec::new();
    for file in rust_files().unwrap() {
        if file.is_test || file.path.contains("/examples/") {
            continue;
        }
        let (code, limit) = (file.code(), file.lines_before_tests());
        let numbers: Vec<usize> = code
            .lines()
            .take(limit)
            .enumerate()
            .filter(|(_, line)| applies(line))
            .map(|(index, _)| index + 1)
            .collect();
        for number in numbers {
            found.push((
                SourceFile { path: file.path.clone(), text: file.text.clone(), is_test: false },
                number,
            ));
        }
    }
    found.into_iter()
}

fn lines_with_word(file: &SourceFile, word: &str) -> Vec<String> {
    let code = file.code();
    let hits = code.lines().enumerate().filter(|(_, line)| has_word(line, word));
    hits.map(|(index, _)| format!("{}:{}", file.path, index + 1)).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}
