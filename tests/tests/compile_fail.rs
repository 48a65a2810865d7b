//! What must not compile: each case in `compile_fail` holds one rule of the types.
//!
//! The messages beside the cases were recorded with the Rust version of the workspace
//! (`rust-version`); `TRYBUILD=overwrite` records them again.

#[test]
fn wrong_uses_of_the_types_do_not_compile() {
    trybuild::TestCases::new().compile_fail("compile_fail/*.rs");
}
