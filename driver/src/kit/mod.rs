//! The driver kit.
