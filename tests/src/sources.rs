//! The text of this repository, for tests that hold its rules.
//!
//! [`SourceFile::code`] is the text with comments and literals blanked out, so that a rule
//! about code does not stumble over prose. Lines keep their numbers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// One file of the repository.
#[derive(Debug)]
pub struct SourceFile {
    /// The path from the root of the repository, with `/` between its parts.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Whether the whole file is test code: in a folder of tests, or a module of tests.
    pub is_test: bool,
}

impl SourceFile {
    /// The text with the insides of comments, strings and character literals blanked out.
    #[must_use]
    pub fn code(&self) -> String {
        blank_prose(&self.text)
    }

    /// How many lines come before the first test module that stands in the file.
    #[must_use]
    pub fn lines_before_tests(&self) -> usize {
        let inline = self.modules_of_tests().find(|(_, declaration)| declaration.ends_with('{'));
        inline.map_or_else(|| self.text.lines().count(), |(line, _)| line)
    }

    /// The files and folders of the test modules that the file declares.
    fn paths_of_test_modules(&self) -> Vec<String> {
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let inside = if ["lib", "main", "mod"].contains(&name) { folder } else { stem };
        self.modules_of_tests()
            .filter_map(|(_, declaration)| declaration.strip_suffix(';')?.split_whitespace().next_back())
            .flat_map(|module| [format!("{inside}/{module}.rs"), format!("{inside}/{module}/")])
            .collect()
    }

    /// The lines after a `cfg` attribute with `test` that declare a module, each with the
    /// number of lines before the attribute.
    fn modules_of_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let pairs = self.text.lines().zip(self.text.lines().skip(1)).enumerate();
        pairs.filter_map(|(number, (line, next))| {
            let declares = next.split_whitespace().any(|word| word == "mod");
            (line.trim().starts_with("#[cfg(") && line.contains("test") && declares)
                .then_some((number, next.trim()))
        })
    }
}

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    // The folder of this crate is one below the root.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("..")).to_path_buf()
}

/// Every file of the repository, build output left out, in the order of their paths.
///
/// # Errors
///
/// When a folder or a file cannot be read.
pub fn files() -> anyhow::Result<Vec<SourceFile>> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if name != "target" && name != ".git" {
                    folders.push(path);
                }
                continue;
            }
            if name == ".git" {
                // A work tree has a file of this name, with a path of this machine in it.
                continue;
            }
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let relative = path.strip_prefix(&root)?.to_string_lossy().replace('\\', "/");
            let is_test = ["tests", "benches"].iter().any(|folder| {
                relative.starts_with(&format!("{folder}/")) || relative.contains(&format!("/{folder}/"))
            });
            let text = String::from_utf8_lossy(&bytes).into_owned();
            found.push(SourceFile { path: relative, text, is_test });
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    let modules: Vec<String> = found.iter().flat_map(SourceFile::paths_of_test_modules).collect();
    for file in &mut found {
        file.is_test |= modules
            .iter()
            .any(|path| file.path == *path || (path.ends_with('/') && file.path.starts_with(path)));
    }
    Ok(found)
}

/// Every Rust file of the workspace's crates. The cases that must not compile are not
/// among them.
///
/// # Errors
///
/// As [`files`].
pub fn rust_files() -> anyhow::Result<Vec<SourceFile>> {
    let mut found = files()?;
    found.retain(|file| file.path.ends_with(".rs") && !file.path.contains("/compile_fail/"));
    Ok(found)
}

/// Blanks out comments and literals; keeps every line break and every column.
fn blank_prose(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or('\0');
    let mut code = String::with_capacity(text.len());
    let mut index = 0;
    while index < characters.len() {
        let end = match (at(index), at(index + 1)) {
            ('/', '/') => find(&characters, index, |rest| rest.starts_with(&['\n'])),
            ('/', '*') => end_of_block_comment(&characters, index),
            ('"', _) => end_of_string(&characters, index + 1),
            ('r', '"' | '#') if index == 0 || !is_word(at(index - 1)) || at(index - 1) == 'b' => {
                end_of_raw_string(&characters, index).unwrap_or(index)
            }
            ('\'', '\\') => find(&characters, index + 3, |rest| rest.starts_with(&['\''])) + 1,
            ('\'', _) if at(index + 2) == '\'' => index + 3,
            _ => index,
        };
        if end == index {
            code.push(at(index));
            index += 1;
        } else {
            for position in index..end.min(characters.len()) {
                code.push(if at(position) == '\n' { '\n' } else { ' ' });
            }
            index = end;
        }
    }
    code
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The first index from `start` on where `found` holds of the rest, or the end.
fn find(characters: &[char], start: usize, found: impl Fn(&[char]) -> bool) -> usize {
    (start..characters.len()).find(|index| found(&characters[*index..])).unwrap_or(characters.len())
}

fn end_of_block_comment(characters: &[char], start: usize) -> usize {
    let (mut index, mut depth) = (start, 0);
    while index < characters.len() {
        let rest = &characters[index..];
        if rest.starts_with(&['/', '*']) {
            depth += 1;
            index += 2;
        } else if rest.starts_with(&['*', '/']) {
            depth -= 1;
            index += 2;
            if depth == 0 {
                return index;
            }
        } else {
            index += 1;
        }
    }
    index
}

fn end_of_string(characters: &[char], start: usize) -> usize {
    let mut index = start;
    while index < characters.len() {
        match characters[index] {
            '\\' => index += 2,
            '"' => return index + 1,
            _ => index += 1,
        }
    }
    index
}

/// The end of `r"…"` or `r#"…"#` at `start`; `None` when it is something else.
fn end_of_raw_string(characters: &[char], start: usize) -> Option<usize> {
    let hashes = characters[start + 1..].iter().take_while(|character| **character == '#').count();
    let open = start + 1 + hashes;
    if characters.get(open) != Some(&'"') {
        return None;
    }
    let mut close = vec!['"'];
    close.extend(std::iter::repeat_n('#', hashes));
    Some(find(characters, open + 1, |rest| rest.starts_with(&close)) + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned(), is_test: false }
    }

    #[test]
    fn prose_is_blanked_and_code_is_kept() {
        for (text, code) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("un\"safe") g"#, "f(          ) g"),
            ("r#\"a\"b\"# c", "         c"),
            ("br\"a\" c", "b     c"),
            ("r#type c", "r#type c"),
            ("'\"' 'a 'b", "    'a 'b"),
            ("'\\'' '\\n' x", "          x"),
            ("\"a\nb\" c", "  \n   c"),
            ("for_\"x\"", "for_   "),
        ] {
            assert_eq!(file("a.rs", text).code(), code, "{text}");
        }
    }

    #[test]
    fn lines_are_counted_up_to_the_first_test_module() {
        let inline = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(file("hal/src/a.rs", inline).lines_before_tests(), 2);
        let apart = "#[cfg(all(test, loom))]\nmod loom_tests;\nfn a() {}\n";
        assert_eq!(file("hal/src/a.rs", apart).lines_before_tests(), 3);
    }

    #[test]
    fn modules_of_tests_are_found_where_rust_looks_for_them() {
        let text = "#[cfg(test)]\npub(crate) mod fake;\nmod other;\n";
        let paths = ["hal/src/a/fake.rs".to_owned(), "hal/src/a/fake/".to_owned()];
        assert_eq!(file("hal/src/a.rs", text).paths_of_test_modules(), paths);
        assert_eq!(file("hal/src/a/mod.rs", text).paths_of_test_modules(), paths);
    }

    #[test]
    fn the_repository_is_found() {
        let paths: Vec<String> = rust_files().unwrap().into_iter().map(|file| file.path).collect();
        assert!(paths.contains(&"hal/src/lib.rs".to_owned()), "{paths:?}");
        assert!(paths.iter().all(|path| !path.starts_with("target/")), "{paths:?}");
    }
}
