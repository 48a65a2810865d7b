//! Typed register access costs nothing: it compiles to what a raw volatile access does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[test]
fn typed_register_access_compiles_to_the_same_instruction_as_a_raw_volatile_access() {
    let functions = functions_of_the_example();
    let mut compared = 0;
    for (name, typed) in &functions {
        let Some(rest) = name.strip_prefix("typed_") else { continue };
        let raw = functions.get(&format!("raw_{rest}")).unwrap_or_else(|| panic!("no raw_{rest}"));
        assert_eq!(typed, raw, "{name} (left) and raw_{rest} (right)");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(typed.len(), 3, "{name} loads its pointer, makes one access and returns: {typed:?}");
        }
        compared += 1;
    }
    assert_eq!(compared, 8, "four widths, read and written: {:?}", functions.keys());
}

/// The instructions of each function of `hal/examples/registers.rs`, by its name.
fn functions_of_the_example() -> BTreeMap<String, Vec<String>> {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("registers.s");
    // Link-time optimisation would spread the functions over several files.
    let build = Command::new(env!("CARGO"))
        .current_dir(vdk_tests::sources::root())
        .args(["rustc", "--locked", "--offline", "--quiet", "--release", "--package", "vdk-hal"])
        .args(["--example", "registers", "--config", "profile.release.lto=\"off\"", "--", "--emit"])
        .arg(format!("asm={}", output.display()))
        .output()
        .unwrap();
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    let mut functions = BTreeMap::new();
    let mut current = None;
    for line in std::fs::read_to_string(&output).unwrap().lines() {
        let code = line.split(COMMENT).next().unwrap_or_default().trim();
        if let Some(label) = code.strip_suffix(':') {
            if !label.starts_with('.') {
                current = function_name(label);
            }
        } else if let Some(name) = &current
            && !code.is_empty()
            && !code.starts_with('.')
        {
            functions.entry(String::clone(name)).or_insert_with(Vec::new).push(normalised(code));
        }
    }
    functions
}

/// The name of a function of the example in a mangled symbol: its length and the name
/// itself stand in it.
fn function_name(symbol: &str) -> Option<String> {
    let start = symbol.find("typed_").or_else(|| symbol.find("raw_"))?;
    let digits = symbol[..start].len() - symbol[..start].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let length: usize = symbol[start - digits..start].parse().ok()?;
    symbol.get(start..start + length).map(str::to_owned)
}

/// The instruction with single spaces, and without the place of the pointer in the value
/// that the first argument points to.
fn normalised(code: &str) -> String {
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(at) = code.find("(%rdi)") {
        let before = code[..at].trim_end_matches(|c: char| c.is_ascii_digit());
        return format!("{before}{}", &code[at..]);
    }
    if let (Some(at), Some(end)) = (code.find("[x0, #"), code.find(']')) {
        return format!("{}[x0]{}", &code[..at], &code[end + 1..]);
    }
    code
}

/// What begins a comment in the assembler of this architecture.
const COMMENT: &str = if cfg!(target_arch = "x86_64") { "#" } else { "//" };
