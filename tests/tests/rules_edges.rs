//! Which crate may depend on which, read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

type Names = BTreeSet<String>;

#[test]
fn crates_depend_on_each_other_exactly_as_designed() {
    let expected: BTreeMap<String, Names> = [
        ("vdk-hal", &[][..]),
        ("vdk-iommu", &["vdk-hal"]),
        ("vdk-descriptors", &["vdk-hal"]),
        ("vdk-driver", &["vdk-descriptors", "vdk-hal", "vdk-iommu"]),
        ("vdk-firmware-stubs", &["vdk-descriptors", "vdk-hal", "vdk-iommu"]),
        ("vdk", &["vdk-driver", "vdk-firmware-stubs"]),
        ("vdk-tests", &["vdk-descriptors", "vdk-driver", "vdk-firmware-stubs", "vdk-hal", "vdk-iommu"]),
    ]
    .into_iter()
    .map(|(name, edges)| (name.to_owned(), edges.iter().map(|edge| (*edge).to_owned()).collect()))
    .collect();
    let packages = workspace_packages();
    let found: BTreeMap<String, Names> =
        packages.iter().map(|package| (name(package), ours(package, |kind| kind.is_null()))).collect();
    assert_eq!(found, expected);
}

#[test]
fn tests_of_a_crate_see_no_more_of_vdk_than_the_crate() {
    for package in workspace_packages() {
        let normal = ours(&package, |kind| kind.is_null());
        let extra: Vec<String> =
            ours(&package, |kind| !kind.is_null()).difference(&normal).cloned().collect();
        assert_eq!(extra, Vec::<String>::new(), "dev or build dependencies of {}", name(&package));
    }
}

#[test]
fn a_driver_and_the_stub_of_its_device_share_only_the_layout() {
    let reachable = |from: &str| {
        let edges: BTreeMap<String, Names> =
            workspace_packages().iter().map(|package| (name(package), ours(package, |_| true))).collect();
        let mut seen = Names::new();
        let mut next = vec![from.to_owned()];
        while let Some(crate_name) = next.pop() {
            next.extend(edges[&crate_name].iter().filter(|edge| seen.insert((*edge).clone())).cloned());
        }
        seen
    };
    assert!(!reachable("vdk-driver").contains("vdk-firmware-stubs"));
    assert!(!reachable("vdk-firmware-stubs").contains("vdk-driver"));
}

#[test]
fn hal_can_be_embedded_alone() {
    let hal = workspace_packages().into_iter().find(|package| name(package) == "vdk-hal").unwrap();
    let direct: Names =
        dependencies(&hal).filter(|dependency| dependency["kind"].is_null()).map(name).collect();
    // `loom` is built under `--cfg loom` only; `serde_json` reads what a vfio-user peer says.
    // The bindings are layouts only: they have no code and no dependency.
    let allowed = [
        "bitfield",
        "iommufd-bindings",
        "libc",
        "log",
        "loom",
        "rustix",
        "serde_json",
        "thiserror",
        "vfio-bindings",
        "vm-memory",
        "volatile",
        "zerocopy",
    ];
    let others: Vec<&String> = direct.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
    assert_eq!(others, Vec::<&String>::new(), "hal should depend on few crates");
    let example = vdk_tests::sources::root().join("hal/examples/embed.rs");
    let lines = std::fs::read_to_string(&example).unwrap().lines().count();
    assert!(lines < 60, "{} has {lines} lines, the design says below 60", example.display());
}

#[test]
fn workspace_crates_inherit_the_lints_and_the_licence() {
    for package in workspace_packages() {
        let manifest = std::fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "lints of {}", name(&package));
        assert_eq!(package["license"], "MIT OR Apache-2.0", "licence of {}", name(&package));
        assert_eq!(package["publish"], serde_json::json!([]), "{} is not published", name(&package));
    }
}

fn workspace_packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"])
        .current_dir(vdk_tests::sources::root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    package["dependencies"].as_array().unwrap().iter()
}

/// The crates of this workspace that `package` depends on in a way that `kind` accepts.
fn ours(package: &Value, kind: impl Fn(&Value) -> bool) -> Names {
    dependencies(package)
        .filter(|dependency| !dependency["path"].is_null() && kind(&dependency["kind"]))
        .map(name)
        .collect()
}

fn name(value: &Value) -> String {
    value["name"].as_str().unwrap().to_owned()
}
