//! Names, sizes and texts: what a file may be called, how long it may be, and what must
//! not be in it.

use std::collections::BTreeSet;

use vdk_tests::sources::{SourceFile, files, root, rust_files};

#[test]
fn files_have_at_most_500_lines_before_their_tests() {
    let long: Vec<String> = rust_files()
        .unwrap()
        .iter()
        .filter(|file| {
            !file.is_test || ["tests/src/", "tests/bench/"].iter().any(|own| file.path.starts_with(own))
        })
        .map(|file| (file, file.lines_before_tests()))
        .filter(|(_, lines)| *lines > 500)
        .map(|(file, lines)| format!("{}: {lines}", file.path))
        .collect();
    assert_eq!(long, Vec::<String>::new());
}

#[test]
fn top_level_folders_are_the_designed_ones() {
    let expected: BTreeSet<String> =
        [".ci", "descriptors", "driver", "firmware-stubs", "hal", "iommu", "tests"]
            .into_iter()
            .map(str::to_owned)
            .collect();
    let found: BTreeSet<String> = files()
        .unwrap()
        .iter()
        .filter_map(|file| file.path.split_once('/'))
        .map(|(folder, _)| folder.to_owned())
        .collect();
    assert_eq!(found, expected, "folders of {}", root().display());
}

#[test]
fn names_say_what_a_thing_does() {
    let mut vague = Vec::new();
    for file in rust_files().unwrap() {
        let stem = file.path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap();
        if is_vague(stem) {
            vague.push(format!("{}: file name", file.path));
        }
        for (name, number) in declared(&file, &["mod", "struct", "enum", "union", "trait", "type"]) {
            if is_vague(&name) {
                vague.push(format!("{}:{number}: {name}", file.path));
            }
        }
        for (name, number) in declared(&file, &["fn"]) {
            if ["get_", "do_", "test_"].iter().any(|prefix| name.starts_with(prefix)) {
                vague.push(format!("{}:{number}: fn {name}", file.path));
            }
        }
    }
    assert_eq!(vague, Vec::<String>::new());
}

#[test]
fn vague_names_are_recognised() {
    for name in ["base", "dma_utils", "QueueManager", "common", "IoHelper"] {
        assert!(is_vague(name), "{name}");
    }
    for name in ["database", "Commonality", "BarIndex", "reutilise"] {
        assert!(!is_vague(name), "{name}");
    }
    let text = "pub(crate) struct A;\n// mod b\nenum C {}".to_owned();
    let file = SourceFile { path: String::new(), text, is_test: false };
    assert_eq!(declared(&file, &["struct", "enum", "mod"]), [("A".to_owned(), 1), ("C".to_owned(), 3)]);
}

#[test]
fn nothing_is_left_to_be_done_or_commented_out() {
    let unfinished = ["todo!", "unimplemented!", "dbg!"];
    let mut found = Vec::new();
    for file in rust_files().unwrap() {
        for (index, line) in file.code().lines().enumerate() {
            if unfinished.iter().any(|call| line.contains(call)) {
                found.push(format!("{}:{}", file.path, index + 1));
            }
        }
        for (index, line) in file.text.lines().enumerate() {
            let line = line.trim();
            let marked = ["TODO", "FIXME", "XXX"].iter().any(|mark| line.contains(mark));
            let comment = line.strip_prefix("// ").unwrap_or_default();
            let disabled = (comment.starts_with("let ") && comment.ends_with(';'))
                || (comment.starts_with("fn ") && comment.ends_with('{'));
            if (marked && file.path != "tests/tests/rules_text.rs") || disabled {
                found.push(format!("{}:{}", file.path, index + 1));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn no_file_names_a_machine_or_a_package_host() {
    // In two parts each, so that this file passes its own test.
    let forbidden = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("index.crates", ".io"),
        concat!("static.crates", ".io"),
        concat!("deb.deb", "ian.org"),
        concat!("pyp", "i.org"),
        concat!("art", "ifactory"),
    ];
    let mut found = Vec::new();
    for file in files().unwrap() {
        for (index, line) in file.text.lines().enumerate() {
            for text in forbidden.iter().filter(|text| line.contains(**text)) {
                found.push(format!("{}:{}: {text}", file.path, index + 1));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn documents_name_files_that_exist() {
    let mut missing = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2).map(str::to_owned);
        let linked = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned);
        let folders = ["hal/", "iommu/", "descriptors/", "driver/", "firmware-stubs/", "tests/"];
        for path in quoted.chain(linked).filter(|path| folders.iter().any(|folder| path.starts_with(folder)))
        {
            let path = path.split_whitespace().next().unwrap_or_default();
            for alternative in alternatives(path) {
                if !root().join(&alternative).exists() {
                    missing.push(format!("{document}: {alternative}"));
                }
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn no_message_repeats_the_text_of_its_source() {
    let mut repeated = Vec::new();
    for file in rust_files().unwrap().iter().filter(|file| !file.is_test) {
        repeated.extend(repeated_sources(&file.text).into_iter().map(|line| format!("{}:{line}", file.path)));
    }
    assert_eq!(repeated, Vec::<String>::new(), "who prints the chain of such an error prints a text twice");
}

#[test]
fn messages_that_repeat_their_source_are_recognised() {
    let text = "enum E {\n    #[error(\"{0}\")]\n    A(#[from] B),\n    #[error(\"at {at}: {source}\")]\n    C {\n        \
                at: u8,\n        source: B,\n    },\n    #[error(\"no {at}\")]\n    D {\n        source: B,\n    },\n    \
                #[error(\"{0}\")]\n    F(B),\n    #[error(transparent)]\n    G(#[from] B),\n}\n";
    assert_eq!(repeated_sources(text), [2, 4]);
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((names, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}

/// The lines of messages that have the text of what the error also gives as its source.
fn repeated_sources(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for (start, attribute) in text.match_indices("#[error(") {
        let rest = &text[start + attribute.len()..];
        let Some((message, rest)) = rest.split_once(")]") else { continue };
        let ends = ["#[error(", "\n}"].map(|end| rest.find(end).unwrap_or(rest.len()));
        let variant = &rest[..ends.into_iter().min().unwrap_or(rest.len())];
        let names_first =
            message.contains("{0") && (variant.contains("(#[from]") || variant.contains("(#[source]"));
        let names_field = message.contains("{source") && variant.contains("source:");
        if names_first || names_field {
            lines.push(text[..start].lines().count() + usize::from(text[..start].ends_with('\n')));
        }
    }
    lines
}

/// The names declared after one of `keywords`, with their line numbers.
fn declared(file: &SourceFile, keywords: &[&str]) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    for (index, line) in file.code().lines().enumerate() {
        let mut words =
            line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            if keywords.contains(&word)
                && let Some(name) = words.next()
            {
                names.push((name.to_owned(), index + 1));
            }
        }
    }
    names
}

/// Whether a word of the name says nothing about what the thing does.
fn is_vague(name: &str) -> bool {
    let mut words = vec![String::new()];
    for character in name.chars() {
        if character == '_' || character == '-' || character.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(character.to_lowercase().filter(|c| c.is_alphanumeric()));
        }
    }
    let vague = ["manager", "helper", "helpers", "util", "utils", "common", "base"];
    words.iter().any(|word| vague.contains(&word.as_str()))
}
